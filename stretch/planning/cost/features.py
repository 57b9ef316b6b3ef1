"""What accuracy predictors see of a segment that was changed: numbers that are zero for the original."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from predictors.graph import OpGraph
from predictors.joins import join_of
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import design_segments, scaled_branches
from stretch.planning.network.segments import Segment

Floats = NDArray[np.float64]

#: Each from the branches' depth ratios and width ratios, (branches, n), and the segment's multiply-accumulates over the original's, (n,).
FEATURES: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "log_macs": lambda depths, widths, macs: np.log(macs),
    "log_mean_width": lambda depths, widths, macs: np.log(widths).mean(0),
    "log_widest": lambda depths, widths, macs: np.log(widths).max(0),
    "log_mean_depth": lambda depths, widths, macs: np.log(depths).mean(0),
    "log_deepest": lambda depths, widths, macs: np.log(depths).max(0),
    # multiply-accumulates grow with the depth and with the square of the width
    "log_largest": lambda depths, widths, macs: (np.log(depths) + 2 * np.log(widths)).max(0),
    "log_branches": lambda depths, widths, macs: np.full(len(macs), np.log(len(depths))),
}


def features(depths: Floats, widths: Floats, macs: Floats, names: Sequence[str]) -> Floats:
    """What a predictor sees of one segment.

    Args:
        depths: Depth ratios, (branches, n).
        widths: Width ratios, (branches, n).
        macs: Multiply-accumulates over the original segment's, (n,).
        names: Of `FEATURES`.
    """
    return np.stack([FEATURES[name](depths, widths, macs) for name in names], axis=1)


def way_features(options: Ways, names: Sequence[str]) -> Floats:
    """The features of every option of a segment in scaled copies.

    Args:
        names: Of `FEATURES`.
    """
    segment = options.segment
    grid = options.scales_of()

    def ratios(of: str, whole: int) -> Floats:
        return np.stack([np.array([getattr(b, of) for b in c])[g] for c, g in zip(options.candidates, grid, strict=True)]) / whole

    return features(ratios("depth", segment.depth), ratios("width", segment.width), options.macs / segment.graph.macs, names)


def changed_segments(graph: OpGraph, design: BranchDesign, names: Sequence[str]) -> list[tuple[Segment, Floats]]:
    """Every segment of a design that is not the original's, neither whole at full size nor exact parts of it, with its features.

    Args:
        names: Of `FEATURES`.
    """
    result = []
    for part, segment, scaled in zip(design.segments, design_segments(graph, design), scaled_branches(graph, design), strict=True):
        join = join_of(part.join)
        same = all((b.depth, b.width, b.entry) == (segment.depth, segment.width, "none") for b in part.branches)
        if join.exact or (part.whole and same and not join.convolves):
            continue
        depths = np.array([[b.depth / segment.depth] for b in part.branches])
        widths = np.array([[b.width / segment.width] for b in part.branches])
        macs = np.array([sum(b.graph.macs for b in scaled) / segment.graph.macs])
        result.append((segment, features(depths, widths, macs, names)[0]))
    return result
