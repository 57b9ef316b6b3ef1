"""Designs in which processors compute some channels of a part: of its output, or hidden ones whose projections are added.

A part whose halves compute more than `MOST_REPEATED` twice is not offered, nor a
division that takes more than `WORTH` times what the fastest processor takes for
the part alone wherever it is. Parts that are built alike are costed once. Where
the sum of hidden channels is followed by what needs it whole, such as the ReLU of
a residual block, the part is divided up to the sum and the host does the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.joins import JoinKind, join_of, joins_that
from predictors.operators import kind_of
from predictors.slices import Channels, width
from stretch.planning.cost.bands import Structure, structure
from stretch.planning.cost.branch import BranchCost
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.design.channels import channel_part
from stretch.planning.network.divisions import channel_step, divided_tensor, find_hidden, is_between_groups
from stretch.planning.network.segments import Segment, cut_segment
from stretch.planning.network.units import cut_points
from stretch.planning.search.pathed import part_cost, part_options
from stretch.planning.search.space import DesignSpace
from stretch.planning.search.splits import Split, coarse, finer, orders

#: Multiply-accumulates that the halves of a part may do beyond those of the part, as a share of it.
MOST_REPEATED = 0.5
#: Times the part on the fastest processor that its branches may take at the best place tried first.
WORTH = 1.1

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Division:
    """A tensor of a part whose channels may be divided."""

    join: JoinKind  # How branches meet.
    segment: Segment  # The part, or what is before its tail.
    tail: Segment | None  # What needs the whole sum; None for nothing.
    channels: int  # Channels of the tensor.
    step: int  # Channels that belong together.

    @property
    def hidden(self) -> bool:
        return join_of(self.join).hidden

    def ranges(self, split: Split, unit: int) -> list[Channels]:
        """Channels of each branch, divided behind some multiples of a unit."""
        return [Channels(*pair) for pair in pairwise((0, *(place * unit for place in split), self.channels))]


class ChannelWays:
    """Ways to compute parts by channels, on every subset of the processors.

    Args:
        space: Where the options are added: its processors, costs and rules.
    """

    def __init__(self, graph: OpGraph, space: DesignSpace) -> None:
        self.graph, self.space = graph, space
        self._alike: dict[Structure, list[SegmentOptions]] = {}

    def of(self, part: Segment, alone_ms: Sequence[float]) -> list[SegmentOptions]:
        """Ways to compute a part, one object for each sequence of processors; none where it is not divided by channels."""
        key, built = structure(part.graph), self.space.costs.built(_Built)
        if key not in self._alike:
            self._alike[key] = _DividedPart(
                self.space, self.graph, part, alone_ms, built.parts.setdefault(key, _DividedChannels())
            ).options()
        segments = {join: self._sections(part, join, built) for join in {options.join for options in self._alike[key]}}
        result = [replace(options, segment=segments[options.join][0], tail=segments[options.join][1]) for options in self._alike[key]]
        return [replace(options, allowed=self.space.allowed(options)) for options in result]

    def _sections(self, part: Segment, join: JoinKind, built: "_Built") -> tuple[Segment, Segment | None]:
        key = (id(part), join)
        if key not in built.sections:
            built.sections[key] = part, _sections(self.graph, part, join)
        return built.sections[key][1]


class _Built:
    """What is known of parts of networks that are built alike, whatever the device, by their structure."""

    def __init__(self) -> None:
        self.parts: dict[Structure, _DividedChannels] = {}
        self.sections: dict[tuple[int, JoinKind], tuple[Segment, tuple[Segment, Segment | None]]] = {}


class _DividedChannels:
    """Some channels of a part, as graphs and as the kernels of a backend."""

    def __init__(self) -> None:
        self.divisions: list[_Division] | None = None
        self.graphs: dict[tuple[JoinKind, Channels], OpGraph | None] = {}
        self.kernels: dict[tuple[JoinKind, Channels, str, tuple[str, ...]], list[Kernel]] = {}


class _DividedPart:
    """One part and its divisions."""

    def __init__(self, space: DesignSpace, graph: OpGraph, part: Segment, alone_ms: Sequence[float], divided: _DividedChannels) -> None:
        self.space, self.graph, self.part, self.alone_ms = space, graph, part, alone_ms
        self._divided_once, self._graphs, self._kernels = divided, divided.graphs, divided.kernels
        self._costs: dict[tuple[JoinKind, Channels, str], BranchCost] = {}

    def options(self) -> list[SegmentOptions]:
        """Every way that is worth it."""
        result = []
        for division in self._divisions():
            for count in range(2, len(self.space.processors) + 1):
                more = [
                    options
                    for subset in combinations(self.space.processors, count)
                    for order in self._orders(division, subset)
                    if (options := self._divided(division, order)) is not None
                ]
                if not more:
                    # what does not pay in two branches does not in more
                    break
                result += more
        return result

    def _divisions(self) -> list[_Division]:
        """How the part may be divided on these processors."""
        if self._divided_once.divisions is None:
            self._divided_once.divisions = self._every_division()
        joined = self.space.costs.host in self.space.processors
        return [division for division in self._divided_once.divisions if division.tail is None or joined]

    def _every_division(self) -> list[_Division]:
        """How the part may be divided; not where halves compute too much twice."""
        every_division = []
        for join in joins_that(lambda join: join.channels):
            segment, tail = _sections(self.graph, self.part, join)
            try:
                tensor = divided_tensor(segment.graph, hidden=join_of(join).hidden)
            except StretchError:
                continue
            division = _Division(join, segment, tail, width(segment.graph.by_name[tensor].shape), channel_step(segment.graph, tensor))
            middle = division.channels // division.step // 2
            if not middle or not is_between_groups(segment.graph, tensor, Channels(0, middle * division.step)):
                continue
            halves = [self._graph(division, half) for half in division.ranges((middle,), division.step)]
            macs, known = segment.graph.macs, [half.macs for half in halves if half is not None]
            if macs and len(known) == len(halves) and sum(known) / macs - 1 <= MOST_REPEATED:
                every_division.append(division)
        return every_division

    def _orders(self, division: _Division, subset: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Sequences of processors that differ: of sums, in which of them has what is added once."""
        if division.hidden:
            return [(first, *(name for name in subset if name != first)) for first in subset]
        return orders(subset)

    def _divided(self, division: _Division, order: tuple[str, ...]) -> SegmentOptions | None:
        """One sequence of processors, divided at every place that is offered; None where that is not worth it."""
        costs = self.space.costs
        unit = lcm(division.step, *(costs.align(name) for name in order))
        # what is left over behind the last whole unit belongs to the last branch
        units = -(-division.channels // unit)
        if units < len(order):
            return None
        tried = self._rows(division, order, coarse(units, len(order)), unit)
        times = self._times(list(tried.values()), order) if tried else []
        if not self._pays(times, division, order):
            return None
        places = finer(units, len(order), list(tried), times)
        rows = list({**tried, **self._rows(division, order, places, unit)}.values())
        options = replace(part_options(self.space, division.segment, division.join, rows), alone_ms=min(self.alone_ms))
        if division.tail is None:
            return options
        after = self._after(division)
        host = self.space.costs.host

        def busy() -> dict[str, Floats]:
            current = options.busy()
            return {**current, host: current.get(host, np.zeros(len(rows))) + after.ms}

        return replace(
            options,
            tail=division.tail,
            ms=options.ms + after.ms,
            macs=options.macs + after.macs,
            params=options.params + after.params,
            busy=busy,
        )

    def _after(self, division: _Division) -> BranchCost:
        """What the host does behind the sum."""
        assert division.tail is not None
        return self.space.costs.whole(division.tail, self.space.costs.host)

    def _rows(self, division: _Division, order: tuple[str, ...], splits: Sequence[Split], unit: int) -> dict[Split, list[BranchCost]]:
        """The branches at each place; places between which a branch would compute nothing are left out."""
        wanted = {split: division.ranges(split, unit) for split in splits}
        able = {s: ranges for s, ranges in wanted.items() if all(self._graph(division, item) is not None for item in ranges)}
        for at, processor in enumerate(order):
            # at once, since a fit's trees are walked for many kernels in little more time than for one
            new = {ranges[at] for ranges in able.values() if (division.join, ranges[at], processor) not in self._costs}
            self.space.costs.kernels_time([k for item in new for k in self._launched(division, item, processor)], processor)
        return {
            split: [self._cost(division, item, processor) for item, processor in zip(ranges, order, strict=True)]
            for split, ranges in able.items()
        }

    def _graph(self, division: _Division, channels: Channels) -> OpGraph | None:
        """The graph of some channels; None where there is nothing to compute."""
        key = (division.join, channels)
        if key not in self._graphs:
            segment = division.segment
            try:
                self._graphs[key] = channel_part(segment.graph, segment.name, channels, hidden=division.hidden).graph
            except StretchError:
                self._graphs[key] = None
        return self._graphs[key]

    def _launched(self, division: _Division, channels: Channels, processor: str) -> list[Kernel]:
        """Kernels of some channels; those of one backend are the same on all its processors."""
        predictor = self.space.costs.predictor
        profile = predictor.device.processor(processor).profile
        key = (division.join, channels, profile.backend, profile.unsupported)
        if key not in self._kernels:
            graph = self._graph(division, channels)
            self._kernels[key] = predictor.kernels(graph, processor) if graph is not None else []
        return self._kernels[key]

    def _cost(self, division: _Division, channels: Channels, processor: str) -> BranchCost:
        key = (division.join, channels, processor)
        if key not in self._costs:
            graph = self._graph(division, channels)
            assert graph is not None
            cost = part_cost(self.space, division.segment, processor, graph, self._launched(division, channels, processor))
            self._costs[key] = cost._replace(channels=(channels.start, channels.stop))
        return self._costs[key]

    def _times(self, rows: Sequence[Sequence[BranchCost]], order: tuple[str, ...]) -> list[Floats]:
        """For each holder, the time of every branch with its transfers (branches × places), ms."""
        costs, arriving = self.space.costs, prod(self.part.graph.input.shape)
        leaving = np.array([costs.transfers(p, costs.host, np.array([row[i].writes for row in rows])) for i, p in enumerate(order)])
        alone = np.array([[b.contended_ms for b in row] for row in rows]).T
        entering = [np.array([[costs.transfer(holder, p, arriving)] for p in order]) for holder in self.space.holders]
        return [alone + leaving + item for item in entering]

    def _pays(self, tried: Sequence[Floats], division: _Division, order: tuple[str, ...]) -> bool:
        """Whether the branches take about as long as the fastest processor alone, or less, from one of the holders: by their times there."""
        costs, part = self.space.costs, self.part
        arriving, written = prod(part.graph.input.shape), prod(part.graph.by_name[part.end].shape)
        join = costs.join(division.segment, division.join, part.width, len(order))
        join += self._after(division).ms if division.tail is not None else 0.0
        for holder, times in zip(self.space.holders, tried, strict=False):
            alone = min(
                costs.transfer(holder, p, arriving) + ms + costs.transfer(p, costs.host, written)
                for p, ms in zip(self.space.processors, self.alone_ms, strict=True)
            )
            if times.max(axis=0).min() + join <= WORTH * alone:
                return True
        return False


def _sections(graph: OpGraph, part: Segment, join: JoinKind) -> tuple[Segment, Segment | None]:
    """What of a part is divided, and its tail: of a sum, what has no weights and needs all of it."""
    if not join_of(join).hidden:
        return part, None
    order = {op.name: i for i, op in enumerate(part.graph.ops)}
    for end in reversed(cut_points(part.graph)[1:]):
        behind = part.graph.ops[order[end] + 1 :]
        if any(not kind_of(op.kind).weightless for op in behind):
            break
        head = part if end == part.end else cut_segment(graph, part.name, part.start, end)
        try:
            find_hidden(head.graph)
        except StretchError:
            continue
        return head, None if head is part else cut_segment(graph, f"{part.name}_rest", end, part.end)
    return part, None
