"""Pooling over windows and over the whole image, and reductions over pixels and over channels."""

from collections.abc import Sequence
from functools import partial
from math import prod

from predictors.channels import Groups, OperatorView, Pieces, same_channels
from predictors.kinds import KernelWork, Kind, kinds, pixels
from predictors.rows import same_rows, window_rows
from predictors.shapes import Attrs, Shape, ints, rank4
from predictors.slices import Additive, same_slice
from predictors.windows import window_shape


def _window(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return window_shape(ins[0], attrs, rank4(ins[0])[1])


def _one_pixel(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, _, _ = rank4(ins[0])
    return (n, c, 1, 1) if attrs["keepdims"] else (n, c)


def _one_channel(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, _, h, w = rank4(ins[0])
    return (n, 1, h, w)


def _one_of_all(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """One channel, however many those are that it is a mean of."""
    return ((groups.new(1, frozen=True), 1),)


def _window_work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("pool", 1, 1, out[1], prod(ints(attrs, "kernel")), pixels(out))


def _over_pixels(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("reduce", 1, 1, out[1], pixels(ins[0]) // ins[0][0], out[0])


def _over_channels(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("reduce", 1, 1, 1, ins[0][1], pixels(out))


_windows = partial(Kind, _window, channels=same_channels, rows=window_rows, slices=same_slice, work=_window_work)
_whole = partial(Kind, _one_pixel, channels=same_channels, slices=same_slice, work=_over_pixels)
kinds.register("max_pool")(_windows())
kinds.register("avg_pool")(_windows(additive=Additive()))
kinds.register("global_avg_pool")(_whole(additive=Additive()))
kinds.register("global_max_pool")(_whole())
kinds.register("global_l2_norm")(_whole())
kinds.register("channel_mean")(Kind(_one_channel, channels=_one_of_all, rows=same_rows, additive=Additive(), work=_over_channels))
