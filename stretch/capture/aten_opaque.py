"""Opaque operators for ATen operators without a kind: which kernel they are, and how much it does."""

from math import prod

from predictors.shapes import Attr, Shape
from stretch.capture.aten_call import AtenCall, AtenStep

#: Operators whose result has fewer elements than they read.
REDUCTIONS = (
    "mean",
    "sum",
    "amax",
    "amin",
    "max",
    "min",
    "prod",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "norm",
    "linalg_vector_norm",
    "argmax",
    "argmin",
    "logsumexp",
    "any",
    "all",
)

#: Operators that select, order or repeat elements without computing with them.
COPIES = frozenset(
    {
        "permute",
        "slice",
        "cat",
        "stack",
        "pad",
        "constant_pad_nd",
        "roll",
        "repeat",
        "repeat_interleave",
        "tile",
        "index",
        "index_select",
        "gather",
        "flip",
        "pixel_shuffle",
        "pixel_unshuffle",
        "im2col",
        "unfold",
        "col2im",
        "upsample_nearest2d",
        "index_put",
        "select_scatter",
        "slice_scatter",
        "scatter",
        "topk",
        "sort",
        "channel_shuffle",
    }
)

#: Names of the pools without a kind.
_POOLS = ("avg_pool", "max_pool")

_Work = tuple[int, int, int, int, int]


def attributes(shape: Shape, kernel: str, variant: str, work: _Work, weights: int = 0) -> dict[str, Attr]:
    """Attributes of an opaque operator.

    Args:
        weights: Elements of what it reads that does not depend on the network's input.
    """
    cin, cout, groups, taps, pixels = work
    counts = {"in_channels": cin, "out_channels": cout, "groups": groups, "taps": taps, "pixels": pixels, "weights": weights}
    return {"shape": shape, "kernel": kernel, "variant": variant, **counts}


def over_elements(shape: Shape, kernel: str, variant: str, weights: int = 0, taps: int = 1) -> dict[str, Attr]:
    """Attributes of one that does the same for each element of its result; channels are those of an image, or lie last."""
    channels = shape[1] if len(shape) == 4 else shape[-1] if shape else 1
    return attributes(shape, kernel, variant, (1, 1, channels, taps, prod(shape) // channels), weights)


def opaque(call: AtenCall, kernel: str, work: _Work) -> AtenStep:
    """The operator of a call with this work; it reads all tensors of the call."""
    return AtenStep("opaque", attributes(call.out, kernel, call.operator, work, call.constants), tuple(call.tensors))


def product(call: AtenCall, inner: int, right: int, groups: int, left: int) -> AtenStep:
    """`groups` products of a `left` × `inner` and an `inner` × `right` matrix."""
    return AtenStep(
        "opaque", attributes(call.out, "matmul", "matmul", (inner, right, groups, 1, left), call.constants), tuple(call.tensors)
    )


def reduced(call: AtenCall) -> AtenStep:
    """One that sums up or picks: each element of its result is of as many as it reads."""
    read = max(prod(tensor.shape) for tensor in call.tensors)
    batch = call.out[0] if call.out else 1
    built = prod(call.out)
    work = (1, 1, max(1, built // batch), max(1, read // built), batch)
    return AtenStep("opaque", attributes(call.out, "reduce", call.operator, work, call.constants), tuple(call.tensors))


def opaque_node(call: AtenCall) -> list[AtenStep]:
    """The operator of a call that no rule takes."""
    name = call.operator
    if name in REDUCTIONS:
        return [reduced(call)]
    if any(pool in name for pool in _POOLS):
        taps = max(1, prod(call.tensors[0].shape) // prod(call.out))
        return [AtenStep("opaque", over_elements(call.out, "pool", name, call.constants, taps), tuple(call.tensors))]
    kernel = "copy" if name in COPIES or name.startswith("upsample") else "elementwise"
    return [AtenStep("opaque", over_elements(call.out, kernel, name, call.constants), tuple(call.tensors))]
