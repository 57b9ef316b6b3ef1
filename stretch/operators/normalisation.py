"""Normalisations in torch, ONNX and TFLite."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.graph import Op
from predictors.shapes import Attr, Shape, integer, number
from stretch.operators.capturing import (
    MODULES,
    FunctionRule,
    Own,
    Step,
    TracedCall,
    UnsupportedNode,
    as_chain,
    calls,
    constants,
    lower_module,
    module_chain,
    modules,
    require_supported,
)
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import UNIT, SubgraphBuilder, SubgraphSource, Value
from stretch.operators.lowerings import onnx_node, register, tflite_op


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each pixel."""

    def __init__(self, channels: int, eps: float, affine: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.channels = channels

    def extra_repr(self) -> str:
        """Return the channels and epsilon."""
        return f"{self.channels}, eps={self.eps}, affine={self.weight is not None}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise along dimension 1."""
        last = F.layer_norm(x.movedim(1, -1), (self.channels,), self.weight, self.bias, self.eps)
        return last.movedim(-1, 1)


@calls(classes=("BatchNorm1d", "BatchNorm2d"), fields=("weight", "bias", "running_mean", "running_var", "momentum", "eps"))
def _batch_norm(call: TracedCall, x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: float) -> Step:
    require_supported(running_mean is not None, "batch normalisation without running statistics is not supported")
    require_supported(momentum is not None, "batch normalisation with a cumulative average (momentum None) is not supported")
    require_supported(len(call.shapes[x]) != 3, "batch normalisation over 3 dimensions is not supported")
    weights = constants(weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    return Step("batch_norm", {"eps": float(eps), "momentum": float(momentum), "affine": weight is not None}, (x,), weights)


@modules("BatchNormAct2d")
def _norm_act(m: Any, shape: Shape) -> list[Step]:
    """Lower timm's batch norm with its activation."""
    chain = as_chain(MODULES["BatchNorm2d"](m, shape))
    for name in ("drop", "act"):
        part = getattr(m, name)
        if not isinstance(part, nn.Identity):
            chain += [replace(step, suffix=name) for step in lower_module(part, shape)]
    return chain


def _affine(noun: str, weight: Any, bias: Any) -> Own:
    """Return one factor and one offset per channel, or neither."""
    require_supported(weight is not None or bias is None, f"{noun} normalisation with a bias alone is not supported")
    return {} if weight is None else constants(weight=weight, bias=torch.zeros_like(weight) if bias is None else bias)


@modules("ChannelNorm")
def _channel_norm(m: ChannelNorm, shape: Shape) -> list[Step]:
    return module_chain(_layer_norm, shape, normalized_shape=(m.channels,), weight=m.weight, bias=m.bias, eps=m.eps)


@calls(F.layer_norm, classes=("LayerNorm",), fields=("normalized_shape", "weight", "bias", "eps"), last=True)
def _layer_norm(call: TracedCall, x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Step:
    if tuple(normalized_shape) != (call.out[1],):
        raise UnsupportedNode(f"layer normalisation over {tuple(normalized_shape)} is not supported, only over channels")
    return Step("layer_norm", {"eps": float(eps), "affine": weight is not None}, (x,), _affine("layer", weight, bias))


@calls(F.group_norm, classes=("GroupNorm",), fields=("num_groups", "weight", "bias", "eps"))
def _group_norm(call: TracedCall, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Step:
    attrs: dict[str, Attr] = {"groups": int(num_groups), "eps": float(eps), "affine": weight is not None}
    return Step("group_norm", attrs, (x,), _affine("group", weight, bias))


def _softmax(kind: str) -> FunctionRule:
    def rule(call: TracedCall, x: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Step:
        require_supported(dtype is None, "it changes the type of its input")
        if (dim is None and len(call.out) != 2) or (dim is not None and dim % len(call.out) != 1):
            raise UnsupportedNode(f"a softmax over dimension {dim} is not supported, only over channels")
        return Step(kind, {}, (x,))

    return rule


for _kind, _class, _functions in (
    ("softmax", "Softmax", (F.softmax, torch.softmax)),
    ("log_softmax", "LogSoftmax", (F.log_softmax, torch.log_softmax)),
):
    calls(*_functions, methods=(_kind,), classes=(_class,), fields=("dim",), aten=(_kind, f"_{_kind}"))(_softmax(_kind))


def _onnx_batch_norm(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    affine = [w.weight(op, "weight", 1.0), w.weight(op, "bias", 0.0)]
    statistics = [w.weight(op, "running_mean"), w.weight(op, "running_var")]
    w.node("BatchNormalization", op, [ins[0], *affine, *statistics], epsilon=number(op.attrs, "eps"))


def _onnx_layer_norm(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    """Write a layer norm; ONNX normalises the last dimensions, so channels are moved last and back."""
    rank = len(op.shape)
    affine = [w.weight(op, "weight", 1.0), w.weight(op, "bias", 0.0)]
    epsilon = number(op.attrs, "eps")
    if rank == 2:
        w.node("LayerNormalization", op, [ins[0], *affine], axis=-1, epsilon=epsilon)
        return
    w.node("Transpose", op, ins, output=f"{op.name}.last", perm=[0, *range(2, rank), 1])
    w.node("LayerNormalization", op, [f"{op.name}.last", *affine], output=f"{op.name}.normed", axis=-1, epsilon=epsilon)
    w.node("Transpose", op, [f"{op.name}.normed"], perm=[0, rank - 1, *range(1, rank - 1)])


def _onnx_group_norm(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    """Write each group as a row with layer normalisation, which every delegate computes; then one factor and one offset per channel."""
    groups = integer(op.attrs, "groups")
    ones = w.constant(f"{op.name}.ones", np.ones(prod(op.shape[1:]) // groups, np.float32))
    w.node("Reshape", op, [ins[0], w.indices(op, "rows", [op.shape[0], groups, -1])], output=f"{op.name}.groups")
    w.node("LayerNormalization", op, [f"{op.name}.groups", ones], output=f"{op.name}.rows_normed", axis=-1, epsilon=number(op.attrs, "eps"))
    affine = bool(op.attrs["affine"])
    w.node("Reshape", op, [f"{op.name}.rows_normed", w.indices(op, "sizes", op.shape)], output=f"{op.name}.normed" if affine else None)
    if affine:
        w.node("Mul", op, [f"{op.name}.normed", w.per_channel(op, "weight")], output=f"{op.name}.scaled")
        w.node("Add", op, [f"{op.name}.scaled", w.per_channel(op, "bias")])


def _tflite_batch_norm(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a batch norm that could not be folded into a convolution: one factor and one offset per channel."""
    weights = {key: value.astype(np.float64) for key, value in source.weights[op.name].items()}
    factor = weights.get("weight", 1.0) / np.sqrt(weights["running_var"] + number(op.attrs, "eps"))
    scaled = b.apply("MUL", f"{op.name}.scaled", [ins[0], factor], quant=b.scale(op))
    return b.apply("ADD", op.name, [scaled, weights.get("bias", 0.0) - factor * weights["running_mean"]], quant=b.scale(op))


def _tflite_layer_norm(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a layer norm by the mean and variance along the last axis, which is the channels in TFLite."""
    name, weights, shape = op.name, source.weights.get(op.name, {}), ins[0].shape
    axes = b.indices(f"{name}.axes", [len(shape) - 1])
    scalar_shape = (*shape[:-1], 1)
    mean = b.apply("MEAN", f"{name}.mean", [ins[0]], scalar_shape, extra=[axes], keep_dims=True)
    centred = b.apply("SUB", f"{name}.centred", [ins[0], mean])
    square = b.apply("MUL", f"{name}.square", [centred, centred])
    variance = b.apply("MEAN", f"{name}.variance", [square], scalar_shape, extra=[axes], keep_dims=True)
    raised = b.apply("ADD", f"{name}.raised", [variance, np.array(number(op.attrs, "eps"))])
    rate = b.apply("RSQRT", f"{name}.rate", [raised])
    y = b.apply("MUL", f"{name}.normed", [centred, rate])
    if "weight" in weights:
        y = b.apply("MUL", f"{name}.scaled", [y, weights["weight"]])
        y = b.apply("ADD", name, [y, weights["bias"]])
    return y


register(
    "batch_norm",
    lambda ins, a: {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(ins[0])](
        ins[0][1], number(a, "eps"), number(a, "momentum"), bool(a["affine"])
    ),
    _onnx_batch_norm,
    _tflite_batch_norm,
    stored=("weight", "bias", "running_mean", "running_var"),
    int8=False,
)
register(
    "layer_norm",
    lambda ins, a: ChannelNorm(ins[0][1], number(a, "eps"), bool(a["affine"])),
    _onnx_layer_norm,
    _tflite_layer_norm,
    stored=("weight", "bias"),
    int8=False,
)
register(
    "group_norm",
    lambda ins, a: nn.GroupNorm(integer(a, "groups"), ins[0][1], number(a, "eps"), bool(a["affine"])),
    _onnx_group_norm,
    stored=("weight", "bias"),
)
register(
    "softmax",
    lambda ins, a: nn.Softmax(dim=1),
    onnx_node("Softmax", axis=1),
    tflite_op("SOFTMAX", settings=lambda a: {"beta": 1.0}, quant=UNIT),
)
register("log_softmax", lambda ins, a: nn.LogSoftmax(dim=1), onnx_node("LogSoftmax", axis=1), tflite_op("LOG_SOFTMAX"), int8=False)
