"""Which channels of a graph must be kept or dropped together.

The graph is interpreted over channel layouts instead of numbers. A layout is a
row of pieces; a piece is a whole *group* seen with some channels per unit. A
group is a set of units that are scaled as one: additions and depthwise
convolutions unify groups, grouped convolutions coarsen their units to whole
convolution groups, concatenation puts pieces side by side, flattening
multiplies the channels per unit. Where a rule does not know what happens to
single channels it freezes the groups it touches, which is always safe.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod

from predictors.graph import Op, OpGraph
from predictors.kinds import ACTIVATIONS, integer

Piece = tuple[int, int]
Layout = tuple[Piece, ...]


@dataclass(frozen=True)
class ChannelGroups:
    """Channel layout of every tensor of a graph.

    Args:
        layouts: Per operator, its output channels as (group, channels per unit).
        units: Number of units of each group.
        frozen: Groups that must keep all units.
        input_group: The group of the graph's input.
    """

    layouts: dict[str, Layout]
    units: dict[int, int]
    frozen: frozenset[int]
    input_group: int

    def channels(self, name: str, kept: dict[int, int] | None = None) -> int:
        """Channels of operator `name` when groups keep `kept` units (all by default)."""
        return sum((kept or self.units)[group] * per for group, per in self.layouts[name])


class _Solver:
    """Union-find over groups, with a factor where units were coarsened."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.factor: list[int] = []
        self.units: list[int] = []
        self.frozen: list[bool] = []

    def new(self, units: int, frozen: bool = False) -> int:
        group = len(self.parent)
        self.parent.append(group)
        self.factor.append(1)
        self.units.append(units)
        self.frozen.append(frozen)
        return group

    def find(self, piece: Piece) -> Piece:
        group, per = piece
        while self.parent[group] != group:
            per *= self.factor[group]
            group = self.parent[group]
        return group, per

    def coarsen(self, group: int, units: int) -> None:
        """Let root `group` have only `units` units, each that much larger."""
        factor = self.units[group] // units
        if factor == 1:
            return
        self.parent[group] = self.new(units, self.frozen[group])
        self.factor[group] = factor

    def unify(self, a: Piece, b: Piece) -> bool:
        """Make both pieces one group; False if their sizes differ."""
        (ga, pa), (gb, pb) = self.find(a), self.find(b)
        if self.units[ga] * pa != self.units[gb] * pb:
            return False
        if ga == gb:
            return True
        common = gcd(self.units[ga], self.units[gb])
        self.coarsen(ga, common)
        self.coarsen(gb, common)
        (ga, pa), (gb, pb) = self.find(a), self.find(b)
        # Equal sizes and equal units: the channels per unit are equal too.
        self.parent[ga] = gb
        self.factor[ga] = 1
        self.frozen[gb] = self.frozen[gb] or self.frozen[ga]
        return True

    def freeze(self, layout: Layout) -> None:
        for piece in layout:
            self.frozen[self.find(piece)[0]] = True


def channel_groups(graph: OpGraph) -> ChannelGroups:
    """Interpret `graph` over channel layouts.

    Returns:
        The layout of every operator's output. The input's group is not frozen:
        who scales decides how many channels arrive.
    """
    solver = _Solver()
    layouts: dict[str, Layout] = {}
    for op in graph.ops:
        rule = _RULES.get(op.kind, _freeze_all)
        layouts[op.name] = rule(solver, graph, op, [layouts[i] for i in op.inputs])
    final = {name: tuple(solver.find(p) for p in layout) for name, layout in layouts.items()}
    roots = {group for layout in final.values() for group, _ in layout}
    return ChannelGroups(
        final,
        {g: solver.units[g] for g in roots},
        frozenset(g for g in roots if solver.frozen[g]),
        final[graph.input.name][0][0],
    )


Rule = Callable[[_Solver, OpGraph, Op, Sequence[Layout]], Layout]


def _fresh(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    return ((solver.new(op.shape[1]), 1),)


def _same(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    return ins[0]


def _freeze_all(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    for layout in ins:
        solver.freeze(layout)
    return ((solver.new(op.shape[1] if len(op.shape) > 1 else 1, frozen=True), 1),)


def _conv(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    groups, out = integer(op.attrs, "groups"), integer(op.attrs, "out_channels")
    if groups == 1:
        return _fresh(solver, graph, op, ins)
    channels = graph.input_shapes(op)[0][1]
    if groups == channels:
        return tuple((group, per * (out // channels)) for group, per in ins[0])
    if len(ins[0]) > 1:
        return _freeze_all(solver, graph, op, ins)
    group, _ = solver.find(ins[0][0])
    units = gcd(solver.units[group], groups)
    solver.coarsen(group, units)
    group, _ = solver.find(ins[0][0])
    return ((group, out // units),)


def _elementwise(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    shapes = graph.input_shapes(op)
    wide = [layout for layout, shape in zip(ins, shapes, strict=True) if shape[1] == op.shape[1]]
    for layout, shape in zip(ins, shapes, strict=True):
        if shape[1] != op.shape[1]:
            solver.freeze(layout)
    first = wide[0]
    for other in wide[1:]:
        pairs = list(zip(first, other, strict=False))
        if len(first) != len(other) or not all(solver.unify(a, b) for a, b in pairs):
            solver.freeze(first)
            solver.freeze(other)
    return first


def _concat(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    return tuple(piece for layout in ins for piece in layout)


def _flatten(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    pixels = prod(graph.input_shapes(op)[0][2:])
    return tuple((group, per * pixels) for group, per in ins[0])


def _slice(solver: _Solver, graph: OpGraph, op: Op, ins: Sequence[Layout]) -> Layout:
    start, stop, at = integer(op.attrs, "start"), integer(op.attrs, "stop"), 0
    inside: list[Piece] = []
    for piece in ins[0]:
        group, per = solver.find(piece)
        end = at + solver.units[group] * per
        if start <= at and end <= stop:
            inside.append(piece)
        elif at < stop and start < end:
            return _freeze_all(solver, graph, op, ins)
        at = end
    return tuple(inside)


_RULES: dict[str, Rule] = {
    "input": _fresh,
    "conv": _conv,
    "linear": _fresh,
    "add": _elementwise,
    "mul": _elementwise,
    "concat": _concat,
    "flatten": _flatten,
    "slice": _slice,
    **dict.fromkeys(
        (
            *ACTIVATIONS,
            *("batch_norm", "layer_norm", "prelu", "scale", "shift", "add_scalar", "mul_scalar"),
            *("max_pool", "avg_pool", "global_avg_pool", "global_max_pool", "pad", "upsample", "unflatten"),
            *("dropout", "stochastic_depth", "identity"),
        ),
        _same,
    ),
}
