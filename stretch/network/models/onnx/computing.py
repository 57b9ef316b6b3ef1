"""Operators of ONNX that compute: elements, products of matrices, normalisations, reductions, attention and recurrent layers."""

import copy
import operator
from collections.abc import Sequence
from functools import partial, reduce
from math import inf
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.errors import StretchError, need
from scheduler.formats.onnx.shapes.node import BOOL, FLOAT, FLOAT16, INT32, INT64, normalise_axis, require
from stretch.network.models.builder import BATCH_NORMS, combine, layer_norm, shape_of, with_weights
from stretch.network.models.onnx.moving import pooled_to_one
from stretch.network.models.onnx.network import RULES, OnnxSite, Rule, Value, rule


def linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Module:
    """Return a linear layer; `weight` is out × in, `bias` has one number per output, or one for all."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return with_weights(module, weight=weight, bias=None if bias is None else np.broadcast_to(bias, weight.shape[:1]))


@rule("Gemm")
def _gemm(site: OnnxSite) -> fx.Node:
    """Translate ONNX Gemm: alpha · A · B + beta · C."""
    weight, bias = site.require_stored(1, "weight"), site.optional_stored(2, "bias")
    need(not site.flag("transA") and weight.ndim == 2 and len(site.shape) == 2, "it turns what it reads, or reads no matrix")
    weight = (weight if site.flag("transB") else weight.T) * np.float32(site.attrs.get("alpha", 1.0))
    if bias is not None:
        bias = bias * np.float32(site.attrs.get("beta", 1.0))
        if bias.size not in (1, weight.shape[0]) or bias.shape[-1:] not in ((), (1,), (weight.shape[0],)):
            raise StretchError(f"its bias has the shape {list(bias.shape)}, not one number a column")
        bias = bias.reshape(-1)
    return site.module(linear(weight, bias))


@rule("MatMul")
def _matmul(site: OnnxSite) -> fx.Node:
    right = site.value(1)
    if isinstance(right, np.ndarray) and right.ndim == 2 and isinstance(site.value(0), fx.Node):
        return site.module(linear(right.T, None))
    return site.call(torch.matmul, site.tensor(0), site.tensor(1))


#: Marks a node as a product of integer weights that are not scaled yet; the operators after it scale it.
UNSCALED = "unscaled"


def fold_constant(site: OnnxSite, x: Value, numbers: Value, *, scales: bool) -> fx.Node | None:
    """Fold stored numbers into a layer, as its bias or into its weights; return None if they cannot be part of a layer.

    Any product of matrices takes a bias; only integer ones (`UNSCALED`) are scaled, and biased by any numbers that broadcast.
    """
    layer = site.builder.module_of(x) if isinstance(x, fx.Node) else None
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) or not isinstance(numbers, np.ndarray):
        return None
    assert isinstance(x, fx.Node)
    is_unscaled = x.meta.get(UNSCALED, False)
    per_output = isinstance(layer, nn.Linear) and numbers.shape == (layer.out_features,)
    rank, axis = len(shape_of(x)), -1 if isinstance(layer, nn.Linear) else 1
    aligned = numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape)
    by_channel = aligned.ndim == rank and aligned.size in (1, shape_of(x)[axis]) and aligned.size == aligned.shape[axis]
    if (
        not by_channel
        or numbers.dtype.kind not in "fiu"
        or not (is_unscaled if scales else layer.bias is None and (is_unscaled or per_output))
    ):
        return None
    channels = np.broadcast_to(aligned.reshape(-1), (shape_of(x)[axis],)).astype(np.float32)
    weight = layer.weight.detach().numpy()
    bias: np.ndarray | None = channels
    if scales:
        weight = weight * channels.reshape(-1, *(1,) * (weight.ndim - 1))
        bias = None if layer.bias is None else layer.bias.detach().numpy() * channels
    module = copy.deepcopy(layer)
    module.bias = None if bias is None else nn.Parameter(torch.empty(len(bias)))
    read = x.args[0]
    assert isinstance(read, fx.Node)
    built = site.builder.module(with_weights(module, weight=weight, bias=bias), read, str(x.target))
    built.meta[UNSCALED] = is_unscaled
    return built


def times(site: OnnxSite, x: fx.Node, factor: np.ndarray) -> fx.Node:
    """Multiply a tensor by stored numbers, through its weights if it is an integer product."""
    if factor.size == 1 and factor.item() == 1:
        return x
    result = fold_constant(site, x, factor, scales=True)
    if result is not None:
        return result
    return site.call(operator.mul, x, factor.item() if factor.size == 1 else site.add_tensor(factor, "scale"))


#: Operators that are one function of torch, most with the same name.
_UNARY = {
    **{
        name: getattr(torch, name.lower())
        for name in (
            *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "IsNaN", "Log"),
            *("Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
        )
    },
    **{name: getattr(F, name.lower()) for name in ("HardSwish", "Mish", "Softplus", "Softsign")},
    "BitwiseNot": torch.bitwise_not,
    "Not": torch.logical_not,
}

_PAIRS = {
    **{"Pow": operator.pow, "Sub": operator.sub},
    **{"And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor},
    **{"BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor},
    **{"Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le},
}

#: Alpha and gamma of SELU (Klambauer et al., Self-Normalizing Neural Networks, equation 14).
_SELU = (1.6732632423543772, 1.0507009873554805)

#: Functions that take two tensors, never a number.
_LOGICAL = (torch.logical_and, torch.logical_or, torch.logical_xor)

_TYPES = {FLOAT: torch.float32, FLOAT16: torch.float32, INT32: torch.int32, INT64: torch.int64, BOOL: torch.bool}


def _function_rule(function: Any, *numbers: tuple[str, float]) -> Rule:
    """Return the rule of a function of a tensor and of numeric attributes, which have defaults."""
    return lambda site: site.call(function, site.x, *(site.real(name, usual) for name, usual in numbers))


RULES.update({name: _function_rule(function) for name, function in _UNARY.items()})
RULES.update(
    {
        "Celu": _function_rule(F.celu, ("alpha", 1.0)),
        "Det": _function_rule(torch.det),
        "Einsum": lambda site: site.call(torch.einsum, site.word("equation", ""), *map(site.tensor, range(len(site.inputs)))),
        "Elu": _function_rule(F.elu, ("alpha", 1.0)),
        "Gelu": lambda site: site.call(F.gelu, site.x, approximate=site.attrs.get("approximate", "none")),
        "LeakyRelu": _function_rule(F.leaky_relu, ("alpha", 0.01)),
        "ThresholdedRelu": lambda site: site.call(F.threshold, site.x, site.real("alpha", 1.0), 0.0),
        "Where": lambda site: site.call(torch.where, *map(site.tensor, range(3))),
    }
)


def operand(site: OnnxSite, i: int) -> Any:
    """Return input `i` as an operand of a torch function; a single stored number becomes a number."""
    value, rank = site.value(i), max((len(shape_of(value)) for value in site.inputs if isinstance(value, fx.Node)), default=0)
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 and value.ndim <= rank else site.tensor(i)


def _pair(site: OnnxSite, function: Any) -> fx.Node:
    need(len(site.inputs) == 2, f"it has {len(site.inputs)} inputs, two are taken")
    read = OnnxSite.tensor if function in _LOGICAL else operand
    return combine(site.builder, function, read(site, 0), read(site, 1))


RULES.update({name: partial(_pair, function=function) for name, function in _PAIRS.items()})


def _reduce_inputs(site: OnnxSite, function: Any, read: Any = OnnxSite.tensor) -> fx.Node:
    """Apply a function of two operands to all inputs, one after another."""
    return reduce(lambda x, i: site.call(function, x, read(site, i)), range(1, len(site.inputs)), site.tensor(0))


@rule("Div")
def _quotient(site: OnnxSite) -> fx.Node:
    """Translate ONNX Div: integers are divided and rounded towards zero, as in C."""
    if _type_of(site, 0).is_floating_point:
        return _pair(site, operator.truediv)
    return site.call(torch.div, operand(site, 0), operand(site, 1), rounding_mode="trunc")


@rule("Selu")
def _selu(site: OnnxSite) -> fx.Node:
    """Translate ONNX Selu: gamma · elu(x, alpha); torch's own function has the paper's constants, which are ONNX's defaults."""
    alpha, gamma = site.real("alpha", _SELU[0]), site.real("gamma", _SELU[1])
    if abs(alpha - _SELU[0]) < 1e-6 and abs(gamma - _SELU[1]) < 1e-6:
        return site.call(F.selu, site.x)
    return site.call(operator.mul, site.call(F.elu, site.x, alpha), gamma)


