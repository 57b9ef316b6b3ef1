"""Operators of ONNX that compute each element from those at the same place, and products with stored matrices that take up stored factors and summands."""

import copy
import operator
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.node import BOOL, FLOAT, FLOAT16, INT32, INT64
from stretch.models.builder import combined, filled, layer_norm, shape_of
from stretch.models.onnx.site import RULES, OnnxSite, Rule, Value, rule


def linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """A linear layer; `weight` is out × in, `bias` a number for each output or one for all."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return filled(module, weight=weight, bias=None if bias is None else np.broadcast_to(bias, weight.shape[:1]))


@rule("Gemm")
def _gemm(site: OnnxSite) -> fx.Node:
    """Alpha · A · B + beta · C (ONNX Gemm)."""
    weight, bias = site.known(1, "weight"), site.optional(2, "bias")
    if site.attrs.get("transA", 0) or weight.ndim != 2 or len(site.shape) != 2:
        raise StretchError("it turns what it reads, or reads no matrix")
    weight = (weight if site.attrs.get("transB", 0) else weight.T) * np.float32(site.attrs.get("alpha", 1.0))
    if bias is not None:
        bias = bias * np.float32(site.attrs.get("beta", 1.0))
        if bias.size not in (1, weight.shape[0]) or bias.shape[-1:] not in ((), (1,), (weight.shape[0],)):
            raise StretchError(f"its bias has the shape {list(bias.shape)}, not one number a column")
        bias = bias.reshape(-1)
    return site.builder.module(linear(weight, bias), site.x, site.name)


@rule("MatMul")
def _matmul(site: OnnxSite) -> fx.Node:
    right = site.value(1)
    if isinstance(right, np.ndarray) and right.ndim == 2 and isinstance(site.value(0), fx.Node):
        return site.builder.module(linear(right.T, None), site.x, site.name)
    return site.builder.call(torch.matmul, site.tensor(0), site.tensor(1))


#: Says of a node that it is a product of weights that are still in steps: what follows scales it.
UNSCALED = "unscaled"

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def added(site: OnnxSite, x: Value, bias: Value) -> fx.Node | None:
    """A product of matrices, or one of whole numbers, with these numbers as its bias; None for anything else."""
    if not isinstance(x, fx.Node) or not isinstance(bias, np.ndarray):
        return None
    layer = site.builder.behind(x)
    if isinstance(layer, nn.Linear) and layer.bias is None and bias.shape == (layer.out_features,):
        return _again(site, x, linear(layer.weight.detach().numpy(), bias.astype(np.float32)))
    if not isinstance(layer, _CONVOLUTIONS) or layer.bias is not None or not x.meta.get(UNSCALED):
        return None
    numbers = _by_channel(x, layer, bias)
    return None if numbers is None else _again(site, x, _convolution(layer, layer.weight.detach().numpy(), numbers))


def multiplied(site: OnnxSite, x: Value, factor: Value) -> fx.Node | None:
    """A product of whole numbers with its weights in another scale; None for anything else."""
    if not isinstance(x, fx.Node) or not isinstance(factor, np.ndarray) or not x.meta.get(UNSCALED):
        return None
    layer = site.builder.behind(x)
    assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    numbers = _by_channel(x, layer, factor)
    if numbers is None:
        return None
    weight = layer.weight.detach().numpy()
    weight = weight * numbers.reshape(-1, *(1,) * (weight.ndim - 1))
    bias = None if layer.bias is None else layer.bias.detach().numpy() * numbers
    return _again(site, x, linear(weight, bias) if isinstance(layer, nn.Linear) else _convolution(layer, weight, bias))


def times(site: OnnxSite, x: fx.Node, factor: np.ndarray) -> fx.Node:
    """A tensor times stored numbers, by its weights where it is a product of whole ones."""
    if factor.size == 1 and factor.item() == 1:
        return x
    result = multiplied(site, x, factor)
    if result is not None:
        return result
    return site.builder.call(operator.mul, x, factor.item() if factor.size == 1 else site.builder.stored(factor, f"{site.name}_scale"))


def _again(site: OnnxSite, x: fx.Node, module: nn.Module) -> fx.Node:
    """What a layer gives, by another module in its place."""
    read = x.args[0]
    assert isinstance(read, fx.Node)
    built = site.builder.module(module, read, str(x.target))
    built.meta[UNSCALED] = x.meta.get(UNSCALED, False)
    return built


def _convolution(layer: nn.Module, weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """A convolution like another one, with these weights."""
    convolution = copy.deepcopy(layer)
    convolution.bias = None if bias is None else nn.Parameter(torch.empty(len(weight)))
    return filled(convolution, weight=weight, bias=bias)


def _by_channel(x: fx.Node, layer: nn.Module, numbers: np.ndarray) -> np.ndarray | None:
    """Numbers that go with each channel that a layer gives; None where they differ otherwise."""
    rank, axis = len(shape_of(x)), -1 if isinstance(layer, nn.Linear) else 1
    if numbers.ndim > rank or numbers.dtype.kind not in "fiu":
        return None
    whole = numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape)
    if whole.size not in (1, shape_of(x)[axis]) or whole.size != whole.shape[axis]:
        return None
    return np.broadcast_to(whole.reshape(-1), (shape_of(x)[axis],)).astype(np.float32)


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
    **{"Add": operator.add, "Div": operator.truediv, "Mul": operator.mul, "Pow": operator.pow, "Sub": operator.sub},
    **{"And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor},
    **{"BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor},
    **{"Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le},
}

#: Of two tensors, never a number.
_LOGICAL = (torch.logical_and, torch.logical_or, torch.logical_xor)

_TYPES = {FLOAT: torch.float32, FLOAT16: torch.float32, INT32: torch.int32, INT64: torch.int64, BOOL: torch.bool}


def _of(function: Any, *numbers: tuple[str, float]) -> Rule:
    """The rule of a function of a tensor and of attributes that are numbers, which have defaults."""
    return lambda site: site.builder.call(function, site.x, *(float(site.attrs.get(name, usual)) for name, usual in numbers))


RULES.update({name: _of(function) for name, function in _PLAIN.items()})
RULES.update(
    {
        "Celu": _of(F.celu, ("alpha", 1.0)),
        "Det": _of(torch.det),
        "Einsum": lambda site: site.builder.call(
            torch.einsum, str(site.attrs.get("equation", "")), *map(site.tensor, range(len(site.inputs)))
        ),
        "Elu": _of(F.elu, ("alpha", 1.0)),
        "Gelu": lambda site: site.builder.call(F.gelu, site.x, approximate=site.attrs.get("approximate", "none")),
        "LeakyRelu": _of(F.leaky_relu, ("alpha", 0.01)),
        "ThresholdedRelu": lambda site: site.builder.call(F.threshold, site.x, float(site.attrs.get("alpha", 1.0)), 0.0),
        "Where": lambda site: site.builder.call(torch.where, *map(site.tensor, range(3))),
    }
)


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


@rule("PRelu")
def _prelu(site: OnnxSite) -> fx.Node:
    """A slope for all elements or for each channel."""
    slope, channels = site.known(1, "slope"), site.shape[1]
    aligned = slope.reshape((1,) * (len(site.shape) - slope.ndim) + slope.shape)
    if slope.size not in (1, channels) or (slope.size > 1 and aligned.shape[1] != channels):
        raise StretchError(f"its slopes have the shape {list(slope.shape)}, not one number a channel")
    return site.builder.module(filled(nn.PReLU(slope.size), weight=slope.reshape(-1)), site.x, site.name)


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
