"""Modules that lower to operators as they are, a rule for each class."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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

#: (suffix of the operator's name, kind, attributes, weights)
Lowered = tuple[str, str, dict[str, Attr], dict[str, torch.Tensor]]
Rule = Callable[[Any, tuple[int, ...]], list[Lowered]]


def _conv(m: nn.Conv2d, shape: tuple[int, ...]) -> list[Lowered]:
    kernel, stride, dilation = pair(m.kernel_size), pair(m.stride), pair(m.dilation)
    if m.padding_mode != "zeros":
        raise Refusal(f"padding mode `{m.padding_mode}` is not supported")
    pads = getattr(m, "pads", None)
    if pads is not None:
        padding = tuple(pads)
    elif type(m).__name__ == "Conv2dSame":
        padding = _same_padding(shape, kernel, stride, dilation)
    elif m.padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        padding = (total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2)
    else:
        padding = window_padding((0, 0) if m.padding == "valid" else m.padding)
    attrs: dict[str, Attr] = {
        "out_channels": m.out_channels,
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": m.groups,
        "bias": m.bias is not None,
    }
    return [("", "conv", attrs, {"weight": m.weight} | ({"bias": m.bias} if m.bias is not None else {}))]


def _same_padding(shape: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """TensorFlow's SAME padding at this input size, more at the bottom and right."""
    total = [
        max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in zip(shape[2:], kernel, stride, dilation, strict=True)
    ]
    return (total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2)


def _linear(m: nn.Linear, shape: tuple[int, ...]) -> list[Lowered]:
    if len(shape) != 2:
        raise Refusal(f"a linear layer over {len(shape)} dimensions is not supported")
    weights = {"weight": m.weight} | ({"bias": m.bias} if m.bias is not None else {})
    return [("", "linear", {"out_features": m.out_features, "bias": m.bias is not None}, weights)]


def _norm_op(m: Any) -> Lowered:
    if m.running_mean is None:
        raise Refusal("batch normalisation without running statistics is not supported")
    if m.momentum is None:
        raise Refusal("batch normalisation with a cumulative average (momentum None) is not supported")
    weights = {"weight": m.weight, "bias": m.bias} if m.weight is not None else {}
    weights |= {"running_mean": m.running_mean, "running_var": m.running_var}
    return ("", "batch_norm", {"eps": float(m.eps), "momentum": float(m.momentum), "affine": m.weight is not None}, weights)


def _norm(m: nn.BatchNorm2d, shape: tuple[int, ...]) -> list[Lowered]:
    return [_norm_op(m)]


def _norm1d(m: nn.BatchNorm1d, shape: tuple[int, ...]) -> list[Lowered]:
    if len(shape) != 2:
        raise Refusal(f"one-dimensional batch normalisation over {len(shape)} dimensions is not supported")
    return [_norm_op(m)]


def _norm_act(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    """Timm's batch-norm that carries its activation."""
    lowered = [_norm_op(m)]
    for suffix in ("drop", "act"):
        part = getattr(m, suffix)
        if not isinstance(part, nn.Identity):
            lowered += [(suffix, kind, attrs, own) for _, kind, attrs, own in lower_module(part, shape)]
    return lowered


def _plain(kind: str) -> Rule:
    return lambda m, shape: [("", kind, {}, {})]


def _gelu(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "gelu", {"approximate": getattr(m, "approximate", "none")}, {})]


def _max_pool(m: nn.MaxPool2d, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "max_pool", max_pool(m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices), {})]


def _avg_pool(m: nn.AvgPool2d, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "avg_pool", avg_pool(m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override), {})]


def _adaptive(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    kind, attrs = adaptive_pool("max" if isinstance(m, nn.AdaptiveMaxPool2d) else "avg", shape, m.output_size)
    return [("", kind, attrs, {})]


def _flatten(m: nn.Flatten, shape: tuple[int, ...]) -> list[Lowered]:
    last = m.end_dim if m.end_dim >= 0 else len(shape) + m.end_dim
    if m.start_dim != 1 or last != len(shape) - 1:
        raise Refusal(f"flattening dimensions {m.start_dim} to {m.end_dim} is not supported")
    return [("", "flatten", {}, {})]


def _dropout(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "dropout", {"p": float(m.p)}, {})]


def _stochastic_depth(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    if hasattr(m, "mode"):
        return [("", "stochastic_depth", {"p": float(m.p), "mode": m.mode}, {})]
    return [("", "stochastic_depth", {"p": float(m.drop_prob or 0.0), "mode": "row"}, {})]


def _zero_pad(m: nn.ZeroPad2d, shape: tuple[int, ...]) -> list[Lowered]:
    left, right, top, bottom = m.padding
    return [("", "pad", {"padding": (top, left, bottom, right)}, {})]


def _hardtanh(m: nn.Hardtanh, shape: tuple[int, ...]) -> list[Lowered]:
    if (m.min_val, m.max_val) != (0.0, 6.0):
        raise Refusal(f"clamping to {m.min_val} … {m.max_val} is not supported, only 0 … 6")
    return [("", "relu6", {}, {})]


def _unflatten(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    dim, sizes = getattr(m, "dim", 1), tuple(getattr(m, "unflattened_size", (shape[1], 1, 1)))
    if len(shape) != 2 or dim % 2 != 1 or sizes not in ((shape[1], 1, 1), (-1, 1, 1)):
        raise Refusal(f"reshaping dimension {dim} to {sizes} is not supported")
    return [("", "unflatten", {}, {})]


def _leaky_relu(m: nn.LeakyReLU, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "leaky_relu", {"slope": float(m.negative_slope)}, {})]


def _elu(m: nn.ELU, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "elu", {"alpha": float(m.alpha)}, {})]