@rule("Add", "Mul")
def _sum_or_product(site: OnnxSite) -> fx.Node:
    """Translate ONNX Add and Mul of two tensors; stored numbers become part of the layer that computes the other tensor."""
    scales = site.op == "Mul"
    for x, other in (tuple(site.inputs), tuple(site.inputs)[::-1]) if len(site.inputs) == 2 else ():
        norm = None if scales else layer_norm(site.builder, x, other, site.name)
        result = norm or fold_constant(site, x, other, scales=scales)
        if result is not None:
            return result
    return _pair(site, operator.mul if scales else operator.add)


@rule("Swish")
def _swish(site: OnnxSite) -> fx.Node:
    """Translate ONNX Swish: x · sigmoid(alpha · x); torch's own function has alpha 1."""
    alpha = site.real("alpha", 1.0)
    if alpha == 1:
        return site.call(F.silu, site.x)
    gate = site.call(torch.sigmoid, site.call(operator.mul, site.x, alpha))
    return site.call(operator.mul, site.x, gate)


@rule("Shrink")
def _shrink(site: OnnxSite) -> fx.Node:
    """Translate ONNX Shrink: zero between −lambd and lambd, and values beyond moved towards zero."""
    bound, bias = site.real("lambd", 0.5), site.real("bias", 0.0)
    need(bound >= 0, f"its lambd is {bound}")
    if bias == bound:
        return site.call(F.softshrink, site.x, bound)
    shrunk = site.call(F.hardshrink, site.x, bound)
    moved = site.call(operator.mul, site.call(torch.sign, shrunk), bias) if bias else None
    return shrunk if moved is None else site.call(operator.sub, shrunk, moved)


