"""Operators that only move, select or repeat elements."""

from collections.abc import Sequence
from math import prod

from predictors.channels import Groups, Narrowed, OperatorView, Piece, Pieces, freeze_all, same_channels, side_by_side
from predictors.kinds import UNLAUNCHED, Kind, kinds, per_channel
from predictors.rows import Band, Rows, enlarged_rows, padded_rows, same_rows
from predictors.shapes import Attrs, Shape, integer, ints, rank4
from predictors.slices import Additive, cut_out, flattened, pieces, same_slice

_COPY = per_channel("copy")


def _concat(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    first = ins[0]
    for other in ins[1:]:
        if len(other) != len(first) or other[:1] + other[2:] != first[:1] + first[2:]:
            raise ValueError(f"its inputs {first} and {other} differ in more than channels")
    return (first[0], sum(s[1] for s in ins), *first[2:])


def _flatten(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return (ins[0][0], prod(ins[0][1:]))


def _unflatten(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(ins[0]) != 2:
        raise ValueError(f"it needs an N×C tensor, it reads {ins[0]}")
    return (*ins[0], 1, 1)


def _pad(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = rank4(ins[0])
    top, left, bottom, right = ints(attrs, "padding")
    return (n, c, h + top + bottom, w + left + right)


def _slice(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    start, stop = integer(attrs, "start"), integer(attrs, "stop")
    if not 0 <= start < stop <= ins[0][1]:
        raise ValueError(f"channels {start} to {stop} are not in {ins[0]}")
    return (ins[0][0], stop - start, *ins[0][2:])


def _shuffle(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    groups = integer(attrs, "groups")
    if ins[0][1] % groups:
        raise ValueError(f"{groups} groups do not divide {ins[0][1]} channels")
    return ins[0]


def _upsample(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = rank4(ins[0])
    down, across = ints(attrs, "scale")
    return (n, c, h * down, w * across)


def _flattened_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    area = prod(view.inputs[0][2:])
    return tuple((group, per * area) for group, per in ins[0])


def _sliced_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the pieces between the bounds; a bound within a piece freezes the input."""
    start, stop, position = integer(view.attrs, "start"), integer(view.attrs, "stop"), 0
    overlapping: list[Piece] = []
    for piece in ins[0]:
        end = position + groups.size(piece)
        if start <= position and end <= stop:
            overlapping.append(piece)
        elif position < stop and start < end:
            return freeze_all(groups, view, ins)
        position = end
    return tuple(overlapping)


def _scaled_slice(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    start = narrowed.position(integer(attrs, "start"))
    return {**attrs, "start": start, "stop": start + narrowed.out}


kinds.register("concat")(Kind(_concat, channels=side_by_side, rows=same_rows, slices=pieces, work=_COPY, min_inputs=2))
kinds.register("slice")(Kind(_slice, channels=_sliced_channels, rows=same_rows, slices=cut_out, work=_COPY, scaled=_scaled_slice))
kinds.register("pad")(Kind(_pad, channels=same_channels, rows=padded_rows, slices=same_slice, additive=Additive(), work=_COPY))
kinds.register("channel_shuffle")(Kind(_shuffle, rows=same_rows, work=_COPY))
kinds.register("upsample")(Kind(_upsample, channels=same_channels, rows=enlarged_rows, slices=same_slice, additive=Additive(), work=_COPY))
kinds.register("flatten")(
    Kind(_flatten, channels=_flattened_channels, slices=flattened, additive=Additive(), traits=frozenset({UNLAUNCHED}))
)
kinds.register("unflatten")(
    Kind(_unflatten, channels=same_channels, slices=same_slice, additive=Additive(), traits=frozenset({UNLAUNCHED}))
)


# Operators on bands of rows: cutting a band out, and joining several bands.
#
# Exact row branches consist of these and of the network's operators.


def _slice_rows(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = rank4(ins[0])
    start, stop = integer(attrs, "start"), integer(attrs, "stop")
    if not 0 <= start < stop <= h:
        raise ValueError(f"rows {start} to {stop} are not in {ins[0]}")
    return (n, c, stop - start, w)


def _concat_rows(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, _, w = rank4(ins[0])
    for other in ins[1:]:
        if rank4(other)[:2] != (n, c) or other[3] != w:
            raise ValueError(f"its inputs {ins[0]} and {other} differ in more than rows")
    return (n, c, sum(shape[2] for shape in ins), w)


def _sliced_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the requested rows of a slice of rows: they are read directly from the slice's input."""
    start = integer(attrs, "start")
    return Band((Rows(start + rows.start, start + rows.stop),), {**attrs, "start": 0, "stop": len(rows)})


kinds.register("slice_rows")(Kind(_slice_rows, channels=same_channels, rows=_sliced_rows, slices=same_slice, work=_COPY))
# The read depends on the input that contains a band: bands of joined bands are cut from the whole.
kinds.register("concat_rows")(Kind(_concat_rows, channels=same_channels, slices=same_slice, work=_COPY, min_inputs=2))


# Operators that move the pixels of every channel: windows, shifts, every other row and column; and tokens as pixels.


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


# Height and width are split into axes, permuted and joined to height and width again.
kinds.register("rearrange")(Kind(_rearrange, channels=same_channels, slices=same_slice, additive=Additive(), work=_COPY))
# Rows that leave the image at one border enter at the other.
kinds.register("roll")(Kind(_roll, channels=same_channels, slices=same_slice, additive=Additive(), work=_COPY))
kinds.register("subsample")(Kind(_subsample, channels=same_channels, slices=same_slice, additive=Additive(), work=_COPY))
# Tokens N×P×C, of which consecutive ones belong to one image. Their source is not known to have channels.
kinds.register("channels_first")(Kind(_channels_first, work=_COPY))
