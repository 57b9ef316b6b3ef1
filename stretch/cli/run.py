"""`stretch run`: run a bundle on this machine and compare it with sequential models on the same cores."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from msgspec.structs import replace

from predictors.errors import UsageError
from predictors.files import check_folder
from stretch.api.parameters import NO_PLACES, BundleFolder, DelegateMap, Parsed, Processors
from stretch.cli.extensions import tools_of
from stretch.cli.output import Output
from stretch.cli.pages import Html

if TYPE_CHECKING:
    import numpy as np

    from scheduler.checks.verify import ReferenceComparison
    from scheduler.delegates import Delegate
    from scheduler.measure.benchmark import Benchmark, Effort, Throughput
    from scheduler.placement.mapping import Priority
    from scheduler.runtime.session import Session
    from scheduler.runtime.trace import Trace

#: Maximum number of traced inferences; more would only make the file slow to open.
MAX_TRACED = 10

#: Relative width of the ratios' intervals at which measurements end, without a number of rounds.
WIDTH = 0.03


def _priority(text: str) -> "Priority":
    known: dict[str, Priority] = {"latency": "latency", "energy": "energy"}
    if text not in known:
        raise UsageError(f"--priority {text} is not known", "it is latency or energy")
    return known[text]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run, on any machine."""

    mapping: DelegateMap = NO_PLACES
    processors: Processors = None
    priority: Annotated[
        Literal["latency", "energy"] | None,
        typer.Option(help="Choose processors by predicted latency or energy on the device. Default: those of the design."),
        Parsed(str | None, _priority),
    ] = None
    dsp_code: Annotated[
        str | None, typer.Option(help="Run the bundle's compiled code for this chip on the DSP, such as sm8550; needs --trust-code.")
    ] = None
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Trust compiled code inside the bundle.")] = False
    in_flight: Annotated[int | None, typer.Option(help="Also measure throughput, with this many inferences in flight.", min=1, max=64)] = (
        None
    )
    recommended: Annotated[
        bool,
        typer.Option("--recommended", help="Run the network that the bundle's plan recommends instead of branches, on its processor."),
    ] = False
    time_limit: Annotated[
        float, typer.Option(help="Time limit of one subgraph in seconds, beyond which the run fails.", min=0.001, max=1e6)
    ] = 600.0
    repeat: Annotated[
        int | None,
        typer.Option(
            help="Measured rounds. Default: at least 30, for 2 to 10 s, until the ratios are known to 3 %.",
            min=1,
            max=100_000,
            show_default=False,
        ),
    ] = None
    warmup: Annotated[int, typer.Option(help="Warm-up rounds, which are not measured.", min=0, max=100_000)] = 5
    trust: Annotated[
        Sequence[Path],
        typer.Option(help="Public key (Ed25519 in PEM) that must have signed the bundle; repeat to allow several."),
    ] = ()
    input_file: Annotated[Path | None, typer.Option("--input", help="Input as a .npy file. Default: normally distributed numbers.")] = None
    trace: Annotated[Path | None, typer.Option(help="Write a measured and a predicted timeline for ui.perfetto.dev to this file.")] = None
    table: Annotated[Path | None, typer.Option("--csv", help="Write the same spans as a table to this file.")] = None