@rule("IsInf")
def _is_infinite(site: OnnxSite) -> fx.Node:
    sides = [inf * sign for sign, name in ((1, "detect_positive"), (-1, "detect_negative")) if site.flag(name, True)]
    need(bool(sides), "it looks for no infinity")
    return site.call(torch.isinf, site.x) if len(sides) == 2 else site.call(torch.eq, site.x, sides[0])


@rule("Clip")
def _clip(site: OnnxSite) -> fx.Node:
    bounds = []
    for i, name in ((1, "min"), (2, "max")):
        stored = site.optional_stored(i, name)
        bounds.append(float(stored) if stored is not None and stored.size == 1 else site.attrs.get(name))
    if bounds == [None, None]:
        return site.x
    return site.call(F.relu6, site.x) if bounds == [0, 6] else site.call(torch.clamp, site.x, *bounds)


@rule("HardSigmoid")
def _hard_sigmoid(site: OnnxSite) -> fx.Node:
    """Translate ONNX HardSigmoid: max(0, min(1, alpha · x + beta)); torch's own function has alpha 1/6."""
    alpha, beta = site.attrs.get("alpha", 0.2), site.attrs.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return site.call(F.hardsigmoid, site.x)
    line = site.call(operator.add, site.call(operator.mul, site.x, float(alpha)), float(beta))
    return site.call(torch.clamp, line, 0.0, 1.0)


