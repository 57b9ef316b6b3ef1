"""Operators that put the pixels of every channel elsewhere: windows, shifts, every other row and column; and tokens as pixels."""

from collections.abc import Sequence
from math import prod

from predictors.channels import same_channels
from predictors.kinds import Kind, kinds, per_channel
from predictors.shapes import Attrs, Shape, integer, ints, rank4
from predictors.slices import Additive, same_slice


def _rearrange(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = rank4(ins[0])
    split, order, pixels = (ints(attrs, key) for key in ("split", "order", "pixels"))
    if prod(split) != h * w or min(split, default=1) < 1 or len(pixels) != 2 or prod(pixels) != h * w:
        raise ValueError(f"{h}×{w} pixels are neither {split} nor {pixels}")
    if sorted(order) != list(range(len(split))):
        raise ValueError(f"{order} is no order of {len(split)} axes")
    return (n, c, *pixels)


def _roll(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    down, across = ints(attrs, "shift")
    h, w = rank4(ins[0])[2:]
    if not (0 <= down < h and 0 <= across < w):
        raise ValueError(f"a shift by {down} and {across} is beyond {h}×{w} pixels")
    return ins[0]


def _subsample(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, *sizes = rank4(ins[0])
    out = []
    for size, start, stop, step in zip(sizes, ints(attrs, "start"), ints(attrs, "stop"), ints(attrs, "step"), strict=True):
        if not 0 <= start < stop <= size or step < 1:
            raise ValueError(f"pixels {start} to {stop} in steps of {step} are not among {size}")
        out.append(-(-(stop - start) // step))
    return (n, c, *out)


def _channels_first(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    rows = integer(attrs, "rows")
    if len(ins[0]) != 3 or rows < 1 or ins[0][0] % rows:
        raise ValueError(f"{ins[0]} is no {rows} rows of tokens an image")
    n, tokens, channels = ins[0]
    return (n // rows, channels, rows, tokens)


_COPY = per_channel("copy")

# Height and width are split into axes, these are put into an order and together again as height and width.
kinds.register("rearrange")(Kind(_rearrange, channels=same_channels, slices=same_slice, additive=Additive(), work=_COPY))
# What leaves the image at one border comes in at the other.
kinds.register("roll")(Kind(_roll, channels=same_channels, slices=same_slice, additive=Additive(), work=_COPY))
kinds.register("subsample")(Kind(_subsample, channels=same_channels, slices=same_slice, additive=Additive(), work=_COPY))
# Tokens N×P×C, of which some in a row belong to one image. What gave them is not known to have channels.
kinds.register("channels_first")(Kind(_channels_first, work=_COPY))
