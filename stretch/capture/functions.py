"""Functions and tensor methods that lower to operators, a rule for each."""

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from predictors.kinds import Attr

Shapes = Mapping[fx.Node, tuple[int, ...]]
#: (nodes that are read, kind, attributes)
Lowered = tuple[list[Any], str, dict[str, Attr]]
Rule = Callable[..., Lowered]


class Refusal(Exception):
    """Why a node cannot be captured, as the end of the sentence about it."""


def pair(value: Any) -> tuple[int, int]:
    """`value` for height and width."""
    a, b = (value, value) if isinstance(value, int) else (value if len(value) == 2 else (value[0], value[0]))
    return (int(a), int(b))


def window_padding(value: Any) -> tuple[int, int, int, int]:
    """Symmetric torch padding as (top, left, bottom, right)."""
    h, w = pair(value)
    return (h, w, h, w)


def adaptive_pool(how: str, shape: tuple[int, ...], size: Any) -> tuple[str, dict[str, Attr]]:
    """Adaptive pooling as plain pooling, where the windows are equal.

    Raises:
        Refusal: If the output size does not divide the input size.
    """
    wanted = (size, size) if isinstance(size, int) or size is None else tuple(size)
    h, w = (n if want is None else int(want) for n, want in zip(shape[2:], wanted, strict=True))
    if (h, w) == (1, 1):
        return f"global_{how}_pool", {"keepdims": True}
    if shape[2] % h or shape[3] % w:
        raise Refusal(f"adaptive pooling of {shape[2]}×{shape[3]} to {h}×{w} has unequal windows")
    kernel = (shape[2] // h, shape[3] // w)
    if kernel == (1, 1):
        return "identity", {}
    attrs: dict[str, Attr] = {"kernel": kernel, "stride": kernel, "padding": (0, 0, 0, 0), "ceil_mode": False}
    return f"{how}_pool", attrs | ({"count_include_pad": True} if how == "avg" else {"dilation": (1, 1)})


def _binary(kind: str) -> Rule:
    def rule(shapes: Shapes, out: tuple[int, ...], a: Any, b: Any, *, alpha: int = 1) -> Lowered:
        for side in (a, b):
            if not isinstance(side, fx.Node):
                raise Refusal(f"it combines a tensor with the number {side!r}")
            if len(shapes[side]) != len(out):
                raise Refusal("it broadcasts over missing dimensions")
        if alpha != 1:
            raise Refusal("it scales one side")
        return [a, b], kind, {}

    return rule


def _activation(kind: str, **attrs: Attr) -> Rule:
    def rule(shapes: Shapes, out: tuple[int, ...], x: Any, inplace: bool = False) -> Lowered:
        return [x], kind, dict(attrs)

    return rule


def _gelu(shapes: Shapes, out: tuple[int, ...], x: Any, approximate: str = "none") -> Lowered:
    return [x], "gelu", {"approximate": approximate}


def _leaky(shapes: Shapes, out: tuple[int, ...], x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Lowered:
    return [x], "leaky_relu", {"slope": float(negative_slope)}


def _hardtanh(shapes: Shapes, out: tuple[int, ...], x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Lowered:
    if (min_val, max_val) != (0.0, 6.0):
        raise Refusal(f"clamping to {min_val} … {max_val} is not supported, only 0 … 6")
    return [x], "relu6", {}


def _concat(shapes: Shapes, out: tuple[int, ...], tensors: Any, dim: int = 0, axis: int | None = None) -> Lowered:
    dim = axis if axis is not None else dim
    if dim % len(out) != 1:
        raise Refusal(f"concatenation along dimension {dim} is not supported, only along channels")
    return list(tensors), "concat" if len(tensors) > 1 else "identity", {}


def _flatten(shapes: Shapes, out: tuple[int, ...], x: Any, start_dim: int = 0, end_dim: int = -1) -> Lowered:
    rank = len(shapes[x])
    if start_dim % rank != 1 or end_dim % rank != rank - 1:
        raise Refusal(f"flattening dimensions {start_dim} to {end_dim} is not supported")
    return [x], "flatten", {}


def _reshape(shapes: Shapes, out: tuple[int, ...], x: Any, *size: Any) -> Lowered:
    before = shapes[x]
    if before == out:
        return [x], "identity", {}
    if len(out) == 2 and out == (before[0], prod(before[1:])):
        return [x], "flatten", {}
    raise Refusal(f"reshaping {before} to {out} is not supported")


def _squeeze(shapes: Shapes, out: tuple[int, ...], x: Any, *dims: Any, dim: Any = None) -> Lowered:
    if len(out) == 2 and out == (shapes[x][0], prod(shapes[x][1:])):
        return [x], "flatten", {}
    raise Refusal(f"squeezing {shapes[x]} to {out} is not supported")


def _mean(shapes: Shapes, out: tuple[int, ...], x: Any, dim: Any = None, keepdim: bool = False) -> Lowered:
    rank = len(shapes[x])
    dims = sorted(d % rank for d in ((dim,) if isinstance(dim, int) else dim or ()))
    if rank != 4 or dims != [2, 3]:
        raise Refusal(f"a mean over dimensions {dim} is not supported, only over height and width")
    return [x], "global_avg_pool", {"keepdims": bool(keepdim)}


def _adaptive(how: str) -> Rule:
    def rule(shapes: Shapes, out: tuple[int, ...], x: Any, output_size: Any) -> Lowered:
        kind, attrs = adaptive_pool(how, shapes[x], output_size)
        return [x], kind, attrs

    return rule


def max_pool(kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool) -> dict[str, Attr]:
    """Attributes of a max-pooling from torch's own settings.

    Raises:
        Refusal: If it also returns indices.
    """
    if return_indices:
        raise Refusal("pooling that returns indices is not supported")
    return _window(kernel_size, stride, padding, ceil_mode) | {"dilation": pair(dilation)}


def avg_pool(kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: int | None) -> dict[str, Attr]:
    """Attributes of an average-pooling from torch's own settings.

    Raises:
        Refusal: If it divides by something else than its window.
    """
    if divisor is not None:
        raise Refusal("average pooling with its own divisor is not supported")
    return _window(kernel_size, stride, padding, ceil_mode) | {"count_include_pad": bool(count_include_pad)}


def _window(kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Attr]:
    kernel = pair(kernel_size)
    # torch takes an absent or empty stride to mean the kernel's size
    return {
        "kernel": kernel,
        "stride": pair(stride) if stride else kernel,
        "padding": window_padding(padding),
        "ceil_mode": bool(ceil_mode),
    }


def _max_pool(
    shapes: Shapes,
    out: tuple[int, ...],
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Lowered:
    return [x], "max_pool", max_pool(kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    shapes: Shapes,
    out: tuple[int, ...],
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Lowered:
    return [x], "avg_pool", avg_pool(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _dropout(shapes: Shapes, out: tuple[int, ...], x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Lowered:
    return [x], "dropout", {"p": float(p)}


def _pad(shapes: Shapes, out: tuple[int, ...], x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Lowered:
    if mode != "constant" or value not in (None, 0, 0.0) or len(pad) not in (2, 4) or min(pad) < 0:
        raise Refusal(f"padding {tuple(pad)} with mode `{mode}` and value {value} is not supported")
    left, right, top, bottom = (*pad, 0, 0)[:4]
    return [x], "pad", {"padding": (top, left, bottom, right)}


def _identity(shapes: Shapes, out: tuple[int, ...], x: Any, *_: Any, **__: Any) -> Lowered:
    return [x], "identity", {}


FUNCTIONS: dict[Any, Rule] = {
    operator.add: _binary("add"),
    operator.iadd: _binary("add"),
    torch.add: _binary("add"),
    operator.mul: _binary("mul"),
    operator.imul: _binary("mul"),
    torch.mul: _binary("mul"),
    torch.cat: _concat,
    torch.concat: _concat,
    torch.flatten: _flatten,
    torch.reshape: _reshape,
    torch.squeeze: _squeeze,
    torch.mean: _mean,
    torch.relu: _activation("relu"),
    F.relu: _activation("relu"),
    F.relu_: _activation("relu"),
    torch.relu_: _activation("relu"),
    F.relu6: _activation("relu6"),
    F.hardtanh: _hardtanh,
    F.hardswish: _activation("hard_swish"),
    F.hardsigmoid: _activation("hard_sigmoid"),
    F.silu: _activation("silu"),
    torch.sigmoid: _activation("sigmoid"),
    F.sigmoid: _activation("sigmoid"),
    torch.tanh: _activation("tanh"),
    F.tanh: _activation("tanh"),
    F.gelu: _gelu,
    F.leaky_relu: _leaky,
    F.adaptive_avg_pool2d: _adaptive("avg"),
    F.adaptive_max_pool2d: _adaptive("max"),
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: _avg_pool,
    F.dropout: _dropout,
    F.dropout2d: _dropout,
    F.pad: _pad,
}

METHODS: dict[str, Rule] = {
    "add": _binary("add"),
    "add_": _binary("add"),
    "mul": _binary("mul"),
    "mul_": _binary("mul"),
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "mean": _mean,
    "relu": _activation("relu"),
    "relu_": _activation("relu"),
    "sigmoid": _activation("sigmoid"),
    "tanh": _activation("tanh"),
    "contiguous": _identity,
    "clone": _identity,
}