@rule("PRelu")
def _prelu(site: OnnxSite) -> fx.Node:
    """Translate ONNX PRelu: one slope for all elements or per channel is a layer of torch; otherwise both halves are added."""
    slope, shape = site.value(1), site.shape
    if isinstance(slope, np.ndarray) and len(shape) > 1:
        sizes = (1,) * (len(shape) - slope.ndim) + slope.shape
        if slope.size == 1 or (slope.size == sizes[1] == shape[1]):
            return site.module(nn.PReLU(slope.size), weight=slope.reshape(-1))
    slopes = site.tensor(1)
    negative = site.call(operator.mul, site.call(torch.clamp, site.x, None, 0.0), slopes)
    result = site.call(operator.add, site.call(torch.relu, site.x), negative)
    need(shape_of(result) == shape, f"its slopes have the shape {list(shape_of(slopes))} for {list(shape)}")
    return result


def _type_of(site: OnnxSite, i: int) -> torch.dtype:
    stored = site.value(i)
    tensor: torch.Tensor = torch.from_numpy(np.empty(0, stored.dtype)) if isinstance(stored, np.ndarray) else site.tensor(i).meta["val"]
    return tensor.dtype


def _as_type(site: OnnxSite, kind: torch.dtype) -> fx.Node:
    return site.x if site.x.meta["val"].dtype == kind else site.method("to", site.x, kind)


def _dropout(site: OnnxSite) -> fx.Node:
    """Translate ONNX Dropout to its input, because nothing is dropped in inference."""
    training = site.optional_stored(2, "training mode")
    need(training is None or not training.any(), "it is in training mode")
    return site.x


RULES.update(
    {
        # half precision is computed in single precision
        "Cast": lambda site: _as_type(site, require(_TYPES.get(site.attrs.get("to", 0)), f"it casts to type {site.attrs.get('to')}")),
        "CastLike": lambda site: _as_type(site, _type_of(site, 1)),
        "Dropout": _dropout,
        "Identity": lambda site: site.x,
        "Max": partial(_reduce_inputs, function=torch.maximum),
        "Mean": lambda site: site.call(operator.truediv, RULES["Sum"](site), float(len(site.inputs))),
        "Min": partial(_reduce_inputs, function=torch.minimum),
        # the result has the sign of the dividend with fmod, else that of the divisor
        "Mod": lambda site: _pair(site, torch.fmod if site.flag("fmod") else torch.remainder),
        "Sum": partial(_reduce_inputs, function=operator.add, read=operand),
        # Swish of one tensor times another.
        "SwiGLU": lambda site: site.call(operator.mul, _swish(site), site.tensor(1)),
    }
)


# Normalisations and reductions of ONNX as torch's modules and functions.


@rule("BatchNormalization")
def _batch_norm(site: OnnxSite) -> fx.Node:
    need(not site.flag("training_mode"), "it is in training mode")
    module = BATCH_NORMS[len(site.shape)](site.shape[1], eps=site.real("epsilon", 1e-5))
    names = ("weight", "bias", "running_mean", "running_var")
    return site.module(module, **{name: site.require_stored(i, name) for i, name in enumerate(names, 1)})


@rule("LayerNormalization")
def _layer_norm(site: OnnxSite) -> fx.Node:
    need(site.results <= 1, "it gives its means and deviations too")
    axis = site.integer("axis", -1) % len(site.shape)
    weight, bias = site.require_stored(1, "scale"), site.optional_stored(2, "bias")
    module = nn.LayerNorm(site.shape[axis:], eps=site.real("epsilon", 1e-5), bias=bias is not None)
    return site.module(module, weight=weight, bias=bias)


@rule("RMSNormalization")
def _rms_norm(site: OnnxSite) -> fx.Node:
    """Translate ONNX RMSNormalization: x over the root of its mean square, times a weight (Zhang and Sennrich, RMSNorm, section 4)."""
    rank = len(site.shape)
    axes = list(range(normalise_axis(site.integer("axis", -1), rank), rank))
    mean = site.call(torch.mean, site.call(torch.square, site.x), axes, True)
    root = site.call(torch.rsqrt, site.call(operator.add, mean, site.real("epsilon", 1e-5)))
    return site.call(operator.mul, site.call(operator.mul, site.x, root), site.tensor(1))


