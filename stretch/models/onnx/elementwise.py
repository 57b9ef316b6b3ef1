"""Operators of ONNX that compute each element from those at the same place, as torch's functions."""

import operator
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.node import BOOL, FLOAT, FLOAT16, INT32, INT64
from stretch.models.builder import filled, shape_of
from stretch.models.onnx.folding import added, multiplied
from stretch.models.onnx.site import RULES, OnnxSite, Rule, Value, rule
from stretch.models.patterns import combined, layer_norm

#: Operators that are a function of torch, most by the same name.
_PLAIN = {
    **{
        name: getattr(torch, name.lower())
        for name in (
            *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "IsNaN", "Log"),
            *("Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
        )
    },
    **{name: getattr(F, name.lower()) for name in ("HardSwish", "Mish", "Selu", "Softplus", "Softsign")},
    "BitwiseNot": torch.bitwise_not,
    "Not": torch.logical_not,
}

_PAIRS = {
    "Add": operator.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Div": operator.truediv,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": operator.mul,
    "Or": torch.logical_or,
    "Pow": operator.pow,
    "Sub": operator.sub,
    "Xor": torch.logical_xor,
}

#: Of two tensors, never a number.
_LOGICAL = (torch.logical_and, torch.logical_or, torch.logical_xor)

_TYPES = {FLOAT: torch.float32, FLOAT16: torch.float32, INT32: torch.int32, INT64: torch.int64, BOOL: torch.bool}


def _plain(function: Any) -> Rule:
    return lambda site: site.builder.call(function, site.x)


RULES.update({name: _plain(function) for name, function in _PLAIN.items()})


def operand(site: OnnxSite, i: int) -> Any:
    """Input `i` as what a function of torch combines with a tensor: a single stored number is a number."""
    value = site.value(i)
    if isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= _rank(site.inputs):
        return value.item()
    return site.tensor(i)


def _rank(values: Any) -> int:
    """Axes of the tensors of the network among what a node reads."""
    return max((len(shape_of(value)) for value in values if isinstance(value, fx.Node)), default=0)


def _pair(site: OnnxSite, function: Any) -> fx.Node:
    if len(site.inputs) != 2:
        raise StretchError(f"it has {len(site.inputs)} inputs, two are taken")
    read = OnnxSite.tensor if function in _LOGICAL else operand
    return combined(site.builder, function, read(site, 0), read(site, 1))


for _name, _function in _PAIRS.items():
    rule(_name)(lambda site, function=_function: _pair(site, function))


def _of_several(function: Any) -> Rule:
    def combine(site: OnnxSite) -> fx.Node:
        tensor = site.tensor(0)
        for i in range(1, len(site.inputs)):
            tensor = site.builder.call(function, tensor, site.tensor(i))
        return tensor

    return combine


RULES.update({"Max": _of_several(torch.maximum), "Min": _of_several(torch.minimum)})


def _both_ways(site: OnnxSite) -> tuple[tuple[Value, ...], ...]:
    return (tuple(site.inputs), tuple(site.inputs)[::-1]) if len(site.inputs) == 2 else ()


@rule("Add")
def _add(site: OnnxSite) -> fx.Node:
    """A sum; numbers that are added to a product of matrices become its bias."""
    for x, bias in _both_ways(site):
        result = layer_norm(site.builder, x, bias, site.name) or added(site, x, bias)
        if result is not None:
            return result
    return _pair(site, operator.add)


@rule("Mul")
def _mul(site: OnnxSite) -> fx.Node:
    """A product; that of a layer of whole numbers with their scale is the layer."""
    for x, other in _both_ways(site):
        result = multiplied(site, x, other)
        if result is not None:
            return result
    return _pair(site, operator.mul)


@rule("Sum")
def _sum(site: OnnxSite) -> fx.Node:
    total = site.tensor(0)
    for i in range(1, len(site.inputs)):
        total = site.builder.call(operator.add, total, operand(site, i))
    return total


@rule("Mean")
def _mean_of_several(site: OnnxSite) -> fx.Node:
    return site.builder.call(operator.truediv, _sum(site), float(len(site.inputs)))


@rule("Mod")
def _remainder(site: OnnxSite) -> fx.Node:
    """With the sign of what is divided (`fmod`), or of what divides."""
    return _pair(site, torch.fmod if site.attrs.get("fmod", 0) else torch.remainder)


@rule("Celu")
def _celu(site: OnnxSite) -> fx.Node:
    return site.builder.call(F.celu, site.x, float(site.attrs.get("alpha", 1.0)))


@rule("ThresholdedRelu")
def _thresholded_relu(site: OnnxSite) -> fx.Node:
    return site.builder.call(F.threshold, site.x, float(site.attrs.get("alpha", 1.0)), 0.0)


