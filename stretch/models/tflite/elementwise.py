"""Operators of TFLite that compute each element from those at the same place, as torch's functions."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from stretch.models.builder import filled
from stretch.models.patterns import combined
from stretch.models.tflite.site import RULES, TfliteSite, TfliteView, aligned, module, rule

_PLAIN: dict[str, Callable[..., Any]] = {
    "ABS": torch.abs,
    "CEIL": torch.ceil,
    "COS": torch.cos,
    "ELU": F.elu,
    "EXP": torch.exp,
    "FLOOR": torch.floor,
    "HARD_SWISH": F.hardswish,
    "LOG": torch.log,
    "LOGICAL_NOT": torch.logical_not,
    "LOGISTIC": torch.sigmoid,
    "NEG": torch.neg,
    "RELU": torch.relu,
    "RELU6": F.relu6,
    "ROUND": torch.round,
    "RSQRT": torch.rsqrt,
    "SIGN": torch.sign,
    "SIN": torch.sin,
    "SQRT": torch.sqrt,
    "SQUARE": torch.square,
    "TANH": torch.tanh,
}

_PAIRS: dict[str, Callable[..., Any]] = {
    "DIV": operator.truediv,
    "EQUAL": torch.eq,
    "FLOOR_DIV": operator.floordiv,
    "GREATER": torch.gt,
    "GREATER_EQUAL": torch.ge,
    "LESS": torch.lt,
    "LESS_EQUAL": torch.le,
    "NOT_EQUAL": torch.ne,
    "MUL": operator.mul,
    "POW": operator.pow,
    "SUB": operator.sub,
}

#: Of two tensors, never a number.
_TENSORS: dict[str, Callable[..., Any]] = {"LOGICAL_AND": torch.logical_and, "LOGICAL_OR": torch.logical_or}

_TYPES = {"float32": torch.float32, "float16": torch.float32, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool}


def _unary(function: Callable[..., Any], site: TfliteSite, **more: Any) -> TfliteView:
    seen = site.seen(0)
    return seen.like(site.builder.call(function, seen.node, **more))


def _pair(function: Callable[..., Any], site: TfliteSite) -> TfliteView:
    (a, b), order = aligned(site, (0, 1))
    return order.like(site.activated(combined(site.builder, function, a, b)))


RULES.update({name: partial(_unary, function) for name, function in _PLAIN.items()})
RULES.update({name: partial(_pair, function) for name, function in _PAIRS.items()})


@rule("LOGICAL_AND", "LOGICAL_OR")
def _logical(site: TfliteSite) -> TfliteView:
    (a, b), order = aligned(site, (0, 1))
    return order.like(site.builder.call(_TENSORS[site.code], *(_tensor(site, value) for value in (a, b))))


def _tensor(site: TfliteSite, value: Any) -> fx.Node:
    return value if isinstance(value, fx.Node) else site.builder.stored(np.array(value), site.name)


@rule("ADD")
def _add(site: TfliteSite) -> TfliteView:
    return _pair(operator.add, site)


@rule("ADD_N")
def _sum(site: TfliteSite) -> TfliteView:
    operands, order = aligned(site, range(len(site.inputs)))
    total = operands[0]
    for operand in operands[1:]:
        total = site.builder.call(operator.add, total, operand)
    return order.like(total)


@rule("MAXIMUM", "MINIMUM")
def _limit(site: TfliteSite) -> TfliteView:
    """Of two tensors, or a bound; two bounds are one clipping."""
    (a, b), order = aligned(site, (0, 1))
    if isinstance(a, int | float):
        a, b = b, a
    if not isinstance(b, int | float):
        return order.like(site.builder.call(torch.maximum if site.code == "MAXIMUM" else torch.minimum, a, b))
    low, high = (float(b), None) if site.code == "MAXIMUM" else (None, float(b))
    if a.op == "call_function" and a.target is torch.clamp and len(a.args) == 3:
        earlier, before, behind = a.args
        if (before if low is not None else behind) is None and (low is None or behind is None or low <= behind):  # type: ignore[operator]
            a, low, high = earlier, before if low is None else low, behind if high is None else high
    return order.like(_clipped(site, a, low, high))


def _clipped(site: TfliteSite, x: Any, low: Any, high: Any) -> fx.Node:
    if (low, high) == (0.0, 6.0):
        return site.builder.call(F.relu6, x)
    return site.builder.call(torch.clamp, x, low, high)


@rule("RELU_N1_TO_1", "RELU_0_TO_1")
def _bounded(site: TfliteSite) -> TfliteView:
    seen = site.seen(0)
    return seen.like(site.builder.call(torch.clamp, seen.node, -1.0 if site.code == "RELU_N1_TO_1" else 0.0, 1.0))


@rule("SQUARED_DIFFERENCE")
def _squared_difference(site: TfliteSite) -> TfliteView:
    (a, b), order = aligned(site, (0, 1))
    return order.like(site.builder.call(torch.square, site.builder.call(operator.sub, a, b)))


@rule("LEAKY_RELU")
def _leaky_relu(site: TfliteSite) -> TfliteView:
    return _unary(F.leaky_relu, site, negative_slope=float(site.settings.get("alpha", 0.0)))


@rule("GELU")
def _gelu(site: TfliteSite) -> TfliteView:
    return _unary(F.gelu, site, approximate="tanh" if site.settings.get("approximate") else "none")


@rule("PRELU")
def _prelu(site: TfliteSite) -> TfliteView:
    """A slope for each channel, or for each element."""
    slope, seen = site.known(1, "slope"), site.seen(0)
    channels = seen.shape[-1]
    if slope.size in (1, channels) and slope.size == slope.shape[-1] and (seen.form == "image" or len(seen.shape) == 2):
        built = filled(nn.PReLU(slope.size), weight=slope.reshape(-1).astype(np.float32))
        return seen.like(module(site, built, seen.node if seen.form != "row" else site.plain()))
    (x, by), order = aligned(site, (0, 1))
    below = site.builder.call(operator.mul, site.builder.call(torch.clamp, x, None, 0.0), by)
    return order.like(site.builder.call(operator.add, site.builder.call(torch.relu, x), below))


@rule("SELECT", "SELECT_V2")
def _select(site: TfliteSite) -> TfliteView:
    operands, order = aligned(site, (0, 1, 2))
    return order.like(site.builder.call(torch.where, *operands))


@rule("CAST")
def _cast(site: TfliteSite) -> TfliteView:
    """Another element type; half precision is computed in single."""
    seen, to = site.seen(0), _TYPES.get(site.kinds[0])
    if to is None:
        raise StretchError(f"it casts to {site.kinds[0]}")
    return seen if seen.node.meta["val"].dtype == to else seen.like(site.builder.method("to", seen.node, to))


@rule("QUANTIZE", "DEQUANTIZE")
def _real(site: TfliteSite) -> TfliteView:
    """What it reads: the scales of activations are found anew."""
    return site.seen(0)