@rule("MeanVarianceNormalization")
def _mean_variance_normalization(site: OnnxSite) -> fx.Node:
    """Translate ONNX MeanVarianceNormalization: subtract the mean and divide by the deviation plus 1e-9, the standard's constant."""
    axes = [normalise_axis(int(axis), len(site.shape)) for axis in site.attrs.get("axes", (0, 2, 3))]
    centred = site.call(operator.sub, site.x, site.call(torch.mean, site.x, axes, True))
    variance = site.call(torch.mean, site.call(torch.square, centred), axes, True)
    deviation = site.call(operator.add, site.call(torch.sqrt, variance), 1e-9)
    return site.call(operator.truediv, centred, deviation)


@rule("InstanceNormalization")
def _instance_norm(site: OnnxSite) -> fx.Node:
    weight, bias = site.tensor(1), site.tensor(2)
    eps = site.real("epsilon", 1e-5)
    return site.call(F.instance_norm, site.x, None, None, weight, bias, True, 0.1, eps)


@rule("GroupNormalization")
def _group_norm(site: OnnxSite) -> fx.Node:
    """Translate ONNX GroupNormalization; before opset 21 it has one weight per group, which all channels of the group share."""
    groups, weights = site.integer("num_groups", 1), [site.require_stored(1, "scale"), site.require_stored(2, "bias")]
    if site.opset < 21:
        weights = [np.repeat(weight, site.shape[1] // groups) for weight in weights]
    module = nn.GroupNorm(groups, site.shape[1], eps=site.real("epsilon", 1e-5))
    return site.module(module, weight=weights[0], bias=weights[1])


@rule("LRN")
def _local_response(site: OnnxSite) -> fx.Node:
    numbers = [site.real(name, usual) for name, usual in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))]
    return site.call(F.local_response_norm, site.x, int(site.attrs["size"]), *numbers)


def _soft(site: OnnxSite, function: Any) -> fx.Node:
    """Translate ONNX Softmax and its variants; before opset 13 the stated axis and all later ones count as one."""
    rank = len(site.shape)
    axis = site.integer("axis", -1 if site.opset >= 13 else 1) % rank
    if site.opset >= 13 or axis == rank - 1:
        return site.call(function, site.x, axis)
    flat = site.call(torch.flatten, site.x, axis)
    return site.call(torch.reshape, site.call(function, flat, axis), site.shape)


def _axes(site: OnnxSite) -> tuple[list[int], bool]:
    """Return the reduced axes, counted from the first, and whether they are kept with size 1."""
    axes, rank = site.int_list("axes", 1), len(site.shape)
    need(bool(axes) or not site.flag("noop_with_empty_axes"), "it reduces nothing")
    return sorted(axis % rank for axis in axes or range(rank)), site.flag("keepdims", True)


@rule("ReduceMean")
def _mean(site: OnnxSite) -> fx.Node:
    """Translate ONNX ReduceMean; over height and width it becomes a pool, as in torch's networks."""
    axes, keep = _axes(site)
    if axes == [2, 3] and len(site.shape) == 4 and keep:
        return pooled_to_one(site)
    return site.call(torch.mean, site.x, axes, keep)


def _reduction(site: OnnxSite, function: Any, before: Any = None, after: Any = None, **options: Any) -> fx.Node:
    """Translate an ONNX reduction, with a function of each element before it and a function of its result after it."""
    axes, keep = _axes(site)
    x = site.x if before is None else site.call(before, site.x)
    total = site.call(function, x, dim=axes, keepdim=keep, **options)
    return total if after is None else site.call(after, total)


@rule("ReduceProd")
def _product(site: OnnxSite) -> fx.Node:
    axes, keep = _axes(site)
    x = site.x
    for axis in reversed(axes):
        x = site.call(torch.prod, x, axis, keep)
    return x


@rule("TopK")
def _largest(site: OnnxSite) -> list[fx.Node]:
    """Translate ONNX TopK: the largest or smallest elements, in order, and their positions."""
    count, axis = int(site.require_stored(1, "number").ravel()[0]), site.integer("axis", -1)
    result = site.call(torch.topk, site.x, count, axis, site.flag("largest", True), True)
    return [site.call(operator.getitem, result, i) for i in range(site.results)]


