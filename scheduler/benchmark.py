"""A bundle against the sequential models of equal cores, in turns, so that both see the same machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.cores import available_cores
from scheduler.delegates.base import Array
from scheduler.sequential import Sequential, max_error
from scheduler.session import Session
from scheduler.trace import Trace


@dataclass(frozen=True)
class Timing:
    """How long one contestant took."""

    name: str
    median_ms: float
    p90_ms: float
    runs: int


@dataclass(frozen=True)
class Benchmark:
    """Measured times of a bundle and its controls on the same cores.

    Args:
        branched: The bundle.
        sequential: The original model, on as many threads as served it best; None
            if the bundle has no such control.
        same_macs: The original rescaled to the bundle's MACs; None if there is none.
        whole: The same branched net as one graph on all the cores.
        others: Contestants that were beaten by one of the above.
        cores: The cores that all of them used.
        alone_ms: Median time of each subgraph with everything else idle.
        ideal_ms: Sum over segments of the slowest branch alone.
        efficiency: `ideal_ms` over the bundle's median; None where processors share a core.
        error: Largest difference of the output from the whole model's, relative
            to its largest element; None where a delegate computes nothing.
        traces: The measured inferences of the bundle.
    """

    branched: Timing
    sequential: Timing | None
    same_macs: Timing | None
    whole: Timing
    others: tuple[Timing, ...]
    cores: tuple[int, ...]
    alone_ms: Mapping[str, float]
    ideal_ms: float
    efficiency: float | None
    error: float | None
    traces: tuple[Trace, ...]

    @property
    def ratio(self) -> float | None:
        """Time of the best sequential run over the bundle's: above 1 branching wins."""
        return None if self.sequential is None else self.sequential.median_ms / self.branched.median_ms


def benchmark(session: Session, x: Array, repeat: int = 30, warmup: int = 5, step: Callable[[], None] | None = None) -> Benchmark:
    """Measure a session against the controls of its bundle.

    Each round runs every contestant once, in an order that rotates, and every
    subgraph alone; the first `warmup` rounds are not counted.

    Args:
        session: The bundle on this machine.
        x: Its input.
        repeat: Rounds that count.
        warmup: Rounds that do not.
        step: Called after each round.
    """
    bundle, manifest = session.bundle, session.bundle.manifest
    cores = used_cores(session)
    output = session.run(x)
    whole = Sequential(bundle.file(manifest.whole), cores)
    error = max_error(output, whole.run(x)) if session.computes else None
    contestants: dict[str, Callable[[], float]] = {"branched": lambda: _branched(session, x), "whole": whole.time}
    for control in manifest.controls:
        for used in dict.fromkeys((cores, cores[:1])):
            model = Sequential(bundle.file(manifest.controls[control]), used)
            model.run(x)
            contestants[f"{control}, {_threads(used)}"] = model.time

    times: dict[str, list[float]] = {name: [] for name in contestants}
    alone: dict[str, list[float]] = {name: [] for name in session.plan.subgraphs}
    traces: list[Trace] = []
    order = list(contestants)
    for round_ in range(warmup + repeat):
        for name in order[round_ % len(order) :] + order[: round_ % len(order)]:
            ms = contestants[name]()
            if round_ >= warmup:
                times[name].append(ms)
                if name == "branched":
                    traces.append(session.trace)
        for name in alone:
            ms = session.time_alone(name)
            if round_ >= warmup:
                alone[name].append(ms)
        if step is not None:
            step()

    timings = {name: _timing(name, values) for name, values in times.items()}
    alone_ms = {name: float(np.median(values)) for name, values in alone.items()}
    ideal = ideal_ms(session, alone_ms)
    sequential = _best(timings, "original")
    same_macs = _best(timings, "sequential_same_macs")
    chosen = [timings["branched"], timings["whole"], sequential, same_macs]
    return Benchmark(
        branched=timings["branched"],
        sequential=sequential,
        same_macs=same_macs,
        whole=Timing(
            f"same net as one graph, {_threads(cores)}", timings["whole"].median_ms, timings["whole"].p90_ms, timings["whole"].runs
        ),
        others=tuple(timing for timing in timings.values() if timing not in chosen),
        cores=cores,
        alone_ms=alone_ms,
        ideal_ms=ideal,
        efficiency=None if shares_a_core(session) else ideal / timings["branched"].median_ms,
        error=error,
        traces=tuple(traces),
    )


def used_cores(session: Session) -> tuple[int, ...]:
    """The cores that a session's processors are placed on; all of this process where one is not pinned."""
    places = [subgraph.placement for subgraph in session.plan.subgraphs.values()]
    if any(not place.cores for place in places):
        return available_cores()
    return tuple(sorted({core for place in places for core in place.cores}))


def shares_a_core(session: Session) -> bool:
    """Whether two branches of a segment run on one core or one queue."""
    if session.moved:
        return True
    places = list({subgraph.placement.processor: subgraph.placement for subgraph in session.plan.subgraphs.values()}.values())
    for i, one in enumerate(places):
        for other in places[i + 1 :]:
            if one.queue == other.queue or set(one.cores) & set(other.cores):
                return True
    return False


def ideal_ms(session: Session, alone_ms: Mapping[str, float]) -> float:
    """Time if branches overlapped perfectly: Σ over segments of the slowest branch alone.

    A branch that consists of several subgraphs counts with their sum.
    """
    segments: dict[str, dict[str, float]] = {}
    for name, subgraph in session.plan.subgraphs.items():
        branches = segments.setdefault(subgraph.segment, {})
        processor = subgraph.placement.processor
        branches[processor] = branches.get(processor, 0.0) + alone_ms[name]
    return sum(max(branches.values()) for branches in segments.values())


def _branched(session: Session, x: Array) -> float:
    session.run(x)
    return session.trace.makespan_ms


def _timing(name: str, values: Sequence[float]) -> Timing:
    return Timing(name, float(np.median(values)), float(np.percentile(values, 90)), len(values))


def _best(timings: Mapping[str, Timing], control: str) -> Timing | None:
    found = [timing for name, timing in timings.items() if name.partition(", ")[0] == control]
    return min(found, key=lambda timing: timing.median_ms) if found else None


def _threads(cores: tuple[int, ...]) -> str:
    return f"{len(cores)} thread{'s' if len(cores) != 1 else ''}"
