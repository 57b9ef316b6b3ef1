"""The layers of a search whose segments may be divided exactly: parts of stages, and every way to run them.

A stage in scaled copies spans the parts of the stage; ways to divide parts, and runs of them, are
added by `stretch.planning.divisions`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from predictors.errors import InfeasibleError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.joins import JoinKind
from predictors.shapes import Attr, Shape
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import BranchCost
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.design.division import of_kinds
from stretch.planning.messages import Message, OptionName
from stretch.planning.network.segments import Segment, clean_cuts, cut_segment, divide
from stretch.planning.own_options import SINGLE
from stretch.planning.search.lazy_options import LazyOptions
from stretch.planning.search.space import DesignSpace

Floats = NDArray[np.float64]
#: What parts that are built alike have in common.
Structure = tuple[tuple[str, tuple[int, ...], tuple[tuple[str, Attr], ...], Shape], ...]


class _PartsCache:
    """Parts of networks, the same ones each time, so that what is built of them is found again."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, frozenset[str], bool, bool], tuple[Segment, list[Segment]]] = {}

    def parts(self, graph: OpGraph, stage: Segment, clean: frozenset[str], every: bool, vectors: bool) -> list[Segment]:
        """Those of a stage, as `divide` makes them."""
        key = (id(stage), clean, every, vectors)
        if key not in self._parts:
            self._parts[key] = stage, divide(graph, stage, clean, every=every, vectors=vectors)
        return self._parts[key][1]


class PartSpace:
    """Parts of a space of stages, and the ways to run them.

    Args:
        space: Designs of its stages, or of segments that meet where a request says.
        single: Whether parts are as small as kernels let them be, and each is divided by itself.
        vectors: Whether linear layers one after the other are parts of their own.
    """

    def __init__(
        self, graph: OpGraph, space: DesignSpace, *, divided: bool = True, merged: bool = True, single: bool = False, vectors: bool = False
    ) -> None:
        self.graph, self.space, self.merged, self.single = graph, space, merged, single
        costs = space.costs
        clean = clean_cuts(graph, [costs.predictor.kernels(graph, name) for name in space.processors])
        divisions = costs.built(_PartsCache)
        key = (frozenset(clean), single, vectors)
        self.by_stage = [divisions.parts(graph, stage, *key) if divided else [stage] for stage in space.segments]
        self.parts: list[Segment] = [part for parts in self.by_stage for part in parts]
        self.stage = [i for i, parts in enumerate(self.by_stage) for _ in parts]
        self.wholes = [[space.whole(part, p, part.in_width) for p in space.processors] for part in self.parts]
        self._alone_ms: dict[int, Floats] = {}

    def mixed(self, kinds: Collection[str] = ("rows",)) -> DesignSpace:
        """The designs of the space and those whose segments are divided."""
        first_part = [self.stage.index(i) for i in range(len(self.by_stage))] + [len(self.parts)]
        options: list[list[SegmentOptions]] = [list(wholes) for wholes in self.wholes]
        offers: list[list[LazyOptions]] = [[] for _ in self.parts]
        for stage, (group, offered) in enumerate(zip(self.space.ready, self.space.offers, strict=True)):
            at = first_part[stage]
            options[at] += [replace(o, span=first_part[stage + o.span] - at) for o in group if o.branched]
            offers[at] += [replace(offer, span=first_part[stage + offer.span] - at) for offer in offered]
        for division in of_kinds(kinds):
            for first, segment_options in division.ways(self):
                options[first].append(segment_options)
        other = copy(self.space)
        other.segments, other.options = tuple(self.parts), options
        other.arriving = tuple(part.in_width for part in self.parts)
        return other.with_offers(offers)

    def pieces(self) -> Iterator[tuple[Segment, int, int, list[float]]]:
        """Every part, and every stage of several: its first and last part, and its time on each processor alone, ms."""
        for at, part in enumerate(self.parts):
            stage, parts = self.space.segments[self.stage[at]], self.by_stage[self.stage[at]]
            several = len(parts) > 1 and part is parts[0] and not self.single
            for segment, last in [(part, at), *([(stage, at + len(parts) - 1)] if several else [])]:
                yield segment, at, last, [self.alone_ms(at, last, i) for i in range(len(self.space.processors))]

    def run_options(self, options: SegmentOptions, first: int, last: int) -> SegmentOptions:
        """Ways to run a run of parts, with the rules applied."""
        alone_ms = min(self.alone_ms(first, last, i) for i in range(len(self.space.processors)))
        return self.space.checked(replace(options, span=last - first + 1, alone_ms=alone_ms))

    def alone_ms(self, first: int, last: int, processor: int) -> float:
        """A run on one processor, ms."""
        return float(self.alone(processor)[first, last])

    def alone(self, processor: int) -> Floats:
        """Every run on one processor, ms (first part × last part)."""
        if processor not in self._alone_ms:
            ms = np.array([options[processor].slowest_ms[0] for options in self.wholes])
            self._alone_ms[processor] = np.cumsum(np.triu(np.tile(ms, (len(ms), 1))), axis=1)
        return self._alone_ms[processor]

    def segment(self, first: int, last: int) -> Segment:
        """A run as a segment."""
        run = self.parts[first : last + 1]
        return run[0] if len(run) == 1 else cut_segment(self.graph, self.name(first, last), run[0].start, run[-1].end)

    def name(self, first: int, last: int) -> str:
        """Name of a run: of its stage or stages where it is all of them, such as ``s2`` or ``s2_to_s4``, else of its parts."""
        a, b = self.stage[first], self.stage[last]
        names = [stage.name for stage in self.space.segments]
        complete = self.by_stage[a][0] is self.parts[first] and self.by_stage[b][-1] is self.parts[last]
        if complete:
            return names[a] if a == b else f"{names[a]}_to_{names[b]}"
        if first == last:
            return self.parts[first].name
        return f"{self.parts[first].name}_to_{self.parts[last].name}"


