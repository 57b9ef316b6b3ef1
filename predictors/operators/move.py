"""Operators that only move, select or repeat elements."""

from collections.abc import Sequence
from math import prod

from predictors.channels import Groups, Narrowed, OperatorView, Piece, Pieces, freeze_all, same_channels, side_by_side
from predictors.kinds import UNLAUNCHED, Kind, kinds, per_channel
from predictors.rows import enlarged_rows, padded_rows, same_rows
from predictors.shapes import Attrs, Shape, integer, ints, rank4
from predictors.slices import Additive, cut_out, flattened, pieces, same_slice


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
    """The pieces between the bounds; a bound within a piece freezes it."""
    start, stop, at = integer(view.attrs, "start"), integer(view.attrs, "stop"), 0
    inside: list[Piece] = []
    for piece in ins[0]:
        end = at + groups.size(piece)
        if start <= at and end <= stop:
            inside.append(piece)
        elif at < stop and start < end:
            return freeze_all(groups, view, ins)
        at = end
    return tuple(inside)


def _scaled_slice(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    start = narrowed.position(integer(attrs, "start"))
    return {**attrs, "start": start, "stop": start + narrowed.out}


_COPY = per_channel("copy")

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
