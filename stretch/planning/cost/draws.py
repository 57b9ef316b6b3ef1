"""A timeline in parts that are uncertain, and the time that it keeps in most draws of them (`stretch.planning.cost.uncertain`)."""

from collections.abc import Mapping, Sequence

import numpy as np

from predictors.devices import DeviceProfile
from stretch.planning.cost.compare import Branch, PredictedRun
from stretch.planning.cost.times import SegmentTime
from stretch.planning.cost.uncertain import Floats, link

#: What a robust design is chosen by: the time that nine in ten draws keep.
ROBUST = 0.9


def uncertain_run(segments: Sequence[SegmentTime], device: DeviceProfile, output: Mapping[str, float] | None = None) -> PredictedRun:
    """Segments one after the other, each time by the number it is proportional to.

    Args:
        output: Transfer of the result to the host, ms by processor at the far end of the link.
    """
    branches = [
        [Branch.of(branch.estimate, device, branch.links, branch.contention_ms, branch.waits) for branch in row.branches]
        for row in segments
    ]
    return PredictedRun(branches, sum(row.join_ms for row in segments), {link(far, device): ms for far, ms in (output or {}).items()})


def kept_ms(draws: Floats) -> float:
    """The time that nine in ten draws keep."""
    return float(np.quantile(draws, ROBUST))
