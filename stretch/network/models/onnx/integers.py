"""Operators on bytes by ONNX Runtime's quantisers, translated to operators on the real numbers that the bytes represent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx

from predictors.errors import need
from scheduler.formats.onnx.shapes.node import require
from stretch.network.models.onnx.computing import UNSCALED, times
from stretch.network.models.onnx.moving import nonnegative
from stretch.network.models.onnx.network import RULES, OnnxSite, Quantisation, QuantisedTensor, Result, Rule, Value, requantise, rule

#: Maximum difference from 6 of a byte's upper limit for ReLU6, whose scale was rounded.
_SIX = 0.02


def stated_quantisation(site: OnnxSite, scale: int, zero: int, kind: type[np.generic] = np.uint8) -> Quantisation:
    """Return the quantisation in inputs `scale` and `zero` of a node; bytes are of `kind` if the zero point is left out."""
    optional = site.optional_stored(zero, "zero point")
    return Quantisation(site.require_stored(scale, "scale"), np.zeros((), kind) if optional is None else optional)


def quantised_value(site: OnnxSite, x: fx.Node, quant: Quantisation) -> QuantisedTensor:
    """Return the value that a file rounds; its ReLU or ReLU6 is restored if the quantiser replaced it by the range of the bytes."""
    limits, zero = np.iinfo(quant.zero_point.dtype), quant.zero_point
    if zero.size != 1 or zero.item() != limits.min or nonnegative(x, site.builder, of_input=True):
        return QuantisedTensor(x, quant)
    top = float(quant.scale.ravel()[0]) * (limits.max - limits.min)
    return QuantisedTensor(site.call(F.relu6 if abs(top - 6) < _SIX else torch.relu, x), quant)


@rule("QuantizeLinear", quantising=True)
def _quantise(site: OnnxSite) -> QuantisedTensor:
    need(site.quantisation_of(0) is None, "it rounds what is rounded already")
    return quantised_value(site, site.x, stated_quantisation(site, 1, 2))


@rule("DequantizeLinear", quantising=True)
def _dequantise(site: OnnxSite) -> fx.Node:
    """Translate ONNX DequantizeLinear to its input, as activations are calibrated again; integer products are scaled."""
    current = site.quantisation_of(0)
    if current is None:
        quant = stated_quantisation(site, 1, 2, np.int32)
        need(not quant.zero_point.any(), "its zero point is not zero, for whole numbers that are no bytes")
        axis, scale = site.integer("axis", 1) % len(site.shape), quant.scale
        behind = len(site.shape) - 1 - axis
        return times(site, site.x, scale if scale.size == 1 else scale.reshape(-1, *(1,) * behind))
    return requantise(site.builder, site.x, current, stated_quantisation(site, 1, 2, current.zero_point.dtype.type))


@rule("DynamicQuantizeLinear", quantising=True)
def _quantise_by_range(site: OnnxSite) -> list[QuantisedTensor | np.ndarray]:
    """Translate ONNX DynamicQuantizeLinear to its input with scale 1, because each later product is multiplied by the scale."""
    quant = Quantisation(np.ones((), np.float32), np.zeros((), np.uint8))
    return [QuantisedTensor(site.x, quant), quant.scale, quant.zero_point]


_MS = "com.microsoft"


@dataclass(frozen=True)
class _ByteInputs:
    """Positions of the inputs of an operator on bytes."""

    op: str  # Name of the operator on reals.
    bytes: Sequence[int]  # Index of each byte input of that operator; the scale and zero point follow it.
    gives: int  # Index of the result's scale; its zero point follows it.
    bias: int | None = None  # Index of the integer bias, whose scale is the product of both scales.


_FORMS = {
    "QLinearConv": _ByteInputs("Conv", (0, 3), 6, 8),
    f"{_MS}.QLinearConv": _ByteInputs("Conv", (0, 3), 6, 8),
    "QLinearMatMul": _ByteInputs("MatMul", (0, 3), 6),
    f"{_MS}.QGemm": _ByteInputs("Gemm", (0, 3), 7, 6),
    f"{_MS}.QLinearAdd": _ByteInputs("Add", (0, 3), 6),
    f"{_MS}.QLinearMul": _ByteInputs("Mul", (0, 3), 6),
    f"{_MS}.QLinearSigmoid": _ByteInputs("Sigmoid", (0,), 3),
    f"{_MS}.QLinearLeakyRelu": _ByteInputs("LeakyRelu", (0,), 3),
    f"{_MS}.QLinearSoftmax": _ByteInputs("Softmax", (0,), 3),
    f"{_MS}.QLinearAveragePool": _ByteInputs("AveragePool", (0,), 3),
    f"{_MS}.QLinearGlobalAveragePool": _ByteInputs("GlobalAveragePool", (0,), 3),
    f"{_MS}.QLinearReduceMean": _ByteInputs("ReduceMean", (0,), 3),
}


def _weight_axis(op: str, attrs: Mapping[str, Any]) -> int:
    """Return the weight axis along which scales differ, the axis of outputs."""
    return 0 if op == "Conv" or (op == "Gemm" and attrs.get("transB", 0)) else -1


def _input_as_reals(site: OnnxSite, i: int, quant: Quantisation, axis: int) -> Value:
    """Return the real numbers that the bytes of input `i` represent."""
    value = site.value(i)
    if isinstance(value, np.ndarray):
        need(
            value.dtype == quant.zero_point.dtype,
            f"its input {i} is of type {value.dtype}, and its zero point of type {quant.zero_point.dtype}",
        )
        return quant.dequantize(value, axis)
    current = require(site.quantisation_of(i), f"its input {i} is not rounded to bytes")
    return requantise(site.builder, site.tensor(i), current, quant)


def _run_on_reals(site: OnnxSite, op: str, inputs: Sequence[Value]) -> fx.Node:
    """Apply the rule of the operator on reals to these inputs."""
    need(not site.attrs.get("channels_last", 0), "its channels are last")
    built = RULES[op](replace(site, op=op, inputs=inputs, opset=int(site.attrs.get("opset", site.opset)), quants=()))
    assert isinstance(built, fx.Node)
    return built


def _integer_rule(form: _ByteInputs) -> Rule:
    def lower(site: OnnxSite) -> Result:
        axis = _weight_axis(form.op, site.attrs)
        quants = [stated_quantisation(site, i + 1, i + 2) for i in form.bytes]
        inputs = [_input_as_reals(site, i, quant, axis) for i, quant in zip(form.bytes, quants, strict=True)]
        if form.bias is not None:
            inputs.append(_bias(site, form, quants))
        computed = _run_on_reals(site, form.op, inputs)
        if form.op == "Gemm" and site.value(form.gives) is None:
            return computed
        return quantised_value(site, computed, stated_quantisation(site, form.gives, form.gives + 1))

    return lower


def _bias(site: OnnxSite, form: _ByteInputs, quants: Sequence[Quantisation]) -> np.ndarray | None:
    """Return a bias as reals; its scale is the product of the scales of both inputs."""
    bias = None if form.bias is None else site.optional_stored(form.bias, "bias")
    if bias is None:
        return None
    scale = np.prod(np.broadcast_arrays(*(quant.scale.reshape(-1) for quant in quants)), axis=0)
    need(bias.shape[-1:] == scale.shape or scale.size <= 1, f"its bias has the shape {list(bias.shape)} for {scale.size} scales")
    return np.asarray(bias.astype(np.float32) * scale.astype(np.float32) * np.float32(site.attrs.get("alpha", 1.0)))


for _name, _form in _FORMS.items():
    rule(_name, quantising=True)(_integer_rule(_form))


@rule(f"{_MS}.QLinearConcat", quantising=True)
def _concat(site: OnnxSite) -> QuantisedTensor:
    parts = [_input_as_reals(site, i, stated_quantisation(site, i + 1, i + 2), 0) for i in range(2, len(site.inputs), 3)]
    return quantised_value(site, _run_on_reals(site, "Concat", parts), stated_quantisation(site, 0, 1))


@rule(f"{_MS}.QLinearWhere", quantising=True)
def _quantized_where(site: OnnxSite) -> QuantisedTensor:
    parts = [_input_as_reals(site, i, stated_quantisation(site, i + 1, i + 2), 0) for i in (1, 4)]
    return quantised_value(site, _run_on_reals(site, "Where", [site.value(0), *parts]), stated_quantisation(site, 7, 8))


def _without_zero_point(site: OnnxSite, i: int, zero: int, axis: int) -> Value:
    """Return the bytes of input `i` minus their zero point, as reals."""
    value, point = site.value(i), site.optional_stored(zero, "zero point")
    quant = site.quantisation_of(i)
    kind = value.dtype if isinstance(value, np.ndarray) else np.uint8 if quant is None else quant.zero_point.dtype
    point = np.zeros((), kind) if point is None else point
    return _input_as_reals(site, i, Quantisation(np.ones(point.shape, np.float32), point), axis)


@rule("MatMulInteger", "ConvInteger", quantising=True)
def _product(site: OnnxSite) -> fx.Node:
    """Translate ONNX MatMulInteger and ConvInteger to products of reals; later multiplications by scales are folded into the weights."""
    op = site.op.removesuffix("Integer")
    computed = _run_on_reals(site, op, [_without_zero_point(site, i, i + 2, _weight_axis(op, site.attrs)) for i in (0, 1)])
    if site.builder.module_of(computed) is not None:
        computed.meta[UNSCALED] = True
    return computed


@rule(f"{_MS}.DynamicQuantizeMatMul", quantising=True)
def _rounded_product(site: OnnxSite) -> fx.Node:
    """Translate DynamicQuantizeMatMul: reals, which the file rounds by their range, times a stored weight with scales per column."""
    weight = site.require_stored(1, "weight")
    reals = stated_quantisation(site, 2, 3, weight.dtype.type).dequantize(weight, -1)
    return _with_bias(site, 4, _run_on_reals(site, "MatMul", [site.x, reals]))


@rule(f"{_MS}.MatMulIntegerToFloat", quantising=True)
def _product_of_reals(site: OnnxSite) -> fx.Node:
    """Translate MatMulIntegerToFloat: a scaled product of bytes."""
    parts = [_input_as_reals(site, i, stated_quantisation(site, i + 2, i + 4), -1) for i in (0, 1)]
    return _with_bias(site, 6, _run_on_reals(site, "MatMul", parts))


def _with_bias(site: OnnxSite, i: int, product: fx.Node) -> fx.Node:
    return product if site.value(i) is None else _run_on_reals(site, "Add", [product, site.value(i)])


@rule(f"{_MS}.DynamicQuantizeLSTM", quantising=True)
def _lstm(site: OnnxSite) -> Result | Sequence[Result]:
    """Translate DynamicQuantizeLSTM, whose weights are transposed: inputs × gates of each direction."""
    weights = []
    for i, (scale, zero) in ((1, (8, 9)), (2, (10, 11))):
        weight, quant = site.require_stored(i, "weight"), stated_quantisation(site, scale, zero, np.uint8)
        need(weight.ndim == 3, f"its weights have the shape {list(weight.shape)}")
        if quant.scale.ndim == 2:
            wide = (quant.scale.shape[0], 1, quant.scale.shape[1])
            quant = Quantisation(
                quant.scale.reshape(wide), quant.zero_point if quant.zero_point.size == 1 else quant.zero_point.reshape(wide)
            )
        weights.append(quant.dequantize(weight, 0).transpose(0, 2, 1))
    inputs = [site.value(0), *weights, *(site.value(i) for i in range(3, 8))]
    return RULES["LSTM"](replace(site, op="LSTM", inputs=inputs, quants=()))
