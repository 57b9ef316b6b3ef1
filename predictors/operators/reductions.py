"""Reductions: the length of each channel over all pixels, and the mean of each pixel over all channels."""

from collections.abc import Sequence

from predictors.channels import Groups, OperatorView, Pieces, same_channels
from predictors.kinds import KernelWork, Kind, kinds, pixels
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape, rank4
from predictors.slices import Additive, same_slice


def _one_pixel(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c = rank4(ins[0])[:2]
    return (n, c, 1, 1) if attrs["keepdims"] else (n, c)


def _one_channel(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, _, h, w = rank4(ins[0])
    return (n, 1, h, w)


def _one_of_all(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """One channel, however many those are that it is a mean of."""
    return ((groups.new(1, frozen=True), 1),)


def _over_pixels(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("reduce", 1, 1, out[1], pixels(ins[0]) // ins[0][0], out[0])


def _over_channels(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("reduce", 1, 1, 1, ins[0][1], pixels(out))


kinds.register("global_l2_norm")(Kind(_one_pixel, channels=same_channels, slices=same_slice, work=_over_pixels))
kinds.register("channel_mean")(Kind(_one_channel, channels=_one_of_all, rows=same_rows, additive=Additive(), work=_over_channels))
