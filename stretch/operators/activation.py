"""Activations in torch, ONNX and TFLite."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.graph import Op
from predictors.shapes import Attr, number
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import SIGNED_UNIT, UNIT, SubgraphBuilder, SubgraphSource, Value
from stretch.formats.tflite.writer import Quant
from stretch.operators.capturing import Chain, Refusal, TracedCall, calls, constants, plain
from stretch.operators.lowerings import Lowering, OnnxRule, TfliteRule, bounded, computed, lowerings, onnx_node, tflite_op

#: `ActivationFunctionType` of TFLite.
RELU, RELU6 = 1, 3

#: e²⁰ is so much larger than 1 that Mish is its input in single precision.
MISH_TOP = 20.0


def _plain(
    kind: str,
    make: type[nn.Module],
    functions: tuple[Any, ...],
    onnx: OnnxRule,
    tflite: TfliteRule,
    methods: tuple[str, ...] = (),
    **more: Any,
) -> None:
    """Register an activation without attributes, and which functions, methods and modules of torch compute it."""
    calls(*functions, methods=methods, classes=(make.__name__,), aten=(make.__name__.lower(),))(plain(kind))
    lowerings.register(kind)(Lowering(lambda ins, a: make(), onnx, tflite, any_order=True, **more))


def _relu6_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Clip", op, [ins[0], w.number(op, "low", 0.0), w.number(op, "high", 6.0)])


_plain(
    "relu",
    nn.ReLU,
    (torch.relu, torch.relu_, F.relu, F.relu_),
    onnx_node("Relu"),
    tflite_op("RELU", nonnegative=True),
    methods=("relu", "relu_"),
    activation=RELU,
)
_plain("relu6", nn.ReLU6, (F.relu6,), _relu6_onnx, tflite_op("RELU6", nonnegative=True), activation=RELU6)


#: The widest bounds of single precision: they cut nothing off.
LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


@calls(F.hardtanh, classes=("Hardtanh",), fields=("min_val", "max_val"))
def _hardtanh(call: TracedCall, x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Chain:
    return clamp(call, x, min_val, max_val)


@calls(torch.clamp, torch.clip, methods=("clamp", "clamp_", "clip", "clip_"))
def clamp(call: TracedCall, x: Any, min: Any = None, max: Any = None) -> Chain:
    """What clips to two bounds; an absent one cuts nothing off."""
    if any(not isinstance(bound, int | float | None) for bound in (min, max)):
        raise Refusal("it clamps to tensors, not to numbers")
    bounds = (LOWEST if min is None else min, HIGHEST if max is None else max)
    if not bounds[0] <= bounds[1]:
        raise Refusal(f"clamping to {min} … {max} is not supported, the bounds must be in order")
    low, high = (float(np.clip(bound, LOWEST, HIGHEST)) for bound in bounds)
    known = {(0.0, 6.0): "relu6", (0.0, HIGHEST): "relu"}.get((low, high))
    attrs: dict[str, Attr] = {} if known else {"low": low, "high": high}
    return [x], known or "clamp", attrs


def _clamp_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Clip", op, [ins[0], *[w.number(op, key, number(op.attrs, key)) for key in ("low", "high")]])


def _clamp_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """min(max(x, low), high)."""
    low = number(op.attrs, "low")
    above = b.apply("MAXIMUM", f"{op.name}.above", [ins[0], np.array(low)])
    result = b.apply("MINIMUM", op.name, [above, np.array(number(op.attrs, "high"))])
    result.nonnegative = low >= 0
    return result


computed("clamp", lambda a, x: x.clamp(number(a, "low"), number(a, "high")), _clamp_onnx, _clamp_tflite, int8=False, any_order=True)


def _hard_sigmoid_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """min(max(x + 3, 0), 6) / 6; the clipping is the addition's own activation."""
    x = b.apply("ADD", f"{op.name}.clipped", [ins[0], np.array(3.0)], quant=Quant(6 / 255, -128), fused_activation_function=RELU6)
    return b.apply("MUL", op.name, [x, np.array(1 / 6)], quant=b.scale(op))


_plain("hard_swish", nn.Hardswish, (F.hardswish,), onnx_node("HardSwish"), tflite_op("HARD_SWISH"))
_plain("hard_sigmoid", nn.Hardsigmoid, (F.hardsigmoid,), onnx_node("HardSigmoid", alpha=1 / 6, beta=0.5), _hard_sigmoid_tflite)


def _silu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Sigmoid", op, ins, output=f"{op.name}.sigmoid")
    w.node("Mul", op, [ins[0], f"{op.name}.sigmoid"])


def _silu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """The product x · σ(x)."""
    gate = b.apply("LOGISTIC", f"{op.name}.sigmoid", [ins[0]], quant=UNIT)
    return b.apply("MUL", op.name, [ins[0], gate], quant=b.scale(op))


