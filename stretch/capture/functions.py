"""Functions and tensor methods that lower to operators, a rule for each."""

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from predictors.shapes import Attr
from stretch.capture.settings import (
    Refusal,
    adaptive_pool,
    avg_pool,
    layer_norm,
    max_pool,
    pair,
    pointwise,
    softmax,
    upsample,
    window_padding,
)

Shapes = Mapping[fx.Node, tuple[int, ...]]
#: (nodes that are read, kind, attributes[, weights]); a list of them is a chain, each but the first reads the one before.
Lowered = tuple[Any, ...] | list[tuple[Any, ...]]
Rule = Callable[..., Lowered]


def _binary(kind: str) -> Rule:
    def rule(shapes: Shapes, out: tuple[int, ...], a: Any, b: Any, *, alpha: int = 1) -> Lowered:
        if alpha != 1:
            raise Refusal("it scales one side")
        for side, other in ((a, b), (b, a)):
            if isinstance(side, bool) or not isinstance(side, int | float | torch.Tensor | fx.Node):
                raise Refusal(f"it combines a tensor with {side!r}")
            if isinstance(side, int | float):
                if side == (0 if kind == "add" else 1):
                    return [other], "identity", {}
                return [other], f"{kind}_scalar", {"value": float(side)}
            if isinstance(side, torch.Tensor):
                return _with_constant(kind, other, side, out)
            if len(shapes[side]) != len(out):
                raise Refusal("it broadcasts over missing dimensions")
        return [a, b], kind, {}

    return rule


def _with_constant(kind: str, x: Any, constant: torch.Tensor, out: tuple[int, ...]) -> Lowered:
    """A tensor with one that does not depend on the input: a number, or a learned number per channel."""
    if constant.numel() == 1 and not constant.requires_grad:
        return [x], f"{kind}_scalar", {"value": float(constant)}
    sizes = (*[1] * (len(out) - constant.dim()), *constant.shape)
    if len(sizes) != len(out) or constant.numel() not in (1, out[1]) or sizes[1] != constant.numel():
        raise Refusal(f"it combines a tensor with parameters of shape {tuple(constant.shape)}, not with one number per channel")
    per_channel = constant.reshape(-1).expand(out[1])
    return ([x], "scale", {}, {"weight": per_channel}) if kind == "mul" else ([x], "shift", {}, {"bias": per_channel})


def _subtract(shapes: Shapes, out: tuple[int, ...], a: Any, b: Any) -> Lowered:
    add = _binary("add")
    if not isinstance(b, fx.Node):
        return add(shapes, out, a, -b)
    if isinstance(a, fx.Node):
        raise Refusal("it subtracts one tensor from another")
    return [([b], "mul_scalar", {"value": -1.0}), add(shapes, out, b, a)]


def _divide(shapes: Shapes, out: tuple[int, ...], a: Any, b: Any) -> Lowered:
    if not isinstance(a, fx.Node) or isinstance(b, fx.Node) or not torch.all(torch.as_tensor(b) != 0):
        raise Refusal("it divides by something else than a number")
    return _binary("mul")(shapes, out, a, 1 / b)


def _negate(shapes: Shapes, out: tuple[int, ...], x: Any) -> Lowered:
    return [x], "mul_scalar", {"value": -1.0}


def _softmax(kind: str) -> Rule:
    def rule(shapes: Shapes, out: tuple[int, ...], x: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Lowered:
        if dtype is not None:
            raise Refusal("it changes the type of its input")
        return [x], *softmax(kind, out, dim)

    return rule


def _interpolate(
    shapes: Shapes, out: tuple[int, ...], x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **_: Any
) -> Lowered:
    return [x], "upsample", upsample(shapes[x], size, scale_factor, mode)


def _constant(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise Refusal(f"its {what} depends on the input")
    return value


def _layer_norm(
    shapes: Shapes, out: tuple[int, ...], x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Lowered:
    kind, attrs, own = layer_norm(out, normalized_shape, weight, bias, eps)
    return [x], kind, attrs, own


def _linear(shapes: Shapes, out: tuple[int, ...], x: Any, weight: Any, bias: Any = None) -> Lowered:
    own = {"weight": _constant(weight, "weight")} | ({} if bias is None else {"bias": _constant(bias, "bias")})
    if len(shapes[x]) == 4:
        # Only channels that lie last come here with four dimensions.
        own["weight"] = own["weight"][:, :, None, None]
        return [x], "conv", pointwise(out[1], bias is not None), own
    if len(shapes[x]) != 2:
        raise Refusal(f"a linear layer over {len(shapes[x])} dimensions is not supported")
    return [x], "linear", {"out_features": out[1], "bias": bias is not None}, own


def _conv2d(
    shapes: Shapes,
    out: tuple[int, ...],
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Lowered:
    if isinstance(padding, str):
        raise Refusal(f"padding `{padding}` of a convolution function is not supported, only numbers")
    own = {"weight": _constant(weight, "weight")} | ({} if bias is None else {"bias": _constant(bias, "bias")})
    attrs: dict[str, Attr] = {
        "out_channels": out[1],
        "kernel": tuple(int(n) for n in own["weight"].shape[2:]),
        "stride": pair(stride),
        "padding": window_padding(padding),
        "dilation": pair(dilation),
        "groups": int(groups),
        "bias": bias is not None,
    }
    return [x], "conv", attrs, own


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


def _clamp(shapes: Shapes, out: tuple[int, ...], x: Any, min: Any = None, max: Any = None) -> Lowered:
    if (min, max) == (0, None):
        return [x], "relu", {}
    return _hardtanh(shapes, out, x, min, max)


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
    def rule(shapes: Shapes, out: tuple[int, ...], x: Any, output_size: Any, return_indices: bool = False) -> Lowered:
        if return_indices:
            raise Refusal("pooling that returns indices is not supported")
        kind, attrs = adaptive_pool(how, shapes[x], output_size)
        return [x], kind, attrs

    return rule


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
    if training and p > 0:
        raise Refusal("it drops at random in evaluation too: pass training=self.training")
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
    operator.sub: _subtract,
    operator.isub: _subtract,
    torch.sub: _subtract,
    operator.truediv: _divide,
    operator.itruediv: _divide,
    torch.div: _divide,
    operator.neg: _negate,
    torch.neg: _negate,
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
    F.conv2d: _conv2d,
    torch.conv2d: _conv2d,
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    F.softmax: _softmax("softmax"),
    torch.softmax: _softmax("softmax"),
    F.log_softmax: _softmax("log_softmax"),
    torch.log_softmax: _softmax("log_softmax"),
    F.interpolate: _interpolate,
    F.mish: _activation("mish"),
    torch.clamp: _clamp,
    F.dropout: _dropout,
    F.dropout2d: _dropout,
    F.pad: _pad,
}

METHODS: dict[str, Rule] = {
    "add": _binary("add"),
    "add_": _binary("add"),
    "mul": _binary("mul"),
    "mul_": _binary("mul"),
    "sub": _subtract,
    "div": _divide,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "clamp": _clamp,
    "clamp_": _clamp,
    "sigmoid_": _activation("sigmoid"),
    "neg": _negate,
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
