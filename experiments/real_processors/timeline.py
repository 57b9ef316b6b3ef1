"""Where the time of bundles' inferences goes, measured and predicted: `python -m experiments.real_processors.timeline here.toml BUNDLE...`.

Says for each processor what share of the inference of median length it computes, exchanges or waits, and draws that of the first bundle.
"""

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from experiments.command import program
from experiments.records import About, Facts, Row, write_record
from predictors.devices import load_device
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.delegates import get_delegate
from scheduler.delegates.base import warm_up
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace, median_trace
from scheduler.simulate.clock import predicted_trace
from stretch.report.execution import trace_bars
from stretch.report.html.page import timeline

HERE = Path(__file__).parent


def steps(name: str, trace: Trace, columns: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Return the spans of an inference in the order of their starts, with further times of each step."""
    rows: list[Row] = []
    for span in sorted(trace.spans, key=lambda span: span.start_ns):
        row: Row = {"design, step": f"{name}, {span.name}", "processor": span.processor, "kind": span.kind}
        row |= {"start ms": round((span.start_ns - trace.start_ns) / 1e6, 3), "ms": round(span.ms, 3)}
        rows.append(row | {name: round(times[span.name], 3) if span.name in times else None for name, times in columns.items()})
    return rows


def shares(name: str, trace: Trace, kernels: Mapping[str, float], alone: Mapping[str, float]) -> list[Row]:
    """Return the activities of each processor during an inference, in percent of its length.

    A subgraph computes as long as its kernels, or as long as it takes alone; contention causes the remaining time.
    """
    rows: list[Row] = []
    for processor in dict.fromkeys(span.processor for span in trace.spans):
        spans = sorted((span for span in trace.spans if span.processor == processor), key=lambda span: span.start_ns)
        subgraphs = [span for span in spans if span.kind == "subgraph"]
        covered = end = 0
        for span in spans:  # conversions are within subgraphs
            covered, end = covered + max(0, span.end_ns - max(end, span.start_ns)), max(end, span.end_ns)
        slowed = sum(max(0.0, span.ms - alone.get(span.name, span.ms)) for span in subgraphs)
        busy = sum(min(span.ms, kernels.get(span.name, alone.get(span.name, span.ms))) for span in subgraphs)
        parts = {"busy": busy, "slower than alone": slowed, "exchange": max(0.0, covered / 1e6 - busy - slowed)}
        parts["waiting"] = trace.makespan_ms - covered / 1e6
        row: Row = {"design, processor": f"{name}, {processor}", "of ms": round(trace.makespan_ms, 3)}
        rows.append(row | {f"{part} %": round(100 * ms / trace.makespan_ms, 1) for part, ms in parts.items()})
    return rows


def picture(name: str, traces: Mapping[str, Trace]) -> str:
    """Draw the inferences one below the other, as an SVG file."""
    bars, ends = {group: trace_bars(trace) for group, trace in traces.items()}, [trace.makespan_ms for trace in traces.values()]
    words = "; ".join(f"{group}: {ms:.2f} ms" for group, ms in zip(traces, ends, strict=True))
    drawn = timeline("timeline", f"Who computes when: {name}", words, bars, max(ends)).svg
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" ', 1) + "\n"


def measure(folder: Path, profile: Path, runs: int) -> tuple[list[Row], list[Row], str]:
    """Run a bundle; return its steps, the shares of its processors, and the picture."""
    bundle, name = load_bundle(folder), folder.resolve().name
    predicted = predicted_trace(bundle.manifest, load_device(profile))
    with Session(bundle) as session:
        x, traces = random_input(bundle), []
        warm_up(lambda: session.run(x))
        for _ in range(runs):
            session.run(x)
            traces.append(session.trace)
        alone = {step: statistics.median(session.time_alone(step) for _ in range(5)) for step in session.plan.subgraphs}
        kernels = {
            step: sum(ms for _, ms in delegate.compile_from(bundle, step).profile(fed=True))
            for step, place in session.subgraph_placements.items()
            if isinstance(delegate := get_delegate(place.delegate).create(place.cores), OpenCLDelegate)
        }
    measured = median_trace(traces)
    both = {"measured": measured} | ({"predicted": predicted} if predicted else {})
    planned = {span.name: span.ms for span in predicted.spans} if predicted else {}
    step_rows = steps(name, measured, {"predicted ms": planned, "alone ms": alone, "kernels alone ms": kernels})
    rows = shares(name, measured, kernels, alone) + (shares(f"{name}, predicted", predicted, {}, {}) if predicted else [])
    return step_rows, rows, picture(name, both)


def main() -> None:
    """Measure each bundle, and write the record after it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.timeline", description=__doc__)
    parser.add_argument("profile", type=Path, help="that they were planned by, such as here.toml")
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--repeat", type=int, default=30, help="measured inferences")
    options = parser.parse_args()
    tables: dict[str, list[Row]] = {"steps": [], "shares": []}
    columns = {"predicted ms": Facts("predicted"), "alone ms": Facts(runs=5), "kernels alone ms": Facts(runs=3)}
    for number, bundle in enumerate(options.bundles):
        step_rows, rows, drawn = measure(bundle, options.profile, options.repeat)
        tables["shares"] += rows
        tables["steps"] += step_rows
        if number == 0:
            (HERE / "timeline.svg").write_text(drawn)
        names = [str(row["design, processor"]) for row in tables["shares"]]
        predicted = {name: Facts("predicted") for name in names if ", predicted, " in name}
        write_record(
            HERE / "results" / "timelines.json",
            tables,
            source="measured",
            command="python -m experiments.real_processors.timeline here.toml BUNDLE...",
            runs=options.repeat,
            about={"steps": About(columns=columns), "shares": About(rows=predicted)},
            notes=[
                "The inference of median length.",
                "Exchange: conversions, joins, and launches and copies of subgraphs on OpenCL, the time beyond their kernels.",
            ],
        )


if __name__ == "__main__":
    program(main)