_plain("silu", nn.SiLU, (F.silu,), _silu_onnx, _silu_tflite)
calls(classes=("Swish",))(plain("silu"))
_plain("sigmoid", nn.Sigmoid, (torch.sigmoid, F.sigmoid), onnx_node("Sigmoid"), bounded("LOGISTIC", UNIT), methods=("sigmoid", "sigmoid_"))
_plain("tanh", nn.Tanh, (torch.tanh, F.tanh), onnx_node("Tanh"), bounded("TANH", SIGNED_UNIT), methods=("tanh",))


def _mish_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """The product x · tanh(ln(1 + eˣ)) = x · n / (n + 2) with n = eˣ · (eˣ + 2)."""
    low = b.apply("MINIMUM", f"{op.name}.low", [ins[0], np.array(MISH_TOP)])
    e = b.apply("EXP", f"{op.name}.exp", [low])
    n = b.apply("MUL", f"{op.name}.n", [e, b.apply("ADD", f"{op.name}.e2", [e, np.array(2.0)])])
    down = b.apply("ADD", f"{op.name}.n2", [n, np.array(2.0)])
    return b.apply("MUL", op.name, [ins[0], b.apply("DIV", f"{op.name}.gate", [n, down])])


_plain("mish", nn.Mish, (F.mish,), onnx_node("Mish"), _mish_tflite, int8=False)


@calls(F.gelu, classes=("GELU",), fields=("approximate",), aten=("gelu",))
def _gelu(call: TracedCall, x: Any, approximate: str = "none") -> Chain:
    return [x], "gelu", {"approximate": approximate}


def _gelu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Gelu", op, ins, approximate=str(op.attrs["approximate"]))


def _gelu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """TFLite's operator computes both approximations."""
    return b.apply("GELU", op.name, [ins[0]], approximate=op.attrs["approximate"] == "tanh")


lowerings.register("gelu")(
    Lowering(lambda ins, a: nn.GELU(approximate=str(a["approximate"])), _gelu_onnx, _gelu_tflite, int8=False, any_order=True)
)


@calls(F.elu, classes=("ELU",), fields=("alpha",), aten=("elu",))
def _elu(call: TracedCall, x: Any, alpha: float = 1.0, inplace: bool = False, scale: float = 1, input_scale: float = 1) -> Chain:
    if scale != 1 or input_scale != 1:
        raise Refusal("it scales what it reads or gives")
    return [x], "elu", {"alpha": float(alpha)}


def _elu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Elu", op, ins, alpha=number(op.attrs, "alpha"))


def _elu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """An α of 1 is TFLite's own; any other is a factor of the part below zero."""
    alpha = number(op.attrs, "alpha")
    if alpha == 1:
        return b.apply("ELU", op.name, [ins[0]])
    below = b.apply("MINIMUM", f"{op.name}.below", [ins[0], np.array(0.0)])
    curved = b.apply("ELU", f"{op.name}.curved", [below])
    scaled = b.apply("MUL", f"{op.name}.scaled", [curved, np.array(alpha)])
    return b.apply("ADD", op.name, [b.apply("RELU", f"{op.name}.above", [ins[0]]), scaled])


lowerings.register("elu")(Lowering(lambda ins, a: nn.ELU(number(a, "alpha")), _elu_onnx, _elu_tflite, int8=False, any_order=True))


@calls(F.leaky_relu, classes=("LeakyReLU",), fields=("negative_slope",), aten=("leaky_relu",))
def _leaky(call: TracedCall, x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Chain:
    return [x], "leaky_relu", {"slope": float(negative_slope)}


def _leaky_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("LeakyRelu", op, ins, alpha=number(op.attrs, "slope"))


def _leaky_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    return b.apply("LEAKY_RELU", op.name, [ins[0]], quant=b.scale(op), alpha=number(op.attrs, "slope"))


lowerings.register("leaky_relu")(Lowering(lambda ins, a: nn.LeakyReLU(number(a, "slope")), _leaky_onnx, _leaky_tflite, any_order=True))


@calls(F.prelu, torch.prelu, classes=("PReLU",), fields=("weight",), aten=("prelu",))
def _prelu(call: TracedCall, x: Any, weight: Any) -> Chain:
    """One slope for all channels is one for each."""
    return [x], "prelu", {}, {"weight": constants(weight=weight)["weight"].expand(call.shapes[x][1])}


def _prelu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("PRelu", op, [ins[0], w.per_channel(op, "weight")])


def _prelu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """A slope a channel, whose shape is that of an image without its batch."""
    slope = source.weights[op.name]["weight"].reshape(-1)
    return b.apply("PRELU", op.name, [ins[0], slope.reshape(*[1] * (len(ins[0].shape) - 2), -1)])


lowerings.register("prelu")(Lowering(lambda ins, a: nn.PReLU(ins[0][1]), _prelu_onnx, _prelu_tflite, stored=("weight",), int8=False))
