"""Relations between the channels of an operator and those of its inputs, and its attributes with fewer channels.

The channels of a tensor are a row of *pieces*; a piece is a whole *group*
seen with some channels per unit. A group is a set of units that are scaled as
one. A kind's rule gives the pieces of its output from those of its inputs; where
it does not know what happens to single channels it freezes the groups it
touches, which is always safe.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from predictors.shapes import Attrs, Shape, width

Piece = tuple[int, int]
Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class OperatorView:
    """Facts that a rule may read."""

    inputs: Sequence[Shape]  # Shapes of the operator's inputs.
    attrs: Attrs  # Its attributes.
    shape: Shape  # Of its output.


@dataclass(frozen=True)
class Narrowed:
    """Channels of an operator in a scaled copy."""

    before: int  # Channels that the original reads.
    after: int  # Channels that the copy reads.
    out: int  # Channels that the copy writes.
    position: Callable[[int], int]  # Position, in the copy's input, of a channel that the original reads.


class Groups:
    """Union-find over groups, with a factor where units were coarsened.

    Attributes:
        units: Number of units of each group.
        frozen: Whether each group must keep them all.
    """

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._factor: list[int] = []
        self.units: list[int] = []
        self.frozen: list[bool] = []

    def new(self, units: int, frozen: bool = False) -> int:
        """Make a group with some units; return its number."""
        group = len(self._parent)
        self._parent.append(group)
        self._factor.append(1)
        self.units.append(units)
        self.frozen.append(frozen)
        return group

    def find(self, piece: Piece) -> Piece:
        """Return the piece in terms of the group that its own was made part of."""
        group, per = piece
        while self._parent[group] != group:
            per *= self._factor[group]
            group = self._parent[group]
        return group, per

    def size(self, piece: Piece) -> int:
        """Return the channels of a piece."""
        group, per = self.find(piece)
        return self.units[group] * per

    def coarsen(self, group: int, units: int) -> None:
        """Let `group` have only `units` units, each that much larger."""
        factor = self.units[group] // units
        if factor == 1:
            return
        self._parent[group] = self.new(units, self.frozen[group])
        self._factor[group] = factor

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
        self._parent[ga] = gb
        self._factor[ga] = 1
        self.frozen[gb] = self.frozen[gb] or self.frozen[ga]
        return True

    def tie(self, pieces: Sequence[Piece], units: int) -> bool:
        """Make pieces of any sizes one group of this many units; False if they cannot have as many."""
        if any(self.size(piece) % units or self.units[self.find(piece)[0]] % units for piece in pieces):
            return False
        for piece in pieces:
            self.coarsen(self.find(piece)[0], units)
        first = self.find(pieces[0])[0]
        for piece in pieces[1:]:
            group = self.find(piece)[0]
            if group != first:
                self._parent[group], self._factor[group] = first, 1
                self.frozen[first] = self.frozen[first] or self.frozen[group]
        return True

    def freeze(self, pieces: Pieces) -> None:
        """Let every group of some pieces keep all its units."""
        for piece in pieces:
            self.frozen[self.find(piece)[0]] = True


ChannelRule = Callable[[Groups, OperatorView, Sequence[Pieces]], Pieces]


def new_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the channels of their own: any of them may be left out."""
    return ((groups.new(width(view.shape)), 1),)


def same_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the channels of the first input."""
    return ins[0]


def freeze_all(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the rule of an unknown operator: neither its inputs nor its output may be scaled."""
    for pieces in ins:
        groups.freeze(pieces)
    return ((groups.new(width(view.shape), frozen=True), 1),)


def side_by_side(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the channels of one input behind those of the other."""
    return tuple(piece for pieces in ins for piece in pieces)


def tied_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the channel i of every input is one with channel i of the others; what has one channel for all keeps it."""
    wide = [pieces for pieces, shape in zip(ins, view.inputs, strict=True) if width(shape) == width(view.shape)]
    for pieces, shape in zip(ins, view.inputs, strict=True):
        if width(shape) != width(view.shape):
            groups.freeze(pieces)
    first = wide[0]
    for other in wide[1:]:
        pairs = list(zip(first, other, strict=False))
        if len(first) != len(other) or not all(groups.unify(a, b) for a, b in pairs):
            groups.freeze(first)
            groups.freeze(other)
    return first
