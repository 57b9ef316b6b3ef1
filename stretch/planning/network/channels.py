"""Which channels of a graph must be kept or dropped together.

The graph is interpreted over pieces of channels instead of numbers: each kind's
rule (`predictors.channels`) gives the pieces of its output from those of its
inputs. Additions and depthwise convolutions unify groups, grouped convolutions
coarsen their units to whole convolution groups, concatenation puts pieces side
by side, flattening multiplies the channels per unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from predictors.channels import Groups, OperatorView, Pieces
from predictors.graph import OpGraph
from predictors.operators import kind_of


@dataclass(frozen=True)
class ChannelGroups:
    """Channel pieces of every tensor of a graph."""

    pieces: dict[str, Pieces]  # Per operator, its output channels as (group, channels per unit).
    units: dict[int, int]  # Number of units of each group.
    frozen: frozenset[int]  # Groups that must keep all units.
    input_group: int  # The group of the graph's input.

    def channels(self, name: str, kept: Mapping[int, int] | None = None) -> int:
        """Channels of operator `name` when groups keep `kept` units (all by default)."""
        return sum((kept or self.units)[group] * per for group, per in self.pieces[name])

    def widths(self, kept: Mapping[int, int]) -> dict[str, int]:
        """Channels of every operator when groups keep `kept` units."""
        return {name: sum([kept[group] * per for group, per in row]) for name, row in self.pieces.items()}

    @cached_property
    def per_unit(self) -> dict[int, int]:
        """Channels of one unit where its group is narrowest: at its producers."""
        per: dict[int, int] = {}
        for pieces in self.pieces.values():
            for group, size in pieces:
                per[group] = min(per.get(group, size), size)
        return per

    def position(self, name: str, channel: int, kept: Mapping[int, int]) -> int:
        """Where a channel of operator `name` stands when groups keep `kept` units; within a piece only where its group is frozen."""
        before = new = 0
        for group, size in self.pieces[name]:
            if before + self.units[group] * size > channel:
                break
            before += self.units[group] * size
            new += kept[group] * size
        return new + channel - before


def channel_groups(graph: OpGraph) -> ChannelGroups:
    """Interpret `graph` over channel pieces."""
    groups = Groups()
    pieces: dict[str, Pieces] = {}
    for op in graph.ops:
        seen = OperatorView(graph.input_shapes(op), op.attrs, op.shape)
        pieces[op.name] = kind_of(op.kind).channels(groups, seen, [pieces[i] for i in op.inputs])
    final = {name: tuple(groups.find(p) for p in row) for name, row in pieces.items()}
    roots = {group for row in final.values() for group, _ in row}
    return ChannelGroups(
        final, {g: groups.units[g] for g in roots}, frozenset(g for g in roots if groups.frozen[g]), final[graph.input.name][0][0]
    )
