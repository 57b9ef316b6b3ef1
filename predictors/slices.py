"""The input channels that an operator reads for some channels of its output.

Channels of one tensor can be computed separately by different processors: a
filter of a convolution computes a channel, a group of filters a group. If an
operator mixes channels, a processor that needs one channel computes all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from predictors.channels import OperatorView
from predictors.shapes import Attrs, Shape, integer, width


@dataclass(frozen=True)
class Channels:
    """Channels from `start` up to, but not including, `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return the number of channels."""
        return self.stop - self.start

    def union(self, other: "Channels") -> "Channels":
        """Return the range from the first channel of both to the last."""
        return Channels(min(self.start, other.start), max(self.stop, other.stop))


@dataclass(frozen=True)
class Slice:
    """Operators that compute some channels of an operator's output."""

    reads: tuple[Channels, ...]  # Channels read of each input; an empty range for none.
    computes: Channels  # Computed channels, which include the requested ones; each weight has a row for each.
    attrs: Attrs = field(default_factory=dict)  # Attributes of the operator for these channels.


@dataclass(frozen=True)
class Additive:
    """An operator's effect on a sum, if it may be applied to each term instead."""

    offsets: tuple[str, ...] = ()  # Weights that shift the result: one term keeps them, and the others have zeros.
    once: bool = False  # Whether it only shifts: one term has the operator, and the others do not.


#: Rule that returns a slice from the facts about an operator and channels of its output.
SliceRule = Callable[[OperatorView, Channels], Slice]


def weight_rows(channels: Channels, width: int, count: int) -> Channels:
    """Return the rows of a weight for some output channels; one row per channel, or per several channels, such as those of a head.

    Args:
        channels: Whole groups of the channels that share a row.
    """
    per = width // count
    return Channels(channels.start // per, -(-channels.stop // per))


def full_range(shape: Shape) -> Channels:
    """Return all channels of a tensor."""
    return Channels(0, width(shape))


def all_channels(view: OperatorView, requested: Channels) -> Slice:
    """Return all channels of each input: the operator mixes channels, so everything is read and computed."""
    return Slice(tuple(full_range(shape) for shape in view.inputs), full_range(view.shape), view.attrs)


def same_slice(view: OperatorView, requested: Channels) -> Slice:
    """Return the same channels of each input, or the only channel of a broadcast input."""
    total = width(view.shape)
    return Slice(tuple(requested if width(shape) == total else full_range(shape) for shape in view.inputs), requested, view.attrs)


def filters(view: OperatorView, requested: Channels) -> Slice:
    """Return one filter per channel, with all input channels for one group, else with whole groups."""
    groups, out = integer(view.attrs, "groups"), integer(view.attrs, "out_channels")
    if groups == 1:
        return Slice((full_range(view.inputs[0]),), requested, {**view.attrs, "out_channels": len(requested)})
    written, read = out // groups, width(view.inputs[0]) // groups
    first, stop = requested.start // written, -(-requested.stop // written)
    computes = Channels(first * written, stop * written)
    attrs = {**view.attrs, "out_channels": len(computes), "groups": stop - first}
    return Slice((Channels(first * read, stop * read),), computes, attrs)


def columns(view: OperatorView, requested: Channels) -> Slice:
    """Return one row of a matrix per channel of a vector; with more than two axes, the channels are not the features."""
    if len(view.shape) != 2:
        return all_channels(view, requested)
    return Slice((full_range(view.inputs[0]),), requested, {**view.attrs, "out_features": len(requested)})


def pieces(view: OperatorView, requested: Channels) -> Slice:
    """Return for each of several concatenated inputs the channels in the requested range."""
    reads, start = [], 0
    for shape in view.inputs:
        first, stop = max(requested.start - start, 0), min(requested.stop - start, width(shape))
        reads.append(Channels(first, stop) if first < stop else Channels(0, 0))
        start += width(shape)
    return Slice(tuple(reads), requested, view.attrs)


def cut_out(view: OperatorView, requested: Channels) -> Slice:
    """Return the requested channels of a slice of channels: they are read directly from the slice's input."""
    start = integer(view.attrs, "start")
    return Slice(
        (Channels(start + requested.start, start + requested.stop),), requested, {**view.attrs, "start": 0, "stop": len(requested)}
    )


def flattened(view: OperatorView, requested: Channels) -> Slice:
    """Return the channels of a flattened image: each has as many consecutive elements as the image has pixels."""
    area = prod(view.inputs[0][2:])
    first, stop = requested.start // area, -(-requested.stop // area)
    return Slice((Channels(first, stop),), Channels(first * area, stop * area), view.attrs)