def _arg_reduction(site: OnnxSite, function: Any) -> fx.Node:
    return site.call(function, site.x, site.integer("axis"), site.flag("keepdims", True))


def _cumulative(site: OnnxSite, function: Any, neutral: float) -> fx.Node:
    """Translate an ONNX cumulative sum or product, without each element itself (`exclusive`) or from the end (`reverse`)."""
    axis, x = normalise_axis(int(site.require_stored(1, "axis").item()), len(site.shape)), site.x
    back = site.flag("reverse")
    x = site.call(torch.flip, x, [axis]) if back else x
    if site.flag("exclusive"):
        widths = [0, 0] * (len(site.shape) - 1 - axis) + [1, 0]
        later = site.call(F.pad, x, widths, "constant", neutral)
        x = site.call(torch.narrow, later, axis, 0, site.shape[axis])
    result = site.call(function, x, axis)
    return site.call(torch.flip, result, [axis]) if back else result


RULES.update(
    {
        "ArgMax": partial(_arg_reduction, function=torch.argmax),
        "ArgMin": partial(_arg_reduction, function=torch.argmin),
        "CumProd": partial(_cumulative, function=torch.cumprod, neutral=1.0),
        "CumSum": partial(_cumulative, function=torch.cumsum, neutral=0.0),
        "LogSoftmax": partial(_soft, function=torch.log_softmax),
        "LpNormalization": lambda site: site.call(F.normalize, site.x, site.real("p", 2), site.integer("axis", -1)),
        "ReduceL1": partial(_reduction, function=torch.linalg.vector_norm, ord=1),
        "ReduceL2": partial(_reduction, function=torch.linalg.vector_norm, ord=2),
        "ReduceLogSum": partial(_reduction, function=torch.sum, after=torch.log),
        "ReduceLogSumExp": partial(_reduction, function=torch.logsumexp),
        "ReduceMax": partial(_reduction, function=torch.amax),
        "ReduceMin": partial(_reduction, function=torch.amin),
        "ReduceSum": partial(_reduction, function=torch.sum),
        "ReduceSumSquare": partial(_reduction, function=torch.sum, before=torch.square),
        "Softmax": partial(_soft, function=torch.softmax),
    }
)


@rule("Hardmax")
def _hard_max(site: OnnxSite) -> fx.Node:
    """Translate ONNX Hardmax: 1 at the largest element, or the first of several."""
    rank = len(site.shape)
    axis = normalise_axis(site.integer("axis", -1 if site.opset >= 13 else 1), rank)
    need(site.opset >= 13 or axis == rank - 1, "before opset 13 several axes are one for it")
    numbers = np.arange(site.shape[axis]).reshape(-1, *(1,) * (rank - 1 - axis))
    largest = site.call(torch.argmax, site.x, axis, True)
    equal = site.call(torch.eq, largest, site.add_tensor(numbers, "numbers"))
    return site.method("to", equal, torch.float32)


