"""Combinations of made-up figures, for rules to look at."""

import numpy as np

from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.network.segments import split_segments
from tests.predictors.networks import small_resnet

SEGMENT = next(segment for segment in split_segments(small_resnet()) if segment.branchable)


def combinations_of(branches=2, **figures):
    """Combinations of branches that have one figure after the other, and nothing else."""
    count = len(next(iter(figures.values())))
    result = {name: np.ones(count) for name in ("macs", "params", "slowest_ms", "fastest_ms", "peak_bytes")}
    result |= {name: np.ones((1, count)) for name in ("ms", "exchange_ms")}
    for name, values in figures.items():
        result[name] = np.array(values).reshape(result[name].shape)
    return SegmentOptions(SEGMENT, "project", ((),) * branches, **result)
