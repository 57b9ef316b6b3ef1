"""`stretch run`: a bundle on this machine, against the sequential models of the same cores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from rich.console import Console

    from scheduler.benchmark import Benchmark
    from scheduler.choice import Priority
    from scheduler.delegates import Delegate
    from scheduler.plan import Placement
    from scheduler.session import Session
    from scheduler.throughput import Throughput
    from scheduler.trace import Trace

#: Traced inferences; more would only make the file slow to open.
TRACED = 10


@verb
def run(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="Where a processor runs here, as gpu=cpu1; repeat or separate by commas.")
    ] = None,
    processors: Annotated[str | None, typer.Option(help="Processors to use, as cpu,gpu; the work of those left out moves to them.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="Choose processors for latency or energy, as predicted for the device; the design decides otherwise.")
    ] = None,
    dsp_code: Annotated[
        str | None, typer.Option(help="Run the code that the bundle brings for this chip on the DSP, as sm8550; needs --trust-code.")
    ] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Trust compiled code inside the bundle.")] = False,
    in_flight: Annotated[
        int | None, typer.Option(help="Measure throughput as well, with this many inferences at once.", min=1, max=64)
    ] = None,
    time_limit: Annotated[
        float, typer.Option(help="Seconds that a delegate may take for one subgraph; the run fails beyond them.", min=0.001, max=1e6)
    ] = 600.0,
    repeat: Annotated[int, typer.Option(help="Measured rounds.", min=1, max=100_000)] = 30,
    warmup: Annotated[int, typer.Option(help="Rounds before them that do not count.", min=0, max=100_000)] = 5,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Input as a .npy file; normally distributed numbers otherwise.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a timeline, measured and predicted, for ui.perfetto.dev to this file.")] = None,
    table: Annotated[Path | None, typer.Option("--csv", help="Write the same spans as a table to this file.")] = None,
) -> None:
    """Run a bundle here, in turns with the best sequential run on the same cores."""
    from scheduler.benchmark import benchmark, shares_a_core
    from scheduler.bundle import load_bundle
    from scheduler.mapping import parse_mapping
    from scheduler.session import Session
    from scheduler.throughput import throughput
    from scheduler.trace_files import write_csv, write_perfetto
    from scheduler.verify import random_input

    loaded = load_bundle(bundle, check_hashes=True)
    manifest = loaded.manifest
    x = random_input(loaded) if input_file is None else read_input(input_file)
    only = None if processors is None else [name.strip() for name in processors.split(",")]
    wanted = _priority(priority)
    delegates = _dsp(dsp_code, trust_code)
    with Session(
        loaded,
        parse_mapping(mapping or []),
        processors=only,
        priority=wanted,
        delegates=delegates,
        in_flight=in_flight or 1,
        time_limit=time_limit,
    ) as session:
        for place in session.placements.values():
            if place.stand_in:
                out.note(f"{place.processor} → {_where(place)}: {place.reason}")
        for name, processor in session.moved.items():
            out.note(f"{name} → {processor}, as {f'--priority {priority}' if priority else '--processors'} asks")
        if shares_a_core(session):
            out.note("processors share a core, so their subgraphs run one after the other and efficiency is not given")
        with out.progress("running", total=warmup + repeat) as step:
            result = benchmark(session, x, repeat, warmup, step)
        rates = None
        if in_flight is not None:
            with out.progress("measuring throughput", total=1 + repeat) as step:
                rates = throughput(session, x, in_flight, rounds=repeat, step=step)
        placements, moved = session.placements, session.moved
        tracks = _tracks(session, result, out) if trace is not None or table is not None else {}
        depths = {"in flight": session.queue_depths}
    if trace is not None:
        write_perfetto(trace, tracks, depths)
    if table is not None:
        write_csv(table, tracks)

    data = {
        "bundle": bundle,
        "model": manifest.model.name,
        "device": manifest.device,
        "weights": {"source": manifest.weights.source, "detail": manifest.weights.detail},
        "source": "measured",
        "median_ms": result.branched.median_ms,
        "p90_ms": result.branched.p90_ms,
        "runs": result.branched.runs,
        "sequential": _timing(result.sequential),
        "sequential_same_macs": _timing(result.same_macs),
        "same_net_whole_graph_ms": result.whole.median_ms,
        "ratio": result.ratio,
        "macs_ratio": manifest.model.macs / manifest.model.original_macs if manifest.model.original_macs else None,
        "ideal_ms": result.ideal_ms,
        "efficiency": result.efficiency,
        "max_error": result.error,
        "throughput": None if rates is None else _rates(rates),
        "trace": trace,
        "csv": table,
        "priority": priority,
        "moved": moved,
        "cores": list(result.cores),
        "processors": _processors(placements, result),
        "subgraphs_alone_ms": dict(result.alone_ms),
        "others": [_timing(other) for other in result.others],
        "verdict": verdict(result, [place.processor for place in placements.values() if place.simulated]),
        "warnings": out.warnings,
    }
    out.emit(data, lambda console: _print(console, data, result, result.traces[-1]))


def read_input(path: Path) -> "np.ndarray[Any, Any]":
    """The array in a .npy file.

    Raises:
        StretchError: If the file cannot be read or holds no plain array.
    """
    import numpy as np

    from predictors.errors import StretchError

    try:
        # Opened here: numpy leaves the file open when it is empty.
        with path.open("rb") as stream:
            x = np.load(stream, allow_pickle=False)
    except OSError as error:
        raise StretchError(f"cannot read the input {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise StretchError(f"{path} is not a .npy file of plain numbers", "write it with numpy.save(path, array)") from error
    if not isinstance(x, np.ndarray):  # an .npz
        raise StretchError(f"{path} holds several arrays, the model takes one", "write it with numpy.save(path, array)")
    return x


def _priority(text: str | None) -> "Priority | None":
    from predictors.errors import UsageError

    if text is None or text == "latency" or text == "energy":
        return text
    raise UsageError(f"--priority {text} is not known", "it is latency or energy")


def _dsp(chip: str | None, trusted: bool) -> "dict[str, Delegate]":
    """The dsp delegate, if it is to run code that a bundle brings."""
    from predictors.errors import UsageError
    from scheduler.delegates import DspDelegate

    if chip is None:
        return {}
    if not trusted:
        raise UsageError(
            "--dsp-code runs compiled code of the bundle, which cannot be checked", "add --trust-code if you trust who made it"
        )
    return {"dsp": DspDelegate(chip=chip)}


def _tracks(session: "Session", result: "Benchmark", out: Output) -> "dict[str, Sequence[Trace]]":
    """The groups of a timeline: what was measured, with several in flight too, and what the plan expects on the device."""
    from predictors.devices import load_device
    from predictors.errors import StretchError
    from scheduler.predicted import predicted_trace

    manifest = session.bundle.manifest
    tracks: dict[str, Sequence[Trace]] = {"measured": result.traces[:TRACED]}
    if session.submitted_traces:
        tracks["in flight"] = session.submitted_traces
    try:
        predicted = predicted_trace(manifest, load_device(manifest.device))
    except StretchError as error:
        out.note(f"no predicted track: {error.message}")
    else:
        if predicted is not None:
            tracks[f"predicted on {manifest.device}"] = [predicted]
    return tracks


def _rates(rates: "Throughput") -> dict[str, Any]:
    return {
        "in_flight": rates.in_flight,
        "rounds": rates.rounds,
        "burst": rates.burst,
        "over_one_core": rates.over_one_core,
        "contestants": [
            {"name": rate.name, "per_second": rate.per_second, "p10_per_second": rate.p10_per_second}
            for rate in (rates.submitted, rates.one_at_a_time, rates.one_core, rates.all_cores)
        ],
    }


def verdict(result: "Benchmark", simulated: "Sequence[str]" = ()) -> str:
    """In one sentence: does branching pay here, and what does better if not.

    Args:
        result: What was measured.
        simulated: Processors that a simulator stands in for.
    """
    if simulated:
        names = ", ".join(simulated)
        return f"no verdict on speed: the {names} is simulated here, so the numbers of the output count and the times do not"
    cores = f"{len(result.cores)} core{'s' if len(result.cores) != 1 else ''}"
    if result.sequential is None or result.ratio is None:
        return f"no comparison with the original: the bundle was written without controls; the same net as one graph takes {result.whole.median_ms:.2f} ms on the same {cores}"
    best = min((t for t in (result.sequential, result.same_macs, result.whole) if t), key=lambda t: t.median_ms)
    if best.median_ms >= result.branched.median_ms:
        return (
            f"branching wins here: {result.ratio:.2f}× the speed of the best sequential run ({result.sequential.name}) on the same {cores}"
        )
    if result.ratio >= 1:
        return (
            f"branching beats the original here ({result.ratio:.2f}× its speed), but loses to a sequential control on the same {cores}: "
            f"{best.name} takes {best.median_ms:.2f} ms"
        )
    return (
        f"branching loses here: {result.ratio:.2f}× the speed of the best sequential run ({result.sequential.name}) on the same {cores}; "
        "on cores of one kind that is expected, branches pay on processors of different kinds"
    )


def _where(place: "Placement") -> str:
    return f"{place.delegate} on core {'+'.join(map(str, place.cores))}" if place.cores else place.delegate


def _timing(timing: Any) -> dict[str, Any] | None:
    return None if timing is None else {"name": timing.name, "median_ms": timing.median_ms, "p90_ms": timing.p90_ms}


def _processors(placements: Any, result: "Benchmark") -> dict[str, Any]:
    import numpy as np

    busy: dict[str, list[float]] = {}
    for one in result.traces:
        for processor, ms in one.busy_ms().items():
            busy.setdefault(processor, []).append(ms)
    return {
        name: {
            "delegate": p.delegate,
            "cores": list(p.cores),
            "dispatch": p.dispatch,
            "queue": p.queue,
            "stand_in": p.stand_in,
            "reason": p.reason,
            "busy_ms": float(np.median(busy[name])) if name in busy else 0.0,
        }
        for name, p in placements.items()
    }


def _print(console: "Console", data: dict[str, Any], result: "Benchmark", last: "Trace") -> None:
    from rich.table import Table

    from scheduler.trace import timeline

    weights = data["weights"]
    console.print(
        f"{data['model']} planned for {data['device']}, weights: {weights['source']}{' (' + weights['detail'] + ')' if weights['detail'] else ''}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("measured here")
    for title in ("median ms", "p90 ms", "of branched"):
        table.add_column(title, justify="right")
    rows = [result.branched, result.whole, result.sequential, result.same_macs, *result.others]
    for timing in (t for t in rows if t is not None):
        table.add_row(
            timing.name, f"{timing.median_ms:.2f}", f"{timing.p90_ms:.2f}", f"{timing.median_ms / result.branched.median_ms:.2f}×"
        )
    console.print(table)
    console.print()
    for line in timeline(last):
        console.print(line)
    console.print()
    ratio = "" if data["macs_ratio"] is None else f"{data['macs_ratio']:.3f} of the original's MACs, "
    efficiency = "efficiency not given (processors share a core)" if result.efficiency is None else f"efficiency {result.efficiency:.3f}"
    error = (
        "output not checked (a delegate computes nothing)"
        if result.error is None
        else f"differs from the whole model by {result.error:.1e}"
    )
    console.print(f"{ratio}{efficiency}, {error}, {result.branched.runs} runs on cores {', '.join(map(str, result.cores))}")
    console.print(data["verdict"])
    if data["throughput"] is not None:
        console.print()
        rates = data["throughput"]["contestants"]
        for rate in rates:
            share = rate["per_second"] / rates[0]["per_second"]
            console.print(f"{rate['name']}: {rate['per_second']:.1f} inferences/s, {share:.2f}×")
    if data["trace"] is not None:
        console.print(f"timeline: {data['trace']} (open it in ui.perfetto.dev)")