def run(out: Output, bundle: BundleFolder, options: RunOptions, html: Html = None, tool: Annotated[Any, tools_of("run")] = None) -> None:
    """Run a bundle, check its results, and compare its time with every baseline."""
    from scheduler.answer import run_answer
    from scheduler.bundle.load import load_bundle
    from scheduler.bundle.recommended import as_recommended
    from scheduler.checks.verify import random_input
    from scheduler.formats.npy import read_npy
    from scheduler.measure.benchmark import Effort
    from scheduler.measure.energy import measure_energy
    from scheduler.runtime.session import Session
    from scheduler.runtime.trace import write_csv, write_perfetto
    from stretch.report.execution import run_page

    for option, file in (("--trace", options.trace), ("--csv", options.table)):
        if file is not None:
            check_folder(file, option)
    loaded = load_bundle(bundle, check_hashes=True, trust=options.trust)
    if tool is not None:
        tool.run(out, loaded, options)
        return
    loaded = as_recommended(loaded) if options.recommended else loaded
    x = random_input(loaded) if options.input_file is None else read_npy(options.input_file, "input")
    with Session(
        loaded,
        options.mapping,
        processors=options.processors,
        priority=options.priority,
        delegates=_dsp(options),
        in_flight=options.in_flight or 1,
        time_limit=options.time_limit,
    ) as session:
        _tell_placements(out, session, options.priority)
        # a note, because the answer takes seconds to minutes
        out.note(f"measuring {loaded.manifest.model.name}")
        repeat, warmup = options.repeat, options.warmup
        effort = Effort(warmup=warmup, width=WIDTH) if repeat is None else Effort(repeat, warmup)
        result, right, rates = _measure(out, session, x, effort, options.in_flight)
        with out.progress("measuring energy"):
            energy = measure_energy(lambda: session.run(x))
        answer = run_answer(session, result, right, rates, energy)
        answer = replace(answer, trace=options.trace, csv=options.table, priority=options.priority, warnings=out.warnings)
        tracks = _tracks(session, result, out) if (options.trace, options.table, html) != (None, None, None) else {}
        depths = {"in flight": session.queue_depths}
    if options.trace is not None:
        write_perfetto(options.trace, tracks, depths)
    if options.table is not None:
        write_csv(options.table, tracks)
    predicted = tracks.get(f"predicted on {answer.device}")
    out.show(answer, lambda answer: run_page(answer, result.traces, predicted[0] if html and predicted else None), html)


def _measure(
    out: Output, session: "Session", x: "np.ndarray[Any, Any]", effort: "Effort", in_flight: int | None
) -> "tuple[Benchmark, ReferenceComparison | None, Throughput | None]":
    """Check the results, time all networks and, if requested, measure the throughput."""
    from scheduler.checks.verify import check_output, compare_with_reference
    from scheduler.measure.benchmark import benchmark, throughput

    right = compare_with_reference(session, x) if session.computes else None
    with out.progress("running", total=effort.warmup + effort.rounds if effort.width is None else None) as step:
        result = benchmark(session, x, effort, step)
    if right is not None:
        check_output(session, result.output, right.expected)
    if in_flight is None:
        return result, right, None
    with out.progress("measuring throughput", total=1 + result.runs) as step:
        return result, right, throughput(session, x, in_flight, rounds=result.runs, step=step)


def _tell_placements(out: Output, session: "Session", priority: str | None) -> None:
    """Print stand-ins for processors, moved subgraphs, and effects on efficiency."""
    from scheduler.measure.benchmark import shares_a_core

    for place in session.placements.values():
        if place.stand_in:
            cores = f" on core {'+'.join(map(str, place.cores))}" if place.cores else ""
            out.note_later(f"{place.processor} → {place.delegate}{cores}: {place.reason}")
    for name, processor in session.moved.items():
        out.note_later(f"{name} → {processor}, as {f'--priority {priority}' if priority else '--processors'} asks")
    if shares_a_core(session):
        out.note_later("processors share a core, so their subgraphs run one after the other and efficiency is not given")


def _dsp(options: RunOptions) -> "dict[str, Delegate]":
    """Return the dsp delegate if it should run the bundle's compiled code; empty otherwise."""
    from scheduler.delegates import DspDelegate

    if options.dsp_code is None:
        return {}
    if not options.trust_code:
        raise UsageError(
            "--dsp-code runs compiled code of the bundle, which cannot be checked", "add --trust-code if you trust who made it"
        )
    return {"dsp": DspDelegate(chip=options.dsp_code)}


def _tracks(session: "Session", result: "Benchmark", out: Output) -> "dict[str, Sequence[Trace]]":
    """Return the traces of the timeline by group: measured, with several inferences in flight, and predicted on the device."""
    from predictors.devices import load_device
    from predictors.errors import StretchError
    from scheduler.simulate.clock import predicted_trace

    manifest = session.bundle.manifest
    tracks: dict[str, Sequence[Trace]] = {"measured": result.traces[:MAX_TRACED]}
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
