"""Pooling: over windows, and over the whole image."""

from collections.abc import Sequence
from math import prod

from predictors.channels import same_channels
from predictors.kinds import KernelWork, Kind, kinds, pixels
from predictors.rows import window_rows
from predictors.shapes import Attrs, Shape, ints, rank4, window_shape
from predictors.slices import Additive, same_slice


def _window(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return window_shape(ins[0], attrs, rank4(ins[0])[1])


def _global(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, _, _ = rank4(ins[0])
    return (n, c, 1, 1) if attrs["keepdims"] else (n, c)


def _window_work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("pool", 1, 1, out[1], prod(ints(attrs, "kernel")), pixels(out))


def _global_work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("reduce", 1, 1, out[1], pixels(ins[0]) // ins[0][0], out[0])


for name, mean in (("max_pool", None), ("avg_pool", Additive())):
    kinds.register(name)(Kind(_window, channels=same_channels, rows=window_rows, slices=same_slice, additive=mean, work=_window_work))
for name, mean in (("global_avg_pool", Additive()), ("global_max_pool", None)):
    kinds.register(name)(Kind(_global, channels=same_channels, slices=same_slice, additive=mean, work=_global_work))
