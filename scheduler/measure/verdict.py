"""What a measurement says in one sentence: does branching pay here, and how sure is that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from scheduler.measure.benchmark import Benchmark, Timing
from scheduler.measure.interval import Ratio, ratio_interval

#: Precision of a bundle's controls and of its whole model.
CONTROLS = "fp32"


@dataclass(frozen=True)
class Comparison:
    """A control's time over the bundle's: above 1 branching is faster."""

    name: str  # Of the control.
    ratio: float  # Of the medians.
    low: float  # Lower end of the 95 % interval.
    high: float | None  # Upper end; None if there are too few rounds for one.


@dataclass(frozen=True)
class Verdict:
    """The comparison of a bundle with its controls."""

    text: str  # One sentence.
    winner: str | None  # ``branched``, ``sequential``, or None where the times do not tell.
    ratios: Mapping[str, Ratio]  # Time of each control over the bundle's, by the control's name: above 1 branching is faster.
    precisions: tuple[str, ...]  # Precisions of the bundle's subgraphs.

    @property
    def equal_precision(self) -> bool:
        """Whether bundle and controls compute in the same precision."""
        return self.precisions == (CONTROLS,)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The bundle against each control."""
        return tuple(
            Comparison(name=name, ratio=r.value, low=r.low, high=r.high if isfinite(r.high) else None) for name, r in self.ratios.items()
        )


def judge_speed(result: Benchmark, precisions: Sequence[str] = (CONTROLS,), simulated: Sequence[str] = ()) -> Verdict:
    """Who is faster, if the intervals say it.

    Args:
        precisions: Precisions of the bundle's subgraphs.
        simulated: Processors that a simulator stands in for.
    """
    kinds = tuple(sorted(set(precisions)))
    rivals = [timing for timing in (result.sequential, result.same_macs, result.whole) if timing is not None]
    ratios = {rival.name: ratio_interval(result.rounds[rival.name], result.rounds[result.branched.name]) for rival in rivals}
    if simulated:
        names = ", ".join(simulated)
        text = f"no verdict on speed: the {names} is simulated here, so the numbers of the output count and the times do not"
        return Verdict(text, None, ratios, kinds)
    text, winner = _compare(result, rivals, ratios)
    if kinds != (CONTROLS,):
        text += f"; the subgraphs are {' and '.join(kinds)} and the controls {CONTROLS}, so this compares precisions too"
    return Verdict(text, winner, ratios, kinds)


def _compare(result: Benchmark, rivals: Sequence[Timing], ratios: Mapping[str, Ratio]) -> tuple[str, str | None]:
    cores = f"{len(result.cores)} core{'s' if len(result.cores) != 1 else ''}"
    if result.sequential is None:
        whole = f"the same net as one graph takes {result.whole.median_ms:.2f} ms on the same {cores}"
        return f"no comparison with the original: the bundle was written without controls; {whole}", None
    ratio, fastest = ratios[result.sequential.name], result.best_sequential or result.sequential
    against = (
        f"{ratios[fastest.name].value:.2f}× ({ratios[fastest.name]}) the speed of the best sequential run ({fastest.name}: the fastest of the "
        f"original and the network of the same MACs, on all cores or on one) on the same {cores}"
    )
    faster = [rival for rival in rivals if ratios[rival.name].side < 0]
    even = [rival for rival in rivals if ratios[rival.name].side == 0]
    best = min(faster, key=lambda rival: rival.median_ms, default=None)
    if ratio.side < 0:
        return (
            f"branching loses here: {against}; on cores of one kind that is expected, branches pay on processors of different kinds",
            "sequential",
        )
    if best is not None:
        start = "branching beats the original here" if ratio.side > 0 else "branching is no clear winner over the original here"
        return (
            f"{start} ({ratio.value:.2f}×, {ratio}, its speed), but loses to a sequential control on the same {cores}: "
            f"{best.name} takes {best.median_ms:.2f} ms",
            "sequential",
        )
    if ratio.side == 0:
        return f"no clear winner: branching has {against}, which rounds of this length cannot tell from equal", None
    if even:
        rival = min(even, key=lambda timing: timing.median_ms)
        return (
            f"branching beats the original here ({ratio.value:.2f}×, {ratio}, its speed); no clear winner against {rival.name} "
            f"({ratios[rival.name]}) on the same {cores}",
            None,
        )
    return f"branching wins here: {against}", "branched"