@rule("Swish")
def _swish(site: OnnxSite) -> fx.Node:
    """X · sigmoid(alpha · x); torch's own has alpha 1."""
    alpha = float(site.attrs.get("alpha", 1.0))
    if alpha == 1:
        return site.builder.call(F.silu, site.x)
    gate = site.builder.call(torch.sigmoid, site.builder.call(operator.mul, site.x, alpha))
    return site.builder.call(operator.mul, site.x, gate)


@rule("SwiGLU")
def _swish_gated(site: OnnxSite) -> fx.Node:
    """Swish of one tensor times another."""
    return site.builder.call(operator.mul, _swish(site), site.tensor(1))


@rule("Shrink")
def _shrink(site: OnnxSite) -> fx.Node:
    """Nothing between −lambd and lambd, and what is beyond moved towards zero."""
    bound, bias = float(site.attrs.get("lambd", 0.5)), float(site.attrs.get("bias", 0.0))
    if bound < 0:
        raise StretchError(f"its lambd is {bound}")
    if bias == bound:
        return site.builder.call(F.softshrink, site.x, bound)
    kept = site.builder.call(F.hardshrink, site.x, bound)
    moved = site.builder.call(operator.mul, site.builder.call(torch.sign, kept), bias) if bias else None
    return kept if moved is None else site.builder.call(operator.sub, kept, moved)


@rule("IsInf")
def _is_infinite(site: OnnxSite) -> fx.Node:
    sides = [inf * sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if site.attrs.get(name, 1)]
    if not sides:
        raise StretchError("it looks for no infinity")
    return site.builder.call(torch.isinf, site.x) if len(sides) == 2 else site.builder.call(torch.eq, site.x, sides[0])


@rule("Clip")
def _clip(site: OnnxSite) -> fx.Node:
    bounds = []
    for i, name in ((1, "min"), (2, "max")):
        stored = site.optional(i, name)
        bounds.append(float(stored) if stored is not None and stored.size == 1 else site.attrs.get(name))
    if bounds == [None, None]:
        return site.x
    return site.builder.call(F.relu6, site.x) if bounds == [0, 6] else site.builder.call(torch.clamp, site.x, *bounds)


@rule("HardSigmoid")
def _hard_sigmoid(site: OnnxSite) -> fx.Node:
    """max(0, min(1, alpha · x + beta)); torch's own has alpha 1/6."""
    alpha, beta = site.attrs.get("alpha", 0.2), site.attrs.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return site.builder.call(F.hardsigmoid, site.x)
    line = site.builder.call(operator.add, site.builder.call(operator.mul, site.x, float(alpha)), float(beta))
    return site.builder.call(torch.clamp, line, 0.0, 1.0)


@rule("Elu")
def _elu(site: OnnxSite) -> fx.Node:
    return site.builder.call(F.elu, site.x, float(site.attrs.get("alpha", 1.0)))


@rule("LeakyRelu")
def _leaky_relu(site: OnnxSite) -> fx.Node:
    return site.builder.call(F.leaky_relu, site.x, float(site.attrs.get("alpha", 0.01)))


@rule("Gelu")
def _gelu(site: OnnxSite) -> fx.Node:
    return site.builder.call(F.gelu, site.x, approximate=site.attrs.get("approximate", "none"))


@rule("PRelu")
def _prelu(site: OnnxSite) -> fx.Node:
    """A slope for all elements or for each channel."""
    slope, channels = site.known(1, "slope"), site.shape[1]
    aligned = slope.reshape((1,) * (len(site.shape) - slope.ndim) + slope.shape)
    if slope.size not in (1, channels) or (slope.size > 1 and aligned.shape[1] != channels):
        raise StretchError(f"its slopes have the shape {list(slope.shape)}, not one number a channel")
    return site.builder.module(filled(nn.PReLU(slope.size), weight=slope.reshape(-1)), site.x, site.name)


@rule("Where")
def _where(site: OnnxSite) -> fx.Node:
    return site.builder.call(torch.where, site.tensor(0), site.tensor(1), site.tensor(2))


@rule("Cast")
def _cast(site: OnnxSite) -> fx.Node:
    """Another element type; half precision is computed in single."""
    to = _TYPES.get(site.attrs.get("to", 0))
    if to is None:
        raise StretchError(f"it casts to type {site.attrs.get('to')}")
    return _as_type(site, to)


@rule("CastLike")
def _cast_like(site: OnnxSite) -> fx.Node:
    """The element type of another tensor."""
    like = site.value(1)
    if isinstance(like, np.ndarray):
        return _as_type(site, torch.from_numpy(like[:0].copy() if like.ndim else like.copy()).dtype)
    return _as_type(site, site.tensor(1).meta["val"].dtype)


def _as_type(site: OnnxSite, kind: torch.dtype) -> fx.Node:
    return site.x if site.x.meta["val"].dtype == kind else site.builder.method("to", site.x, kind)


@rule("Identity", "Dropout")
def _identity(site: OnnxSite) -> fx.Node:
    """What it reads: nothing is dropped once a network is trained."""
    return site.x
