"""Ways and designs of a space to be measured: some of each segment's, and whole designs at random."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretch.planning.cost.accuracy import SEGMENT_FEATURES, way_features
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchDesign, SegmentDesign
from stretch.planning.search.space import DesignSpace

Floats = NDArray[np.float64]

#: Multiply-accumulates over the segment's of ways that designs are made of: the whole design must come near the original's.
NEAR = (0.85, 1.15)
#: Times the fastest way of its segment that a way may take to be measured: slower ones are seldom chosen.
FAST = 1.5
#: Attempts at a random design before the space is taken to have no more.
ATTEMPTS = 200


@dataclass(frozen=True)
class Trial:
    """One way to run one segment."""

    ways: Ways  # The ways it is one of.
    index: int  # Which.
    first: int  # Number of the first stage that the segment consists of.

    def stages(self, space: DesignSpace) -> tuple[str, ...]:
        """Names of the stages that the segment consists of."""
        return tuple(stage.name for stage in space.segments[self.first : self.first + self.ways.span])


def trials(space: DesignSpace, number: int) -> list[Trial]:
    """Ways to run every segment that may be stretched, merged stages too: of each the fastest, then those least like the ones before.

    Returns:
        First one way of every segment, short segments first, then a second of every segment, and so on.
    """
    rounds: list[list[Trial]] = [[] for _ in range(number)]
    for first, groups in sorted(_stretched(space), key=lambda one: one[1][0].span):
        for place, trial in enumerate(_different(space, first, groups, number)):
            rounds[place].append(trial)
    return [trial for some in rounds for trial in some]


def _stretched(space: DesignSpace) -> Iterator[tuple[int, list[Ways]]]:
    """The ways of every run of stages that may be stretched, with the number of its first stage."""
    for first, options in enumerate(space.options):
        spans = sorted({ways.span for ways in options if ways.branched and not ways.exact})
        for span in spans:
            yield first, [ways for ways in options if ways.span == span and ways.branched and not ways.exact]


def _different(space: DesignSpace, first: int, groups: Sequence[Ways], count: int) -> list[Trial]:
    """Ways that are fast and unlike each other."""
    ways = [(group, index) for group in groups for index in _takeable(group)]
    if not ways:
        return []
    ms = np.array([_fastest(group)[index] for group, index in ways])
    fast = ms <= FAST * ms.min()
    rows = np.concatenate([way_features(group, tuple(SEGMENT_FEATURES))[_takeable(group)] for group in groups])
    spread = rows.std(0)
    rows = rows / np.where(spread > 0, spread, 1.0)
    chosen = [int(np.argmin(ms))]
    while len(chosen) < min(count, int(fast.sum())):
        away = np.min([np.square(rows - rows[i]).sum(1) for i in chosen], axis=0)
        away[~fast] = -1.0
        best = int(np.argmax(away))
        if away[best] <= 0:
            break
        chosen.append(best)
    return [Trial(*ways[i], first) for i in chosen]


def _takeable(group: Ways) -> NDArray[np.int64]:
    """Numbers of the combinations that keep to the rules and compute about as much as the segment."""
    ratio = group.macs / group.segment.graph.macs
    indices: NDArray[np.int64] = np.flatnonzero(group.allowed.any(axis=0) & (ratio >= NEAR[0]) & (ratio <= NEAR[1]))
    return indices


def _fastest(group: Ways) -> Floats:
    """Time of each combination from the holder it is fastest from, ms."""
    smallest: Floats = np.where(group.allowed, group.ms, np.inf).min(axis=0)
    return smallest


def random_designs(space: DesignSpace, model: str, device: str, count: int, macs: tuple[float, float], seed: int) -> list[BranchDesign]:
    """Designs at random: every stage stays whole or begins a segment in scaled copies, merged with some that follow or not.

    Args:
        space: Designs of a network's stages, merged ones among them.
        count: How many, at most; fewer where the space has no more.
        macs: Multiply-accumulates of a design over the original's.
    """
    rng = np.random.default_rng(seed)
    whole = sum(stage.graph.macs for stage in space.segments)
    designs: dict[tuple[SegmentDesign, ...], None] = {}
    for _ in range(ATTEMPTS * count):
        if len(designs) == count:
            break
        parts, total = _random(space, rng)
        if any(not part.whole for part in parts) and macs[0] * whole <= total <= macs[1] * whole:
            designs[parts] = None
    return [BranchDesign(model, device, parts) for parts in designs]


def _random(space: DesignSpace, rng: np.random.Generator) -> tuple[tuple[SegmentDesign, ...], int]:
    """Segments of a random design and its multiply-accumulates."""
    parts: list[SegmentDesign] = []
    at, macs = 0, 0
    runs: dict[int, list[list[Ways]]] = {}
    for first, groups in _stretched(space):
        usable = [group for group in groups if len(_takeable(group))]
        if usable:
            runs.setdefault(first, []).append(usable)
    while at < len(space.segments):
        if at in runs and rng.random() < 0.5:
            groups = runs[at][rng.integers(len(runs[at]))]
            group = groups[rng.integers(len(groups))]
            index = int(rng.choice(_takeable(group)))
        else:
            group, index = next(ways for ways in space.options[at] if not ways.branched), 0
        parts += group.designs(index, space.costs)
        macs += int(group.macs[index])
        at += group.span
    return tuple(parts), macs
