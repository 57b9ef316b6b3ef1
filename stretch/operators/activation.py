"""Activations in torch, ONNX and TFLite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from predictors.graph import Op
from predictors.shapes import Attr, Shape, number
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import SIGNED_UNIT, UNIT, SubgraphBuilder, Value
from stretch.formats.tflite.source import SubgraphSource
from stretch.formats.tflite.writer import Quant
from stretch.operators.capturing import Chain, Lowered, TracedCall, functions, modules, plain_function, plain_module
from stretch.operators.lowerings import Lowering, OnnxRule, TfliteRule, bounded, lowerings, onnx_node, tflite_op
from stretch.operators.settings import Refusal

#: `ActivationFunctionType` of TFLite.
RELU, RELU6 = 1, 3

#: e²⁰ is so much larger than 1 that Mish is its input in single precision.
MISH_TOP = 20.0


def _plain(kind: str, make: Callable[[], nn.Module], onnx: OnnxRule, tflite: TfliteRule, **more: Any) -> None:
    """Register an activation without attributes."""
    lowerings.register(kind)(Lowering(lambda ins, a: make(), onnx, tflite, any_order=True, **more))


def _relu6_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Clip", op, [ins[0], w.number(op, "low", 0.0), w.number(op, "high", 6.0)])


_plain("relu", nn.ReLU, onnx_node("Relu"), tflite_op("RELU", nonnegative=True), activation=RELU)
_plain("relu6", nn.ReLU6, _relu6_onnx, tflite_op("RELU6", nonnegative=True), activation=RELU6)
modules("ReLU")(plain_module("relu"))
modules("ReLU6")(plain_module("relu6"))
functions(torch.relu, torch.relu_, F.relu, F.relu_, methods=("relu", "relu_"))(plain_function("relu"))
functions(F.relu6)(plain_function("relu6"))


#: The widest bounds of single precision: they cut nothing off.
LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


def _clamped(low: Any, high: Any) -> tuple[str, dict[str, Attr]]:
    """Kind and attributes of what clips to two bounds; an absent one cuts nothing off."""
    if any(not isinstance(bound, int | float | None) for bound in (low, high)):
        raise Refusal("it clamps to tensors, not to numbers")
    bounds = (LOWEST if low is None else low, HIGHEST if high is None else high)
    if not bounds[0] <= bounds[1]:
        raise Refusal(f"clamping to {low} … {high} is not supported, the bounds must be in order")
    bounds = (max(LOWEST, bounds[0]), min(HIGHEST, bounds[1]))
    known = {(0.0, 6.0): "relu6", (0.0, HIGHEST): "relu"}.get(bounds)
    return (known, {}) if known is not None else ("clamp", {"low": float(bounds[0]), "high": float(bounds[1])})


class Clamp(nn.Module):
    """Its input cut off at two bounds."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def extra_repr(self) -> str:
        """The bounds."""
        return f"{self.low}, {self.high}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cut off what lies beyond."""
        return x.clamp(self.low, self.high)


@modules("Hardtanh")
def _hardtanh_module(m: nn.Hardtanh, shape: Shape) -> list[Lowered]:
    return [("", *_clamped(m.min_val, m.max_val), {})]


@modules("Clamp")
def _clamp_module(m: Clamp, shape: Shape) -> list[Lowered]:
    return [("", *_clamped(m.low, m.high), {})]


