"""Convolutions, dense, grouped and depthwise, and products over the last axis."""

from collections.abc import Sequence
from math import gcd, prod

from predictors.channels import Groups, Narrowed, OperatorView, Pieces, freeze_all, new_channels
from predictors.kinds import KernelWork, Kind, kinds
from predictors.rows import window_rows
from predictors.shapes import Attrs, Shape, integer, ints, pixels, rank4, window_shape
from predictors.slices import columns, filters


def _shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    channels, groups, out = rank4(ins[0])[1], integer(attrs, "groups"), integer(attrs, "out_channels")
    if channels % groups or out % groups:
        raise ValueError(f"{groups} groups divide neither {channels} inputs nor {out} outputs")
    return window_shape(ins[0], attrs, out)


def _weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    out, kernel = integer(attrs, "out_channels"), ints(attrs, "kernel")
    return {"weight": (out, ins[0][1] // integer(attrs, "groups"), *kernel), **({"bias": (out,)} if attrs["bias"] else {})}


def _work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    groups, taps = integer(attrs, "groups"), prod(ints(attrs, "kernel"))
    cin, cout = ins[0][1] // groups, out[1] // groups
    dense = "conv1x1" if taps == 1 else "conv"
    kind = dense if groups == 1 else ("depthwise" if cin == 1 else "grouped")
    return KernelWork(kind, cin, cout, groups, taps, pixels(out), prod(ints(attrs, "stride")))


def _channels(ties: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the output's channels: dense: new ones; depthwise: the input's; grouped: units coarsened to whole convolution groups."""
    groups, out = integer(view.attrs, "groups"), integer(view.attrs, "out_channels")
    if groups == 1:
        return new_channels(ties, view, ins)
    channels = view.inputs[0][1]
    if groups == channels:
        return tuple((group, per * (out // channels)) for group, per in ins[0])
    if len(ins[0]) > 1:
        return freeze_all(ties, view, ins)
    group, _ = ties.find(ins[0][0])
    units = gcd(ties.units[group], groups)
    ties.coarsen(group, units)
    group, _ = ties.find(ins[0][0])
    return ((group, out // units),)


def _scaled(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    groups = integer(attrs, "groups")
    groups = groups * narrowed.after // narrowed.before if groups > 1 else groups
    return {**attrs, "out_channels": narrowed.out, "groups": groups}


kinds.register("conv")(
    Kind(
        _shape,
        lambda ins, attrs, out: prod(out) * (ins[0][1] // integer(attrs, "groups")) * prod(ints(attrs, "kernel")),
        _weights,
        channels=_channels,
        rows=window_rows,
        slices=filters,
        work=_work,
        scaled=_scaled,
        dense=lambda attrs: integer(attrs, "groups") == 1,
        weightless=False,
    )
)


def _matrix_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    out = integer(attrs, "out_features")
    return {"weight": (out, ins[0][-1]), **({"bias": (out,)} if attrs["bias"] else {})}


kinds.register("linear")(
    Kind(
        lambda ins, attrs: (*ins[0][:-1], integer(attrs, "out_features")),
        lambda ins, attrs, out: prod(out) * ins[0][-1],
        _matrix_weights,
        channels=new_channels,
        slices=columns,
        work=lambda ins, attrs, out: KernelWork("linear", ins[0][-1], out[-1], 1, 1, prod(out[:-1])),
        scaled=lambda attrs, narrowed: {**attrs, "out_features": narrowed.out},
        dense=lambda attrs: True,
        weightless=False,
    )
)
