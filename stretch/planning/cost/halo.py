"""What bands of rows compute twice, as time."""

from collections.abc import Sequence
from typing import NamedTuple

from predictors.graph import OpGraph
from predictors.predictor import Estimate
from predictors.rows import height


class TimedBand(NamedTuple):
    """A band of a segment."""

    graph: OpGraph  # Its operators, called as in the segment.
    estimate: Estimate  # What they take alone.
    contention: float  # Factor on that beside the other bands.


def halo_ms(whole: OpGraph, bands: Sequence[TimedBand]) -> float:
    """Time that bands spend on rows that the segment in one piece computes once, ms, all bands together.

    Of an operator's rows, summed over the bands, those beyond the rows of the whole are
    computed twice; a kernel's time counts with that share of the rows of its operators.
    What the kernel takes whatever its rows is a part of its time, so less may be won
    where the halo goes; cutting rows out is not computing, and counts for nothing.
    """
    rows: dict[str, int] = {}
    for band in bands:
        for op in band.graph.ops:
            rows[op.name] = rows.get(op.name, 0) + height(op.shape)
    twice = {
        name: max(0.0, 1 - height(whole.by_name[name].shape) / count) for name, count in rows.items() if name in whole.by_name and count
    }
    total = 0.0
    for band in bands:
        for each in band.estimate.kernels:
            share = next((twice[name] for name in each.kernel.ops if name in twice), 0.0)
            total += each.time.ms * share * band.contention
    return total
