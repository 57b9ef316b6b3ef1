"""Time that the executor adds to the work of the delegates: `python -m experiments.executor.run BUNDLE`."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from experiments.command import program
from experiments.records import About, Facts, Value, write_record
from predictors.errors import StretchError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.checks.verify import random_input
from scheduler.measure.benchmark import Benchmark, Effort, Timing, benchmark, shares_a_core
from scheduler.placement.mapping import parse_mapping
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace

HERE = Path(__file__).parent


def handoff_us(trace: Trace, session: Session) -> float:
    """Return the time of one inference outside the subgraphs of its critical path, per meeting point, in microseconds.

    The work is the slowest branch of each segment in the same
    inference, so that a busy machine has no effect on the result.
    """
    segment_of = {name: subgraph.segment for name, subgraph in session.plan.subgraphs.items()}
    slowest: dict[str, float] = {}
    for span in trace.spans:
        if span.kind == "subgraph":
            segment = segment_of[span.name]
            slowest[segment] = max(slowest.get(segment, 0.0), span.ms)
    return (trace.makespan_ms - sum(slowest.values())) * 1000 / exchanges(session)


def exchanges(session: Session) -> int:
    """Return the number of meeting points: boundaries of segments at which processors join or take over from each other."""
    processors: dict[str, set[str]] = {}
    for subgraph in session.plan.subgraphs.values():
        processors.setdefault(subgraph.segment, set()).add(subgraph.processor)
    segments = list(processors.values())
    return sum(len(before | after) > 1 for before, after in pairwise(segments))


def empty_handoffs(bundle: Bundle, mapping: Mapping[str, str], runs: int) -> list[float]:
    """Return the hand-off costs of the bundle's plan with empty subgraphs, on the same cores."""
    with Session(bundle, mapping) as real:
        cores = {name: place.cores[0] for name, place in real.placements.items()}
    with Session(bundle, {name: f"null{core}" for name, core in cores.items()}) as session:
        x = random_input(bundle)
        costs = []
        for _ in range(runs):
            session.run(x)
            costs.append(handoff_us(session.trace, session))
    return costs


def measure(bundle: Bundle, mapping: Mapping[str, str], rounds: int, warmup: int) -> tuple[Benchmark, list[float], int]:
    """Return the benchmark of a bundle, its hand-off cost in each measured inference, and its number of meeting points."""
    with Session(bundle, mapping) as session:
        if shares_a_core(session):
            raise StretchError(
                "processors of this bundle share a core here, so there is no overlap to measure", "use a machine with a core per processor"
            )
        result = benchmark(session, random_input(bundle), Effort(rounds, warmup))
        return result, [handoff_us(trace, session) for trace in result.traces], exchanges(session)


def row(name: str, costs: Sequence[float]) -> dict[str, Value]:
    """Return the row with median and percentiles of hand-off costs."""
    tenths, hundredths = statistics.quantiles(costs, n=10), statistics.quantiles(costs, n=100)
    return {
        "subgraphs": name,
        "median_us": round(statistics.median(costs), 1),
        "p90_us": round(tenths[-1], 1),
        "p99_us": round(hundredths[-1], 1),
    }


def comparison(result: Benchmark) -> list[dict[str, Value]]:
    """Return one row per network, with its time and the bundle's speed relative to it."""
    contestants: list[Timing] = [
        t for t in (result.branched, result.whole, result.sequential, result.same_macs, *result.others) if t is not None
    ]
    return [
        {
            "model": timing.name,
            "median_ms": round(timing.median_ms, 2),
            "p90_ms": round(timing.p90_ms, 2),
            "speed_relative_to_branched": round(result.branched.median_ms / timing.median_ms, 3),
        }
        for timing in contestants
    ]


def main(words: list[str] | None = None) -> None:
    """Measure and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.executor.run", description=__doc__)
    parser.add_argument("bundle", type=Path, help="a bundle, such as the one of `stretch branch resnet50 --device pixel6`")
    parser.add_argument("--map", dest="mapping", default="gpu=cpu1", help="where processors run, as for `stretch run`")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--empty-runs", type=int, default=500, help="inferences with subgraphs that cost nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    bundle = load_bundle(options.bundle, check_hashes=True)
    mapping = parse_mapping([options.mapping])
    result, costs, met = measure(bundle, mapping, options.rounds, options.warmup)
    empty = empty_handoffs(bundle, mapping, options.empty_runs)
    manifest = bundle.manifest
    first, second, *_ = dict.fromkeys(entry.processor for entry in manifest.subgraphs)
    overlap = [trace.overlap_ms(first, second) for trace in result.traces]
    overview: list[dict[str, Value]] = [
        {"what": "meeting points with a join", "value": len(manifest.joins)},
        {"what": "meeting points where processors exchange, those included", "value": met},
        {"what": "MACs of the bundle over the original's", "value": round(manifest.model.macs / manifest.model.original_macs, 3)},
        {"what": "ideal: Σ over segments of the slowest branch alone, ms", "value": round(result.ideal_ms, 2)},
        {"what": "makespan, ms", "value": round(result.branched.median_ms, 2)},
        {"what": "efficiency", "value": None if result.efficiency is None else round(result.efficiency, 3)},
        {"what": "time in which both processors ran, ms", "value": round(statistics.median(overlap), 2)},
        {"what": "largest difference from the whole model", "value": result.error},
    ]
    write_record(
        options.out,
        {
            "handoff": [row("of the bundle", costs), row("that cost nothing", empty)],
            "efficiency": overview,
            "comparison": comparison(result),
        },
        source="measured",
        command=f"python -m experiments.executor.run {options.bundle.name}",
        runs=options.rounds,
        interleaved=True,
        about={"handoff": About(interleaved=False, rows={"that cost nothing": Facts(runs=options.empty_runs)})},
        notes=[
            f"{manifest.model.name} planned for {manifest.device}, weights {manifest.weights.source}, {options.mapping}, on cores {', '.join(map(str, result.cores))}."
        ],
    )


if __name__ == "__main__":
    program(main)