def with_exact_kinds(graph: OpGraph, config: PlanConfig, space: DesignSpace) -> DesignSpace:
    """The designs of a space, and those in which parts and runs of them are divided exactly.

    Args:
        config: The request, checked. Meeting points that it names are the only ones; stages that must not merge are
            divided each by itself.
    """
    parts = PartSpace(
        graph,
        space,
        divided=not config.meet,
        merged=config.merge != "never",
        single=config.strategy in SINGLE,
        vectors=any(division.vectors for division in of_kinds(config.planned_kinds)),
    )
    mixed = parts.mixed(config.planned_kinds)
    if config.exact and config.n_meet and not any(any(mixed.offers) or o.branched for options in mixed.ready for o in options):
        raise _nothing_to_split(graph, config)
    return mixed


def without_stretched(space: DesignSpace) -> DesignSpace:
    """The designs of a space that compute what the original computes."""
    other = copy(space)
    other.options = [[o for o in options if o.exact or not o.branched] for options in space.ready]
    other.thinned = False
    return other


def _nothing_to_split(graph: OpGraph, config: PlanConfig) -> InfeasibleError:
    """Why no segment of a network can be divided exactly."""
    hint = Message("let segments be stretched, which makes another network, with {}", OptionName("kinds", ("stretch",)))
    kinds = " or ".join(config.planned_kinds)
    why = next((f": {obstacle}" for division in of_kinds(config.planned_kinds) if (obstacle := division.obstacle(graph))), "")
    return InfeasibleError(f"`{graph.name}` has no segment whose division by {kinds} might pay on these processors{why}", hint)


def structure(graph: OpGraph) -> Structure:
    """What parts that are built alike have in common: everything but names."""
    number = {op.name: i for i, op in enumerate(graph.ops)}
    return tuple((op.kind, tuple(number[name] for name in op.inputs), _attrs(op.attrs), op.shape) for op in graph.ops)


def _attrs(attrs: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    return tuple(sorted(attrs.items()))


def part_cost(space: DesignSpace, segment: Segment, processor: str, graph: OpGraph, kernels: Sequence[Kernel]) -> BranchCost:
    """What a part of a segment costs, which reads all that arrives."""
    costs = space.costs
    time, item = costs.kernels_time(kernels, processor), costs.item_bytes(processor)
    return BranchCost(
        processor,
        segment.depth,
        segment.width,
        "none",
        sum(kernel.macs for kernel in kernels),
        graph.params,
        time.ms,
        time.contended_ms,
        max(((k.cost.reads + k.cost.writes) * item for k in kernels), default=0),
        reads=prod(graph.input.shape),
        writes=prod(graph.by_name[graph.output].shape),
    )


def part_options(space: DesignSpace, segment: Segment, kind: JoinKind, rows: Sequence[Sequence[BranchCost]], word: str) -> SegmentOptions:
    """One sequence of processors, a segment divided among them in each of several ways.

    Args:
        rows: Of each way the branches.
        word: Of the division.
    """
    costs = space.costs
    computed = np.array([[b.contended_ms for b in row] for row in rows], float).T
    leaving = np.array([costs.transfers(b.processor, costs.host, np.array([row[i].writes for row in rows])) for i, b in enumerate(rows[0])])
    entering = np.array([[costs.transfer(holder, b.processor, b.reads) for b in rows[0]] for holder in space.holders], float)
    moved = entering[:, :, None] + leaving
    join = costs.join(segment, kind, segment.width, len(rows[0]))
    return SegmentOptions(
        segment,
        kind,
        tuple(tuple(row[i] for row in rows) for i in range(len(rows[0]))),
        macs=np.full(len(rows), segment.graph.macs),
        params=np.full(len(rows), segment.graph.params),
        ms=(computed + moved).max(axis=1) + join,
        allowed=np.ones((len(space.holders), len(rows)), bool),
        depth=np.full(len(rows), float(len(rows[0]))),
        exchange_ms=moved.max(axis=1) + join,
        slowest_ms=computed.max(axis=0),
        fastest_ms=computed.min(axis=0),
        peak_bytes=np.array([sum(b.peak_bytes for b in row) for row in rows]),
        busy=lambda: {b.processor: item for b, item in zip(rows[0], computed, strict=True)},
        division=word,
    )
