"""`stretch simulate`: simulate a bundle on its device, or a table of steps, with disturbances."""

from pathlib import Path
from typing import Annotated

import typer

from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html


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
    from scheduler.simulate.clock import PROGRESS_EVERY
    from stretch.api.verbs import simulate as answer_of
    from stretch.report.execution import simulation_page

    check_html(html)
    with out.progress("simulating", total=inferences // PROGRESS_EVERY) as step:
        answer, simulated = answer_of(
            bundle,
            device,
            inferences=inferences,
            in_flight=in_flight,
            arrivals=arrivals,
            busy=busy or [],
            frequency=frequency or [],
            heat=heat,
            jitter=jitter,
            seed=seed,
            deadline=deadline,
            alternatives=alternatives or [],
            prefer=prefer,
            beside=beside or [],
            shared=shared,
            admit=admit,
            trace=trace,
            progress=step,
        )
    answer = out.with_warnings(answer)
    out.show(answer, lambda command: simulation_page(answer, simulated.latencies_ms, simulated.traces[0], command), html)
