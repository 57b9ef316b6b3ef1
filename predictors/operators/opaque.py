"""Operators that belong to no family: their outputs and their work are stated.

They cannot be scaled. An operator from a captured network also states the torch
calls that compute it (`CALLS`), so that it runs and is exported; an operator without
calls is for predictions only.
"""

from collections.abc import Sequence
from math import prod

from predictors.devices import KERNEL_KINDS
from predictors.kinds import UNLAUNCHED, KernelWork, Kind, kinds
from predictors.shapes import Attr, Attrs, Shape, integer, ints

#: Kernel kinds whose time is that of products.
PRODUCTS = frozenset({"conv1x1", "conv", "depthwise", "grouped", "linear", "matmul"})

#: Attribute: the torch calls that compute an operator, in the form of `stretch.operators.opaque.calls`.
CALLS = "calls"
#: Attribute: the number of elements of those tensors that are not learned, such as initial states of a recurrent layer; omitted if zero.
FIXED = "fixed"
#: Attributes ``constant_0``, ``constant_1``, …: shapes of the tensors that the calls read in addition to the operator's inputs.
CONSTANT = "constant_"

#: Maximum of all counts of an operator.
_MOST = 1 << 48


_COUNTS = ("in_channels", "out_channels", "groups", "taps", "pixels")


def attributes(shape: Shape, kernel: str, variant: str, work: Sequence[int], weights: int = 0) -> dict[str, Attr]:
    """Return the attributes of an opaque operator.

    Args:
        work: Fields of `predictors.kinds.KernelWork` without the kind: channels of a group in and out, groups, taps, pixels.
        weights: Elements of the inputs that do not depend on the network's input.
    """
    return {"shape": shape, "kernel": kernel, "variant": variant, **dict(zip(_COUNTS, work, strict=True)), "weights": weights}


def _count(attrs: Attrs, key: str, least: int = 1) -> int:
    value = integer(attrs, key)
    if not least <= value <= _MOST:
        raise ValueError(f"its `{key}` is {value}, not a number from {least} on")
    return value


def _opaque(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the stated shape after checking all other attributes."""
    kernel = attrs["kernel"]
    if kernel not in KERNEL_KINDS:
        raise ValueError(f"its `kernel` is {kernel!r}, which is none of {', '.join(KERNEL_KINDS)}")
    if not isinstance(attrs["variant"], str):
        raise TypeError(f"`variant` is {attrs['variant']!r}, not a name")
    for key in _COUNTS:
        _count(attrs, key)
    _count(attrs, "weights", 0)
    return ints(attrs, "shape")


def _macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    if attrs["kernel"] not in PRODUCTS:
        return 0
    return prod(integer(attrs, key) for key in _COUNTS)


def constants(attrs: Attrs) -> dict[str, Shape]:
    """Return the shape of each tensor that an operator's calls read in addition to its inputs, by name."""
    return {key: ints(attrs, key) for key in attrs if key.startswith(CONSTANT)}


def _weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    if CALLS in attrs:
        return constants(attrs)
    weights = integer(attrs, "weights")
    return {"weight": (weights,)} if weights else {}


def _work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    counts = [integer(attrs, key) for key in _COUNTS]
    return KernelWork(str(attrs["kernel"]), *counts)


def _view(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the stated shape, which has as many elements as the input or a multiple of them."""
    shape = ints(attrs, "shape")
    if len(ins) == 1 and prod(shape) % prod(ins[0]):
        raise ValueError(f"{ins[0]} cannot be seen as {shape}")
    return shape


kinds.register("opaque")(Kind(_opaque, _macs, _weights, work=_work, weightless=False, stated=True))
# The elements of the first input in another shape; with several inputs, they are all results of the network.
kinds.register("view")(Kind(_view, traits=frozenset({UNLAUNCHED}), stated=True))
