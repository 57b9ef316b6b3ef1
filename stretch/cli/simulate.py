"""`stretch simulate`: simulate a bundle on its device, or a table of steps, with disturbances."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html, write_html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from scheduler.simulate.answer import SimulateAnswer
    from scheduler.simulate.clock import Simulated

#: Maximum number of traced inferences, which keeps the file small.
TRACED = 64

#: Maximum number of printed decisions; the JSON has all.
DECISIONS = 12


@verb
def simulate(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle, or a .csv table of steps: name,processor,ms,needs,bytes.")],
    device: Annotated[
        str | None,
        typer.Option(
            help="Device to simulate: id or path of a profile. Default: the device that the bundle was planned for. Of a table, the device "
            "whose links and contention count; by default none."
        ),
    ] = None,
    alternatives: Annotated[
        list[str] | None,
        typer.Option(
            "--or",
            help="Alternative plan for contended processors: a bundle of the same network, or processors of this one, such as cpu; repeatable.",
        ),
    ] = None,
    prefer: Annotated[
        str,
        typer.Option(
            help="Policy for choosing among plans: latency (the fastest), energy (the lowest energy), or deadline (the lowest energy "
            "of those that meet the deadline)."
        ),
    ] = "latency",
    beside: Annotated[
        list[str] | None,
        typer.Option(
            help="Bundle of another client that shares the processors, such as runs/other, runs/other@periodic:33.3 with its own requests, or "
            "runs/other@periodic:33.3@50 with a deadline in ms; repeatable."
        ),
    ] = None,
    inferences: Annotated[int, typer.Option(help="How many.", min=1, max=1_000_000)] = 100,
    busy: Annotated[
        list[str] | None,
        typer.Option(
            help="Background load: share of a processor and its interval in ms, such as gpu=0.9@50:155; repeat or separate by commas."
        ),
    ] = None,
    frequency: Annotated[
        list[str] | None,
        typer.Option(help="Speed factor of a processor and its interval in ms, such as gpu=0.5@100:500; repeat or separate by commas."),
    ] = None,
    heat: Annotated[
        str | None,
        typer.Option(help="Simulate heating and throttling: `profile` for the model in the device's profile, or a TOML file."),
    ] = None,
    jitter: Annotated[float, typer.Option(help="Jitter of computing times: the standard deviation of their logarithm.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed of jitter and arrivals.", min=0)] = 0,
    arrivals: Annotated[
        str | None,
        typer.Option(help="Arrivals of requests: periodic:MS, or poisson:RATE in requests per second. Default: as soon as a lane is free."),
    ] = None,
    in_flight: Annotated[int, typer.Option(help="Inferences at once.", min=1, max=64)] = 1,
    deadline: Annotated[
        float | None, typer.Option(help="Milliseconds from request to output; reports how many inferences miss it.")
    ] = None,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Schedule the bundles' steps by deadlines and fair shares, as a Scheduler in Python does."),
    ] = False,
    admit: Annotated[
        bool,
        typer.Option("--admit", help="Report whether all requests can be answered in time at their rates, with this scheduling."),
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a timeline of the first inferences for ui.perfetto.dev to this file.")] = None,
    html: Html = None,
) -> None:
    """Simulate a bundle on its device, or a table of steps, with background load, jitter, other bundles and timed requests."""
    from predictors.devices import load_device
    from predictors.errors import UsageError
    from predictors.thermal import read_thermal
    from scheduler.bundle.load import load_bundle
    from scheduler.measure.trace_files import write_perfetto
    from scheduler.simulate.answer import ConcurrentWorkload, Request, parse_other, parse_workload, simulate_steps, tracks
    from scheduler.simulate.answer import simulate as simulate_bundle
    from scheduler.simulate.clock import PROGRESS_EVERY
    from scheduler.simulate.heat import thermal_of
    from scheduler.simulate.networks import read_steps
    from scheduler.simulate.scene import Scene, parse_arrivals, parse_frequencies, parse_loads
    from stretch.report.html.simulation_page import simulation_page

    check_html(html)
    scene = Scene(
        runs=inferences,
        in_flight=in_flight,
        arrivals=None if arrivals is None else parse_arrivals(arrivals),
        loads=parse_loads(busy or []),
        frequencies=parse_frequencies(frequency or []),
        jitter=jitter,
        seed=seed,
        traced=TRACED if trace is not None else 1,
    )
    table = read_steps(bundle) if bundle.suffix == ".csv" and not bundle.is_dir() else None
    loaded = None if table is not None else load_bundle(bundle, check_hashes=True)
    named = device or (loaded.manifest.device if loaded is not None else None)
    profile = None if named is None else load_device(named)
    if loaded is None and (alternatives or beside):
        raise UsageError(f"{bundle} is a table of steps, which runs alone", "--or and --beside are for bundles")
    if profile is None and heat is not None:
        raise UsageError(f"{bundle} states no power of processors, which heat comes from", "name a device with --device")
    parsed = [parse_workload(text) for text in beside or []]
    request = Request(
        arrivals=arrivals,
        deadline_ms=deadline,
        trace=trace,
        shared=shared,
        admit=admit,
        prefer=prefer,
        alternatives=tuple(parse_other(text, loaded) for text in alternatives or []) if loaded is not None else (),
        thermal=None if heat is None else thermal_of(profile) if heat == "profile" and profile is not None else read_thermal(Path(heat)),
        workloads=tuple(
            ConcurrentWorkload(load_bundle(path, check_hashes=True), when, written, within) for path, when, written, within in parsed
        ),
    )
    with out.progress("simulating", total=inferences // PROGRESS_EVERY) as step:
        if table is not None:
            answer, simulated = simulate_steps(table, profile, scene, request, out.warnings, out.warn, step)
        elif loaded is not None and profile is not None:
            answer, simulated = simulate_bundle(loaded, profile, scene, request, out.warnings, out.warn, step)
    if trace is not None:
        write_perfetto(trace, tracks(answer, simulated))
    write_html(out, html, lambda command: simulation_page(answer, simulated.latencies_ms, simulated.traces[0], command))
    out.emit(answer, lambda console: _print(console, answer, simulated))


def _print(console: "Console", answer: "SimulateAnswer", simulated: "Simulated") -> None:
    """Print the answer and the timeline of the first inference."""
    from scheduler.runtime.trace import timeline

    if not answer.bundle.is_dir():
        console.print(f"{answer.bundle}{f' with the links of {answer.device}' if answer.device else ''}; simulated, nothing was measured")
    else:
        fitted = "fitted to measurements" if answer.calibrated else "not fitted to measurements"
        console.print(f"{answer.model} on {answer.device}, whose profile is {fitted}; simulated, nothing was measured")
    console.print(_latencies(answer))
    console.print()
    for line in timeline(simulated.traces[0]):
        console.print(line)
    console.print()
    console.print(_processors(answer))
    console.print(f"exchanges and joins take {answer.communication_ms:.2f} ms of an inference, independent of other load")
    at_once = "one at a time" if answer.in_flight == 1 else f"up to {answer.in_flight} at once"
    console.print(f"{answer.runs} inferences, {at_once}, in {answer.elapsed_ms:.2f} ms: {answer.per_second:.1f} a second")
    if answer.deadline_ms is not None:
        console.print(f"{answer.missed} of {answer.runs} miss the deadline of {answer.deadline_ms:g} ms")
    if answer.admission is not None:
        console.print(f"rates {'can' if answer.admission.holds else 'cannot'} be held: {answer.admission.reason}")
        if not answer.admission.holds:
            console.print(f"{answer.admission.factor:.2f} times all rates is held")
    if answer.energy_mj is not None:
        console.print(f"energy of the processors: {answer.energy_mj:.2f} mJ an inference")
    if answer.heat is not None:
        console.print(
            f"heat ({answer.heat.source}): {answer.heat.start_c:.1f} to {answer.heat.end_c:.1f} °C, at most {answer.heat.hottest_c:.1f}; throttled "
            f"{100 * answer.heat.throttled:.0f} % of the time, to {answer.heat.slowest:g} of the speed; median of the first tenth "
            f"{answer.heat.first_tenth_ms:.2f} ms, of the last {answer.heat.last_tenth_ms:.2f}"
        )
    for line in _others(answer):
        console.print(line)
    if answer.trace is not None:
        console.print(f"timeline: {answer.trace} (open it in ui.perfetto.dev)")


def _others(answer: "SimulateAnswer") -> "Iterator[str]":
    """Lines on alternative plans, and on bundles of other clients."""
    if len(answer.plans) > 1:
        for plan in answer.plans:
            yield f"{plan.bundle}: {plan.inferences} of {answer.runs} inferences, {plan.makespan_ms:.2f} ms each where nothing disturbs"
    for number, decision in enumerate(answer.decisions):
        if number == DECISIONS:
            yield f"and {len(answer.decisions) - number} more; the rest is in the JSON and in the timeline"
            break
        yield f"after inference {decision.inference} at {decision.at_ms:.1f} ms, {decision.kind}: {decision.after} ({decision.reason})"
    for workload in answer.beside:
        times = (
            "none ended"
            if workload.p50_ms is None
            else f"median {workload.p50_ms:.2f} ms, p90 {workload.p90_ms:.2f}, p99 {workload.p99_ms:.2f}"
        )
        missed = "" if workload.deadline_ms is None else f"; {workload.missed} miss the deadline of {workload.deadline_ms:g} ms"
        yield f"beside, {workload.bundle}: {workload.inferences} inferences, {times}; undisturbed {workload.makespan_ms:.2f} ms{missed}"


def _latencies(answer: "SimulateAnswer") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("latency")
    table.add_column("ms", justify="right")
    rows = (("undisturbed", answer.makespan_ms), ("median", answer.p50_ms), ("p90", answer.p90_ms), ("p99", answer.p99_ms))
    for name, ms in rows:
        table.add_row(name, f"{ms:.2f}")
    return table


def _processors(answer: "SimulateAnswer") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("processor")
    for title in ("busy ms an inference", "share of the time"):
        table.add_column(title, justify="right")
    for name, busy in answer.busy.items():
        table.add_row(name, f"{busy.ms:.2f}", f"{100 * busy.share:.0f} %")
    return table
