"""Pooling over windows and over the whole image, and reductions over pixels and over channels."""

from collections.abc import Sequence
from functools import partial
from math import prod

from predictors.channels import same_channels
from predictors.kinds import KernelWork, Kind, kinds
from predictors.rows import same_rows, window_rows
from predictors.shapes import Attrs, Shape, ints, pixels, rank4, window_shape
from predictors.slices import Additive, same_slice


def _window(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return window_shape(ins[0], attrs, rank4(ins[0])[1])


def _one_pixel(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, _, _ = rank4(ins[0])
    return (n, c, 1, 1) if attrs["keepdims"] else (n, c)


def _one_channel(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, _, h, w = rank4(ins[0])
    return (n, 1, h, w)


_windows = partial(
    Kind,
    _window,
    channels=same_channels,
    rows=window_rows,
    slices=same_slice,
    work=lambda ins, attrs, out: KernelWork("pool", 1, 1, out[1], prod(ints(attrs, "kernel")), pixels(out)),
)
_whole = partial(
    Kind,
    _one_pixel,
    channels=same_channels,
    slices=same_slice,
    work=lambda ins, attrs, out: KernelWork("reduce", 1, 1, out[1], pixels(ins[0]) // ins[0][0], out[0]),
)
kinds.register("max_pool")(_windows())
kinds.register("avg_pool")(_windows(additive=Additive()))
kinds.register("global_avg_pool")(_whole(additive=Additive()))
kinds.register("global_max_pool")(_whole())
kinds.register("global_l2_norm")(_whole())
kinds.register("channel_mean")(
    Kind(
        _one_channel,
        # one channel, however many channels it is the mean of
        channels=lambda groups, view, ins: ((groups.new(1, frozen=True), 1),),
        rows=same_rows,
        additive=Additive(),
        work=lambda ins, attrs, out: KernelWork("reduce", 1, 1, 1, ins[0][1], pixels(out)),
    )
)
