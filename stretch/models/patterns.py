"""Activations and layer norms that files write as several operators, found in the network while it is written."""

import operator
from collections.abc import Callable, Iterator
from itertools import product
from math import pi, sqrt
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from stretch.models.builder import Builder, filled, shape_of

#: Relative error of a number that was written in half or single precision.
_CLOSE = 1e-3


def combined(builder: Builder, function: Callable[..., Any], a: Any, b: Any) -> fx.Node:
    """A function of two operands, at least one of them a node; an activation that ends with it is one call."""
    if function in (operator.mul, operator.truediv):
        for activation, x, options in _activations(function, a, b):
            return builder.call(activation, x, **options)
    return builder.call(function, a, b)


def _activations(function: Any, a: Any, b: Any) -> Iterator[tuple[Callable[..., Any], fx.Node, dict[str, Any]]]:
    """The activation that a product or quotient is, with what it reads and its options."""
    factor, core = _unscaled(function, a, b)
    if _near(factor, 1 / 6) and (x := _shifted_relu6(core)) is not None:
        yield F.hardsigmoid, x, {}
    pair = _arguments(core, operator.mul) if core is not None else (a, b)
    if len(pair) != 2 or (core is None and function is not operator.mul):
        return
    for one, other in (pair, pair[::-1]):
        # A number may be written beside either of them, or be part of what is multiplied.
        for (first, x), (second, gate) in product(((1.0, one), _scaled(one)), ((1.0, other), _scaled(other))):
            share = factor * first * second
            for wanted, activation, read in _GATES:
                if isinstance(x, fx.Node) and _near(share, wanted) and read(gate) is x:
                    yield activation, x, {"approximate": "tanh"} if read is _tanh_gate else {}


def _unscaled(function: Any, a: Any, b: Any) -> tuple[float, fx.Node | None]:
    """The number and the node that a product or quotient is the product of; 1 and None where both are nodes."""
    if function is operator.mul and _is_number(a):
        a, b = b, a
    if not _is_number(b) or not isinstance(a, fx.Node) or (function is operator.truediv and not b):
        return 1.0, None
    factor, core = _scaled(a)
    return (factor * b if function is operator.mul else factor / b), core


def _scaled(x: Any) -> tuple[float, Any]:
    """The number and the node that a node is the product of."""
    pair = _arguments(x, operator.mul, operator.truediv)
    factor, core = _unscaled(x.target, *pair) if len(pair) == 2 else (1.0, None)
    return (1.0, x) if core is None else (factor, core)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _near(number: float, wanted: float) -> bool:
    return abs(number - wanted) <= _CLOSE * abs(wanted)


def _arguments(x: Any, *functions: Any) -> tuple[Any, ...]:
    """What a call of one of these functions reads; nothing for anything else."""
    return tuple(x.args) if isinstance(x, fx.Node) and x.op == "call_function" and x.target in functions else ()


def _read(x: Any, function: Any) -> Any:
    """What a call of this function reads first; None for anything else."""
    return next(iter(_arguments(x, function)), None)


def _with_number(x: Any, function: Any, wanted: float) -> Any:
    """What a function combines with about this number; None for anything else."""
    pair = _arguments(x, function)
    if len(pair) == 2 and function in (operator.add, operator.mul) and _is_number(pair[0]):
        pair = pair[::-1]
    return pair[0] if len(pair) == 2 and _is_number(pair[1]) and _near(pair[1], wanted) else None


def _shifted_relu6(x: Any) -> Any:
    """X of min(max(x + 3, 0), 6)."""
    return _with_number(_read(x, F.relu6), operator.add, 3)


def _hard_gate(x: Any) -> Any:
    """X of a hard sigmoid, whose slope may be rounded."""
    line = _arguments(x, torch.clamp)
    if line[1:] == (0.0, 1.0):
        return _with_number(_with_number(line[0], operator.add, 0.5), operator.mul, 1 / 6)
    return _read(x, F.hardsigmoid)


def _erf_gate(x: Any) -> Any:
    """X of erf(x / √2) + 1 (Hendrycks and Gimpel, GELU, section 2)."""
    factor, core = _scaled(_read(_with_number(x, operator.add, 1), torch.erf))
    return core if _near(factor, 1 / sqrt(2)) else None


def _tanh_gate(x: Any) -> Any:
    """X of tanh(√(2 / π) · (x + 0.044715 · x³)) + 1 (Hendrycks and Gimpel, GELU, section 2)."""
    factor, total = _scaled(_read(_with_number(x, operator.add, 1), torch.tanh))
    pair = _arguments(total, operator.add)
    for core, cube in (pair, pair[::-1]) if len(pair) == 2 and _near(factor, sqrt(2 / pi)) else ():
        share, power = _scaled(cube)
        if _near(share, 0.044715) and core is not None and _with_number(power, operator.pow, 3) is core:
            return core
    return None


#: What a tensor times a gate of it is: the number that both are multiplied by, the function, and what the gate reads.
_GATES: tuple[tuple[float, Callable[..., Any], Callable[[Any], Any]], ...] = (
    (1, F.silu, lambda x: _read(x, torch.sigmoid)),
    (1, F.hardswish, _hard_gate),
    (1 / 6, F.hardswish, _shifted_relu6),
    (1, F.mish, lambda x: _read(_read(x, torch.tanh), F.softplus)),
    (0.5, F.gelu, _erf_gate),
    (0.5, F.gelu, _tanh_gate),
)


def layer_norm(builder: Builder, x: Any, bias: Any, name: str) -> fx.Node | None:
    """The layer norm over the last axis that ends with the sum of a node and a stored tensor; None if it is none.

    It is (x − m) / √(v + eps) · weight + bias with the mean m of x and v of (x − m)².
    """
    factors = _arguments(x, operator.mul)
    for normed, stored in (factors, factors[::-1]) if isinstance(bias, np.ndarray) and len(factors) == 2 else ():
        weight = builder.value(stored)
        centred, deviation = _arguments(normed, operator.truediv) or (None, None)
        read = _centred(centred)
        squared, eps = _arguments(_read(deviation, torch.sqrt), operator.add) or (None, None)
        square = _mean_over_last(squared)
        if weight is None or read is None or not _is_number(eps) or _centred(_with_number(square, operator.pow, 2)) is not read:
            continue
        if bias.shape == tuple(weight.shape) == shape_of(read)[-1:]:
            module = nn.LayerNorm(shape_of(read)[-1:], eps=float(eps))
            return builder.module(filled(module, weight=weight.detach().numpy(), bias=bias), read, name)
    return None


def _mean_over_last(x: Any) -> Any:
    """What a node is the mean of, over the last axis alone, which it keeps."""
    read, axes, kept = _arguments(x, torch.mean) or (None, None, None)
    return read if kept and isinstance(read, fx.Node) and list(axes) == [len(shape_of(read)) - 1] else None


def _centred(x: Any) -> Any:
    """X of x − mean(x)."""
    read, mean = _arguments(x, operator.sub) or (None, None)
    return read if read is not None and _mean_over_last(mean) is read else None
