"""Which channels of its inputs an operator reads for some channels of its output.

Channels of one tensor can be computed apart from each other, by different
processors: a filter of a convolution computes a channel, a group of filters a
group. Where an operator mixes channels, anyone who needs one of them computes all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from predictors.channels import OperatorView
from predictors.shapes import Attrs, Shape, integer, width


@dataclass(frozen=True)
class Channels:
    """Channels `start` up to `stop`, the last one left out."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return how many."""
        return self.stop - self.start

    def union(self, other: "Channels") -> "Channels":
        """From the first of both to the last of both."""
        return Channels(min(self.start, other.start), max(self.stop, other.stop))


@dataclass(frozen=True)
class Slice:
    """Operators that compute some channels of an operator's output."""

    reads: tuple[Channels, ...]  # The channels that are needed of each input; none where it is empty.
    computes: Channels  # The channels that are computed, those asked for among them; each weight has a row for each.
    attrs: Attrs = field(default_factory=dict)  # Attributes with which the operator computes them.


@dataclass(frozen=True)
class Additive:
    """An operator's effect on a sum, if it may be applied to each term instead."""

    offsets: tuple[str, ...] = ()  # Its weights that shift the result: of all terms, one has them and the others have zeros.
    once: bool = False  # Whether it does nothing but shift: one term has it, the others do without.


#: From what a rule may look at, and channels of the output.
SliceRule = Callable[[OperatorView, Channels], Slice]


def weight_rows(channels: Channels, width: int, count: int) -> Channels:
    """Return the rows of a weight for some output channels: it has one for each of them, or one for several, such as those of a head.

    Args:
        channels: Whole groups of those that share a row.
    """
    per = width // count
    return Channels(channels.start // per, -(-channels.stop // per))


def full_range(shape: Shape) -> Channels:
    """Return all channels of a tensor."""
    return Channels(0, width(shape))


def all_channels(view: OperatorView, requested: Channels) -> Slice:
    """Return the channels are mixed: everything is read and computed."""
    return Slice(tuple(full_range(shape) for shape in view.inputs), full_range(view.shape), view.attrs)


def same_slice(view: OperatorView, requested: Channels) -> Slice:
    """Return the channel i reads channel i of each input, or the only channel of one that is broadcast."""
    total = width(view.shape)
    return Slice(tuple(requested if width(shape) == total else full_range(shape) for shape in view.inputs), requested, view.attrs)


def filters(view: OperatorView, requested: Channels) -> Slice:
    """Return a filter for each channel: all that is read where there is one group, else whole groups."""
    groups, out = integer(view.attrs, "groups"), integer(view.attrs, "out_channels")
    if groups == 1:
        return Slice((full_range(view.inputs[0]),), requested, {**view.attrs, "out_channels": len(requested)})
    written, read = out // groups, width(view.inputs[0]) // groups
    first, behind = requested.start // written, -(-requested.stop // written)
    computes = Channels(first * written, behind * written)
    attrs = {**view.attrs, "out_channels": len(computes), "groups": behind - first}
    return Slice((Channels(first * read, behind * read),), computes, attrs)


def columns(view: OperatorView, requested: Channels) -> Slice:
    """Return a row of a matrix for each channel of a vector; of more axes than two, the channels are not the features."""
    if len(view.shape) != 2:
        return all_channels(view, requested)
    return Slice((full_range(view.inputs[0]),), requested, {**view.attrs, "out_features": len(requested)})


def pieces(view: OperatorView, requested: Channels) -> Slice:
    """Return the inputs side by side: of each, the channels that lie in the range."""
    reads, start = [], 0
    for shape in view.inputs:
        first, behind = max(requested.start - start, 0), min(requested.stop - start, width(shape))
        reads.append(Channels(first, behind) if first < behind else Channels(0, 0))
        start += width(shape)
    return Slice(tuple(reads), requested, view.attrs)


def cut_out(view: OperatorView, requested: Channels) -> Slice:
    """Return the channels of the cut, so that nothing is cut any more."""
    start = integer(view.attrs, "start")
    return Slice(
        (Channels(start + requested.start, start + requested.stop),), requested, {**view.attrs, "start": 0, "stop": len(requested)}
    )


def flattened(view: OperatorView, requested: Channels) -> Slice:
    """Return every channel of an image is as many elements as it has pixels, one after the other."""
    area = prod(view.inputs[0][2:])
    first, behind = requested.start // area, -(-requested.stop // area)
    return Slice((Channels(first, behind),), Channels(first * area, behind * area), view.attrs)
