"""Matrices: a product over the last axis."""

from collections.abc import Sequence
from math import prod

from predictors.channels import Narrowed, fresh
from predictors.kinds import KernelWork, Kind, kinds
from predictors.shapes import Attrs, Shape, integer
from predictors.slices import columns


def _shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*ins[0][:-1], integer(attrs, "out_features"))


def _weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    out = integer(attrs, "out_features")
    weights: dict[str, Shape] = {"weight": (out, ins[0][-1])}
    if attrs["bias"]:
        weights["bias"] = (out,)
    return weights


def _macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    return prod(out) * ins[0][-1]


def _work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    return KernelWork("linear", ins[0][-1], out[-1], 1, 1, prod(out[:-1]))


def _scaled(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    return {**attrs, "out_features": narrowed.out}


kinds.register("linear")(
    Kind(_shape, _macs, _weights, channels=fresh, slices=columns, work=_work, scaled=_scaled, dense=lambda attrs: True, weightless=False)
)
