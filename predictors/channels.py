"""Relations between the channels of an operator and those of its inputs, and the attributes of an operator with fewer channels.

The channels of a tensor are a sequence of *pieces*; a piece is a whole *group*
with some channels per unit. A group is a set of units that are scaled
together. A kind's rule returns the pieces of its output from those of its inputs; if
it does not know how single channels are used, it freezes the groups of its
inputs, which is always safe.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from predictors.shapes import Attrs, Shape, width

Piece = tuple[int, int]
Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class OperatorView:
    """Facts that a channel rule may read."""

    inputs: Sequence[Shape]  # Shapes of the operator's inputs.
    attrs: Attrs  # Attributes of the operator.
    shape: Shape  # Shape of the operator's output.


@dataclass(frozen=True)
class Narrowed:
    """Numbers of channels of an operator in a scaled copy."""

    before: int  # Input channels of the original.
    after: int  # Input channels of the copy.
    out: int  # Output channels of the copy.
    position: Callable[[int], int]  # Maps an input channel of the original to its position in the copy's input.


class Groups:
    """Union-find over groups, with a factor for coarsened units.

    Attributes:
        units: Number of units of each group.
        frozen: Whether each group must keep all its units.
    """

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._factor: list[int] = []
        self.units: list[int] = []
        self.frozen: list[bool] = []

    def new(self, units: int, frozen: bool = False) -> int:
        """Create a group with `units` units, and return its number."""
        group = len(self._parent)
        self._parent.append(group)
        self._factor.append(1)
        self.units.append(units)
        self.frozen.append(frozen)
        return group

    def find(self, piece: Piece) -> Piece:
        """Return the piece in terms of the group that its own group was merged into."""
        group, per = piece
        while self._parent[group] != group:
            per *= self._factor[group]
            group = self._parent[group]
        return group, per

    def size(self, piece: Piece) -> int:
        """Return the number of channels of a piece."""
        group, per = self.find(piece)
        return self.units[group] * per

    def coarsen(self, group: int, units: int) -> None:
        """Reduce `group` to `units` units, each of which is larger by the same factor."""
        factor = self.units[group] // units
        if factor == 1:
            return
        self._parent[group] = self.new(units, self.frozen[group])
        self._factor[group] = factor

    def unify(self, a: Piece, b: Piece) -> bool:
        """Merge the groups of two pieces; return False if their sizes differ."""
        (ga, pa), (gb, pb) = self.find(a), self.find(b)
        if self.units[ga] * pa != self.units[gb] * pb:
            return False
        if ga == gb:
            return True
        common = gcd(self.units[ga], self.units[gb])
        self.coarsen(ga, common)
        self.coarsen(gb, common)
        (ga, pa), (gb, pb) = self.find(a), self.find(b)
        # Equal sizes and equal units imply equal channels per unit.
        self._parent[ga] = gb
        self._factor[ga] = 1
        self.frozen[gb] = self.frozen[gb] or self.frozen[ga]
        return True

    def tie(self, pieces: Sequence[Piece], units: int) -> bool:
        """Merge the groups of pieces of any sizes into one group of `units` units; return False if a piece cannot have that many."""
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
        """Make the groups of all pieces keep all their units."""
        for piece in pieces:
            self.frozen[self.find(piece)[0]] = True


ChannelRule = Callable[[Groups, OperatorView, Sequence[Pieces]], Pieces]


def new_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return new channels, any of which may be left out."""
    return ((groups.new(width(view.shape)), 1),)


def same_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the channels of the first input."""
    return ins[0]


def freeze_all(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Freeze the inputs of an unknown operator, and return a frozen output: none of them may be scaled."""
    for pieces in ins:
        groups.freeze(pieces)
    return ((groups.new(width(view.shape), frozen=True), 1),)


def side_by_side(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the channels of all inputs, one input after the other."""
    return tuple(piece for pieces in ins for piece in pieces)


def tied_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Tie channel i of every input to channel i of the others, and return the channels; freeze inputs with one channel for all."""
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