# Attention, rotary embeddings and recurrent layers of ONNX as torch's functions.
def _split_heads(site: OnnxSite, x: fx.Node, heads: int) -> fx.Node:
    """Reshape batch × tokens × channels to batch × heads × tokens × channels per head."""
    batch, tokens, channels = shape_of(x)
    need(heads >= 1 and not channels % heads, f"its {channels} channels are not of {heads} heads")
    parted = site.call(torch.reshape, x, (batch, tokens, heads, channels // heads))
    return site.call(torch.permute, parted, (0, 2, 1, 3))


def _check_attention(site: OnnxSite) -> None:
    """Refuse options that torch's attention does not compute."""
    need(all(site.value(i) is None for i in (4, 5, 6)), "it reads what was computed before, or how many tokens count")
    if site.flag("softcap") or any(site.attrs.get(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        raise StretchError("it bounds its scores, or the tokens that one sees")
    need(not site.flag("is_causal") or site.value(3) is None, "it has a mask, and sees no later tokens besides")


@rule("Attention")
def _attention(site: OnnxSite) -> fx.Node:
    """Translate ONNX Attention: softmax(Q · Kᵀ · scale + mask) · V, with heads within the channels or on their own axis."""
    _check_attention(site)
    parts = [site.tensor(i) for i in range(3)]
    flat = len(shape_of(parts[0])) == 3
    if flat:
        q, kv = (site.integer(name) for name in ("q_num_heads", "kv_num_heads"))
        parts = [_split_heads(site, x, heads) for x, heads in zip(parts, (q, kv, kv), strict=True)]
    options: dict[str, Any] = {"is_causal": True} if site.flag("is_causal") else {}
    if shape_of(parts[0])[1] != shape_of(parts[1])[1]:
        options["enable_gqa"] = True
    scale = site.attrs.get("scale")
    mask = None if site.value(3) is None else site.tensor(3)
    result = site.call(F.scaled_dot_product_attention, *parts, mask, 0.0, scale=None if scale is None else float(scale), **options)
    if not flat:
        return result
    batch, heads, tokens, channels = shape_of(result)
    turned = site.call(torch.permute, result, (0, 2, 1, 3))
    return site.call(torch.reshape, turned, (batch, tokens, heads * channels))


def _rotary_table(site: OnnxSite, i: int, noun: str, sizes: Sequence[int]) -> fx.Node:
    """Return the cosines or sines of each token, batch × tokens × half of the rotated channels, with an axis for the heads."""
    batch, tokens, half, axis = sizes
    table, positions = site.require_stored(i, noun), site.optional_stored(3, "positions")
    if positions is not None:
        need(
            bool(
                positions.shape == (batch, tokens)
                and table.ndim == 2
                and table.shape[1] == half
                and ((positions >= 0) & (positions < len(table))).all()
            ),
            f"its {noun} have the shape {list(table.shape)}, its positions {list(positions.shape)}",
        )
        table = table[positions]
    if table.shape not in ((batch, tokens, half), (1, tokens, half)):
        raise StretchError(f"its {noun} have the shape {list(table.shape)}, not {[batch, tokens, half]}")
    return site.add_tensor(np.expand_dims(table, axis), f"{noun}")


@rule("RotaryEmbedding")
def _rotary(site: OnnxSite) -> fx.Node:
    """Translate ONNX RotaryEmbedding: rotate pairs of channels by an angle that grows with position (Su et al., RoFormer, section 3.2)."""
    shape, x, axis = site.shape, site.x, 1
    if len(shape) == 3:
        heads = site.integer("num_heads")
        need(heads >= 1 and not shape[2] % heads, f"its {shape[2]} channels are not of {heads} heads")
        x, axis = site.call(torch.reshape, x, (*shape[:2], heads, shape[2] // heads)), 2
    channels, tokens = shape_of(x)[-1], shape_of(x)[3 - axis]
    turning = site.integer("rotary_embedding_dim") or channels
    need(0 < turning <= channels and not turning % 2, f"it turns {turning} of {channels} channels")
    sizes = (shape[0], tokens, turning // 2, axis)
    cos, sin = _rotary_table(site, 1, "cosines", sizes), _rotary_table(site, 2, "sines", sizes)
    woven = site.flag("interleaved")
    halves = (slice(0, turning, 2), slice(1, turning, 2)) if woven else (slice(0, turning // 2), slice(turning // 2, turning))
    first, second = (site.call(operator.getitem, x, (..., halve)) for halve in halves)
    left, right, back, front = (site.call(operator.mul, a, b) for a, b in ((first, cos), (second, sin), (first, sin), (second, cos)))
    pair = [site.call(operator.sub, left, right), site.call(operator.add, back, front)]
    if woven:
        rotated = site.call(torch.reshape, site.call(torch.stack, pair, -1), (*shape_of(x)[:-1], turning))
        pair = [rotated]
    rest = [] if turning == channels else [site.call(operator.getitem, x, (..., slice(turning, channels)))]
    rotated = site.call(torch.cat, [*pair, *rest], -1) if len(pair) + len(rest) > 1 else pair[0]
    return rotated if axis == 1 else site.call(torch.reshape, rotated, shape)


#: Positions of torch's gates among ONNX's. LSTM: ONNX has input, output, forget, cell; torch has input, forget, cell, output.
#: GRU: ONNX has update, reset, hidden; torch has reset, update, new.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_FUNCTIONS: dict[str, Any] = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}

#: Activations of torch's layers, per direction.
_DEFAULT_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _check_layer(site: OnnxSite, directions: int) -> None:
    """Refuse options that torch's layers do not compute."""
    names = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in site.attrs.get("activations", ())]
    need(names in ([], _DEFAULT_ACTIVATIONS[site.op] * directions), f"its activations are {names}")
    if site.attrs.get("clip") or site.flag("layout") or site.flag("input_forget"):
        raise StretchError("it clips, couples its gates, or has its batch first")
    need(bool(site.op != "GRU" or site.flag("linear_before_reset")), "it resets before its product, and torch's behind it")
    need(site.value(4) is None or not (site.require_stored(4, "lengths") != site.shape[0]).any(), "its sequences have lengths of their own")
    need(site.value(7) is None or not site.require_stored(7, "peepholes").any(), "it has peepholes")


def _parameters(site: OnnxSite, directions: int, size: int) -> list[fx.Node]:
    """Return the weights and biases of each direction in the order of torch's functions."""
    gates = len(_GATES[site.op]) * size
    weight, recurrent = site.require_stored(1, "weight"), site.require_stored(2, "recurrent weight")
    bias = site.optional_stored(3, "bias")
    bias = np.zeros((directions, 2 * gates), np.float32) if bias is None else bias
    if weight.shape[:2] != (directions, gates) or recurrent.shape != (directions, gates, size) or bias.shape != (directions, 2 * gates):
        raise StretchError(f"its weights have the shapes {list(weight.shape)}, {list(recurrent.shape)} and {list(bias.shape)}")
    order, (first, second) = list(_GATES[site.op]), np.split(bias, 2, axis=1)
    parts = {"weight": weight, "recurrent": recurrent, "bias": first, "recurrent_bias": second}
    ordered = {name: part.reshape(directions, len(order), -1)[:, order].reshape(part.shape) for name, part in parts.items()}
    return [site.add_tensor(part[direction], f"{name}_{direction}") for direction in range(directions) for name, part in ordered.items()]


@rule("LSTM", "GRU", "RNN")
def _recurrent(site: OnnxSite) -> list[fx.Node]:
    direction = site.word("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional") or len(site.shape) != 3:
        raise StretchError(f"its direction is `{direction[:20]}`, and it reads {list(site.shape)}")
    directions, size = 2 if direction == "bidirectional" else 1, site.integer("hidden_size")
    _check_layer(site, directions)
    steps, batch = site.shape[:2]
    states = [_state(site, i, (directions, batch, size)) for i in (5, 6)[: 2 if site.op == "LSTM" else 1]]
    x = site.call(torch.flip, site.x, [0]) if direction == "reverse" else site.x
    state: Any = tuple(states) if site.op == "LSTM" else states[0]
    parameters = _parameters(site, directions, size)
    results_node = site.call(_FUNCTIONS[site.op], x, state, parameters, True, 1, 0.0, False, directions == 2, False)
    results = [site.call(operator.getitem, results_node, i) for i in range(min(site.results, 1 + len(states)))]
    sequence = site.call(torch.reshape, results[0], (steps, batch, directions, size))
    sequence = site.call(torch.permute, sequence, (0, 2, 1, 3))
    return [site.call(torch.flip, sequence, [0]) if direction == "reverse" else sequence, *results[1:]]


def _state(site: OnnxSite, i: int, shape: tuple[int, ...]) -> fx.Node:
    """Return the initial state of a layer; zeros by default."""
    if site.value(i) is None:
        return site.builder.add_tensor(np.zeros(shape, np.float32), f"{site.name}_state_{i}", learned=False)
    if shape_of(site.tensor(i)) != shape:
        raise StretchError(f"its state has the shape {list(shape_of(site.tensor(i)))}, not {list(shape)}")
    return site.tensor(i)