@functions(F.hardtanh)
def _hardtanh(call: TracedCall, x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Chain:
    return [x], *_clamped(min_val, max_val)


@functions(torch.clamp, torch.clip, methods=("clamp", "clamp_", "clip", "clip_"))
def _clamp(call: TracedCall, x: Any, min: Any = None, max: Any = None) -> Chain:
    return [x], *_clamped(min, max)


def _clamp_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Clip", op, [ins[0], *[w.number(op, key, number(op.attrs, key)) for key in ("low", "high")]])


def _clamp_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """min(max(x, low), high)."""
    low = number(op.attrs, "low")
    above = b.apply("MAXIMUM", f"{op.name}.above", [ins[0], np.array(low)])
    result = b.apply("MINIMUM", op.name, [above, np.array(number(op.attrs, "high"))])
    result.nonnegative = low >= 0
    return result


lowerings.register("clamp")(
    Lowering(lambda ins, a: Clamp(number(a, "low"), number(a, "high")), _clamp_onnx, _clamp_tflite, int8=False, any_order=True)
)


def _hard_sigmoid_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """min(max(x + 3, 0), 6) / 6; the clipping is the addition's own activation."""
    x = b.apply("ADD", f"{op.name}.clipped", [ins[0], np.array(3.0)], quant=Quant(6 / 255, -128), fused_activation_function=RELU6)
    return b.apply("MUL", op.name, [x, np.array(1 / 6)], quant=b.scale(op))


_plain("hard_swish", nn.Hardswish, onnx_node("HardSwish"), tflite_op("HARD_SWISH"))
_plain("hard_sigmoid", nn.Hardsigmoid, onnx_node("HardSigmoid", alpha=1 / 6, beta=0.5), _hard_sigmoid_tflite)
modules("Hardswish")(plain_module("hard_swish"))
modules("Hardsigmoid")(plain_module("hard_sigmoid"))
functions(F.hardswish)(plain_function("hard_swish"))
functions(F.hardsigmoid)(plain_function("hard_sigmoid"))


def _silu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Sigmoid", op, ins, output=f"{op.name}.sigmoid")
    w.node("Mul", op, [ins[0], f"{op.name}.sigmoid"])


def _silu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """The product x · σ(x)."""
    gate = b.apply("LOGISTIC", f"{op.name}.sigmoid", [ins[0]], quant=UNIT)
    return b.apply("MUL", op.name, [ins[0], gate], quant=b.scale(op))


_plain("silu", nn.SiLU, _silu_onnx, _silu_tflite)
_plain("sigmoid", nn.Sigmoid, onnx_node("Sigmoid"), bounded("LOGISTIC", UNIT))
_plain("tanh", nn.Tanh, onnx_node("Tanh"), bounded("TANH", SIGNED_UNIT))
modules("SiLU", "Swish")(plain_module("silu"))
modules("Sigmoid")(plain_module("sigmoid"))
modules("Tanh")(plain_module("tanh"))
functions(F.silu)(plain_function("silu"))
functions(torch.sigmoid, F.sigmoid, methods=("sigmoid", "sigmoid_"))(plain_function("sigmoid"))
functions(torch.tanh, F.tanh, methods=("tanh",))(plain_function("tanh"))


def _mish_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """The product x · tanh(ln(1 + eˣ)) = x · n / (n + 2) with n = eˣ · (eˣ + 2)."""
    low = b.apply("MINIMUM", f"{op.name}.low", [ins[0], np.array(MISH_TOP)])
    e = b.apply("EXP", f"{op.name}.exp", [low])
    n = b.apply("MUL", f"{op.name}.n", [e, b.apply("ADD", f"{op.name}.e2", [e, np.array(2.0)])])
    down = b.apply("ADD", f"{op.name}.n2", [n, np.array(2.0)])
    return b.apply("MUL", op.name, [ins[0], b.apply("DIV", f"{op.name}.gate", [n, down])])


_plain("mish", nn.Mish, onnx_node("Mish"), _mish_tflite, int8=False)
modules("Mish")(plain_module("mish"))
functions(F.mish)(plain_function("mish"))


@modules("GELU")
def _gelu_module(m: Any, shape: Shape) -> list[Lowered]:
    return [("", "gelu", {"approximate": getattr(m, "approximate", "none")}, {})]


@functions(F.gelu)
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


@modules("ELU")
def _elu_module(m: nn.ELU, shape: Shape) -> list[Lowered]:
    return [("", "elu", {"alpha": float(m.alpha)}, {})]


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


@modules("LeakyReLU")
def _leaky_module(m: nn.LeakyReLU, shape: Shape) -> list[Lowered]:
    return [("", "leaky_relu", {"slope": float(m.negative_slope)}, {})]


@functions(F.leaky_relu)
def _leaky(call: TracedCall, x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Chain:
    return [x], "leaky_relu", {"slope": float(negative_slope)}


def _leaky_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("LeakyRelu", op, ins, alpha=number(op.attrs, "slope"))


def _leaky_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    return b.apply("LEAKY_RELU", op.name, [ins[0]], quant=b.scale(op), alpha=number(op.attrs, "slope"))


lowerings.register("leaky_relu")(Lowering(lambda ins, a: nn.LeakyReLU(number(a, "slope")), _leaky_onnx, _leaky_tflite, any_order=True))


@modules("PReLU")
def _prelu_module(m: nn.PReLU, shape: Shape) -> list[Lowered]:
    # One slope for all channels is one for each.
    return [("", "prelu", {}, {"weight": m.weight.expand(shape[1])})]


def _prelu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("PRelu", op, [ins[0], w.per_channel(op, "weight")])


def _prelu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """A slope a channel, whose shape is that of an image without its batch."""
    slope = source.weights[op.name]["weight"].reshape(-1)
    return b.apply("PRELU", op.name, [ins[0], slope.reshape(*[1] * (len(ins[0].shape) - 2), -1)])


lowerings.register("prelu")(Lowering(lambda ins, a: nn.PReLU(ins[0][1]), _prelu_onnx, _prelu_tflite, stored=("weight",), int8=False))
