"""Operators that no family describes: their outputs and their work are stated.

Nothing scales them. One that a network was captured with also states the calls of
torch that compute it (`CALLS`), so that it runs and is exported; one without them is
for predictions.
"""

from collections.abc import Sequence
from math import prod

from predictors.devices import KERNEL_KINDS
from predictors.kinds import UNLAUNCHED, KernelWork, Kind, kinds
from predictors.shapes import Attr, Attrs, Shape, integer, ints

#: Kernel kinds whose time is that of products.
PRODUCTS = frozenset({"conv1x1", "conv", "depthwise", "grouped", "linear", "matmul"})

#: Attribute: the calls of torch that compute an operator, as `stretch.operators.opaque.calls` writes them.
CALLS = "calls"
#: Attribute: how many numbers of those tensors nobody learned, such as states that a recurrent layer begins with; left out where there are none.
FIXED = "fixed"
#: Attributes ``constant_0``, ``constant_1``, …: shapes of the tensors that those calls read in addition to the operator's inputs.
CONSTANT = "constant_"

#: No count of an operator is beyond this.
_MOST = 1 << 48


_COUNTS = ("in_channels", "out_channels", "groups", "taps", "pixels")


def attributes(shape: Shape, kernel: str, variant: str, work: Sequence[int], weights: int = 0) -> dict[str, Attr]:
    """Return the attributes of an opaque operator.

    Args:
        work: Of `predictors.kinds.KernelWork`, without its kind: channels of a group in and out, groups, taps, pixels.
        weights: Elements of its inputs that do not depend on the network's input.
    """
    return {"shape": shape, "kernel": kernel, "variant": variant, **dict(zip(_COUNTS, work, strict=True)), "weights": weights}


def _count(attrs: Attrs, key: str, least: int = 1) -> int:
    value = integer(attrs, key)
    if not least <= value <= _MOST:
        raise ValueError(f"its `{key}` is {value}, not a number from {least} on")
    return value


def _opaque(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the stated shape, once everything else that is stated makes sense."""
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
    """Return the stated shape: of as many elements as are read, or each of them several times."""
    shape = ints(attrs, "shape")
    if len(ins) == 1 and prod(shape) % prod(ins[0]):
        raise ValueError(f"{ins[0]} cannot be seen as {shape}")
    return shape


kinds.register("opaque")(Kind(_opaque, _macs, _weights, work=_work, weightless=False, stated=True))
# The elements of its first input in another shape; of several inputs, that they are all results of the network.
kinds.register("view")(Kind(_view, traits=frozenset({UNLAUNCHED}), stated=True))