def _upsample(m: nn.Upsample, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "upsample", upsample(shape, m.size, m.scale_factor, m.mode), {})]


def _softmax(kind: str) -> Rule:
    def rule(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
        return [("", *softmax(kind, shape, m.dim), {})]

    return rule


def _prelu(m: nn.PReLU, shape: tuple[int, ...]) -> list[Lowered]:
    # One slope for all channels is one for each.
    return [("", "prelu", {}, {"weight": m.weight.expand(shape[1])})]


def _layer_norm(m: nn.LayerNorm, shape: tuple[int, ...]) -> list[Lowered]:
    if len(shape) != 2:
        raise Refusal("layer normalisation over the last dimension of a feature map is not supported, only over channels")
    return _channel_norm(m, shape)


def _channel_norm(m: nn.LayerNorm, shape: tuple[int, ...]) -> list[Lowered]:
    kind, attrs, own = layer_norm(shape, m.normalized_shape, m.weight, m.bias, m.eps)
    return [("", kind, attrs, own)]


def _own_channel_norm(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    kind, attrs, own = layer_norm(shape, (m.channels,), m.weight, m.bias, m.eps)
    return [("", kind, attrs, own)]


def _pointwise(m: nn.Linear, shape: tuple[int, ...]) -> list[Lowered]:
    """A linear layer over channels that lie last: a 1×1 convolution."""
    weights = {"weight": m.weight[:, :, None, None]} | ({"bias": m.bias} if m.bias is not None else {})
    return [("", "conv", pointwise(m.out_features, m.bias is not None), weights)]


def _channel_shuffle(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "channel_shuffle", {"groups": m.groups}, {})]


def _global_pool(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", m.kind, {"keepdims": m.keepdims}, {})]


def _slice(m: Any, shape: tuple[int, ...]) -> list[Lowered]:
    return [("", "slice", {"start": m.start, "stop": m.stop}, {})]


#: By class name, looked up along the class's bases: timm and torchvision need not be imported.
_RULES: dict[str, Rule] = {
    "Conv2d": _conv,
    "Conv2dSame": _conv,
    "PaddedConv2d": _conv,
    "Linear": _linear,
    "BatchNorm1d": _norm1d,
    "BatchNorm2d": _norm,
    "BatchNormAct2d": _norm_act,
    "ReLU": _plain("relu"),
    "ReLU6": _plain("relu6"),
    "Hardswish": _plain("hard_swish"),
    "Hardsigmoid": _plain("hard_sigmoid"),
    "SiLU": _plain("silu"),
    "Swish": _plain("silu"),
    "Sigmoid": _plain("sigmoid"),
    "Tanh": _plain("tanh"),
    "GELU": _gelu,
    "LeakyReLU": _leaky_relu,
    "ELU": _elu,
    "MaxPool2d": _max_pool,
    "AvgPool2d": _avg_pool,
    "AdaptiveAvgPool2d": _adaptive,
    "AdaptiveMaxPool2d": _adaptive,
    "Flatten": _flatten,
    "Identity": _plain("identity"),
    "Dropout": _dropout,
    "Dropout2d": _dropout,
    "StochasticDepth": _stochastic_depth,
    "DropPath": _stochastic_depth,
    "ZeroPad2d": _zero_pad,
    "Mish": _plain("mish"),
    "PReLU": _prelu,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "LayerNorm": _layer_norm,
    "Hardtanh": _hardtanh,
    "Upsample": _upsample,
    "UpsamplingNearest2d": _upsample,
    "ChannelShuffle": _channel_shuffle,
    "ChannelNorm": _own_channel_norm,
    "ChannelScale": lambda m, shape: [("", "scale", {}, {"weight": m.weight})],
    "ChannelShift": lambda m, shape: [("", "shift", {}, {"bias": m.bias})],
    "AddScalar": lambda m, shape: [("", "add_scalar", {"value": m.value}, {})],
    "MulScalar": lambda m, shape: [("", "mul_scalar", {"value": m.value}, {})],
    "Unflatten": _unflatten,
    "ChannelSlice": _slice,
    "GlobalPool": _global_pool,
    "Add": _plain("add"),
    "Mul": _plain("mul"),
    "Concat": _plain("concat"),
}

#: Packages whose classes the table above speaks of; a user's `Conv2d` is no torch `Conv2d`.
_PACKAGES = ("torch.nn.", "torchvision.", "timm.", "stretch.transform.")


def _rule(module: nn.Module) -> Rule | None:
    for base in type(module).__mro__:
        if base.__name__ in _RULES and base.__module__.startswith(_PACKAGES):
            return _RULES[base.__name__]
        if "forward" in vars(base):
            # A forward we know nothing of may compute anything: it is traced through.
            return None
    return None


def lowers(module: nn.Module) -> bool:
    """Whether this module becomes operators without being traced through."""
    return _rule(module) is not None


def lower_module(module: nn.Module, shape: tuple[int, ...], channels_last: bool = False) -> list[Lowered]:
    """Operators of one module that reads a tensor of this shape, in a chain.

    Args:
        module: The module.
        shape: N×C×H×W or N×C.
        channels_last: Whether the module sees the tensor as N×H×W×C.

    Raises:
        Refusal: If the module or a setting of it is not supported.
    """
    rule = _rule(module)
    if rule is None:
        raise Refusal(f"the module `{type(module).__name__}` is not supported")
    if channels_last:
        return {_linear: _pointwise, _layer_norm: _channel_norm}.get(rule, rule)(module, shape)
    return rule(module, shape)
