"""What a pair of networks planned together tells, as plain data: JSON and the terminal's table read these structs, whose fields are the JSON's keys."""

from typing import Any

import msgspec

from stretch.planning.answer import plain
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.front_answer import words_of
from stretch.planning.together import Candidate, Pair, Together


class PairedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One network of a pair."""

    model: str  # The network.
    processors: list[str]  # That it uses.
    branches: list[str]  # What becomes of each segment that branches, in words; nothing where the network stays whole.
    alone_ms: float  # An inference with nothing beside it.
    best_alone_ms: float  # Of its candidate that is fastest alone.
    latency_ms: float  # An inference beside one of the other network that begins at the same time.
    design: BranchDesign | None  # The design, as a design file has it; None for the whole network on one processor.
    file: str | None = None  # Its design file, where it was written.


class TogetherAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Two networks on one device."""

    device: str  # The device.
    processors: list[str]  # That could be used.
    goal: str  # What the pair is best in: makespan, latency or throughput.
    designs: list[PairedAnswer]  # Of both networks.
    makespan_ms: float  # One inference of each begun together, until both are over.
    pairs_per_second: float | None  # Inferences of each a second with several in flight; None where that was not the goal.
    sequential_ms: float  # Both one after the other, each on its fastest candidate.
    fixed_ms: float  # As `makespan_ms` of the best pair that has each network whole on one processor.
    fixed_per_second: float | None  # As `pairs_per_second` of that pair.
    fixed: list[str]  # Processor of each network there.
    speedup_over_sequential: float  # In what the pair is best in.
    speedup_over_fixed: float  # Likewise.
    candidates: list[int]  # How many of each network there were; every pair of them was simulated.
    seconds: dict[str, float]  # Wall time by what it went into.
    source: str = "simulated"  # Where the numbers come from.
    warnings: list[str] = []  # What a person should know.

    def to_json(self) -> dict[str, Any]:
        """The object that `stretch search --json` prints."""
        return plain(self)


def together_answer(found: Together, seconds: dict[str, float]) -> TogetherAnswer:
    """The best pair beside what it has to beat."""
    best, fixed = found.best, found.fixed
    value, sequential, mapped = (ran.value(found.goal, found.weights) for ran in (best.ran, found.sequential, fixed.ran))
    return TogetherAnswer(
        device=found.device.id,
        processors=list(found.processors),
        goal=found.goal,
        designs=[_paired(each, alone, ms) for each, alone, ms in zip(_both(best), found.alone, best.ran.latencies_ms, strict=True)],
        makespan_ms=best.ran.makespan_ms,
        pairs_per_second=best.ran.pairs_per_second,
        sequential_ms=found.sequential.makespan_ms,
        fixed_ms=fixed.ran.makespan_ms,
        fixed_per_second=fixed.ran.pairs_per_second,
        fixed=[each.processors[0] for each in _both(fixed)],
        speedup_over_sequential=sequential / value,
        speedup_over_fixed=mapped / value,
        candidates=list(found.candidates),
        seconds=seconds,
    )


def _both(pair: Pair) -> tuple[Candidate, Candidate]:
    return pair.first, pair.second


def _paired(candidate: Candidate, alone: Candidate, latency_ms: float) -> PairedAnswer:
    parts = [] if candidate.design is None else [part for part in candidate.design.segments if not part.whole]
    return PairedAnswer(
        model=candidate.network.name,
        processors=list(candidate.processors),
        branches=[words_of(part) for part in parts],
        alone_ms=candidate.alone_ms,
        best_alone_ms=alone.alone_ms,
        latency_ms=latency_ms,
        design=candidate.design,
    )
