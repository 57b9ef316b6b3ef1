"""Operators that keep every element's place, in torch, ONNX and TFLite: no-ops of inference, activations, sums and products."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from predictors.graph import Op
from predictors.shapes import Attr, Attrs, Shape, number
from scheduler.formats.int8_edges import Quant
from stretch.operators.capturing import (
    Chain,
    Step,
    TracedCall,
    UnsupportedNode,
    calls,
    constants,
    modules,
    require_supported,
    unary,
)
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import SIGNED_UNIT, UNIT, SubgraphBuilder, SubgraphSource, Value
from stretch.operators.lowerings import OnnxRule, TfliteRule, computed, onnx_node, register, tflite_op


class StochasticDepth(nn.Module):
    """Drops its whole input in training, per sample (``row``) or per batch (``batch``)."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def extra_repr(self) -> str:
        """Return the probability and the mode."""
        return f"p={self.p}, mode={self.mode}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Drop whole samples or batches in training, scaled to keep the expectation; the identity in evaluation."""
        if not self.training or self.p == 0:
            return x
        size = (x.shape[0] if self.mode == "row" else 1, *[1] * (x.dim() - 1))
        keep = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * (keep / (1 - self.p) if self.p < 1 else keep)


modules("Dropout", "Dropout2d")(lambda m, shape: Step("dropout", {"p": float(m.p)}))


@calls(F.dropout, F.dropout2d)
def _dropout(call: TracedCall, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Step:
    require_supported(not training or p <= 0, "it drops at random in evaluation too: pass training=self.training")
    return Step("dropout", {"p": float(p)}, (x,))


@modules("StochasticDepth", "DropPath")
def _stochastic_depth(m: Any, shape: Shape) -> Step:
    if hasattr(m, "mode"):
        return Step("stochastic_depth", {"p": float(m.p), "mode": m.mode})
    return Step("stochastic_depth", {"p": float(m.drop_prob or 0.0), "mode": "row"})


calls(methods=("contiguous", "clone"), classes=("Identity",))(lambda call, x, *_, **__: Step("identity", {}, (x,)))
register("dropout", lambda ins, a: nn.Dropout(number(a, "p")), any_order=True)
register("stochastic_depth", lambda ins, a: StochasticDepth(number(a, "p"), str(a["mode"])), any_order=True)
register("identity", lambda ins, a: nn.Identity(), any_order=True)


# Activations in torch, ONNX and TFLite.


#: `ActivationFunctionType` of TFLite.
RELU, RELU6 = 1, 3

#: Above this input, Mish equals its input in single precision, because e²⁰ is so much larger than 1.
MISH_TOP = 20.0


def _activation(
    kind: str,
    make: type[nn.Module],
    functions: tuple[Any, ...],
    onnx: OnnxRule,
    tflite: TfliteRule,
    methods: tuple[str, ...] = (),
    **extra: Any,
) -> None:
    """Register an activation without attributes, and the functions, methods and modules of torch that compute it."""
    calls(*functions, methods=methods, classes=(make.__name__,), aten=(make.__name__.lower(),))(unary(kind))
    register(kind, lambda ins, a: make(), onnx, tflite, any_order=True, **extra)


_activation(
    "relu",
    nn.ReLU,
    (torch.relu, torch.relu_, F.relu, F.relu_),
    onnx_node("Relu"),
    tflite_op("RELU", nonnegative=True),
    methods=("relu", "relu_"),
    activation=RELU,
)
_six = onnx_node("Clip", numbers=lambda a: {"low": 0.0, "high": 6.0})
_activation("relu6", nn.ReLU6, (F.relu6,), _six, tflite_op("RELU6", nonnegative=True), activation=RELU6)


#: The widest bounds of single precision, which clip no value.
LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


@calls(F.hardtanh, classes=("Hardtanh",), fields=("min_val", "max_val"))
def _hardtanh(call: TracedCall, x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Step:
    return clamp(call, x, min_val, max_val)


@calls(torch.clamp, torch.clip, methods=("clamp", "clamp_", "clip", "clip_"))
def clamp(call: TracedCall, x: Any, min: Any = None, max: Any = None) -> Step:
    """Lower clipping to two bounds; a missing bound clips nothing."""
    require_supported(all(isinstance(bound, int | float | None) for bound in (min, max)), "it clamps to tensors, not to numbers")
    bounds = (LOWEST if min is None else min, HIGHEST if max is None else max)
    require_supported(bounds[0] <= bounds[1], f"clamping to {min} … {max} is not supported, the bounds must be in order")
    low, high = (float(np.clip(bound, LOWEST, HIGHEST)) for bound in bounds)
    function = {(0.0, 6.0): "relu6", (0.0, HIGHEST): "relu"}.get((low, high))
    attrs: dict[str, Attr] = {} if function else {"low": low, "high": high}
    return Step(function or "clamp", attrs, (x,))


def _clamp_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write min(max(x, low), high)."""
    low = number(op.attrs, "low")
    clipped = b.apply("MAXIMUM", f"{op.name}.above", [ins[0], np.array(low)])
    result = b.apply("MINIMUM", op.name, [clipped, np.array(number(op.attrs, "high"))])
    result.nonnegative = low >= 0
    return result


def _bounds(a: Attrs) -> dict[str, float]:
    return {key: number(a, key) for key in ("low", "high")}


computed("clamp", lambda a, x: x.clamp(*_bounds(a).values()), onnx_node("Clip", numbers=_bounds), _clamp_tflite, int8=False, any_order=True)


def _hard_sigmoid_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write min(max(x + 3, 0), 6) / 6; the addition's own activation does the clipping."""
    x = b.apply("ADD", f"{op.name}.clipped", [ins[0], np.array(3.0)], quant=Quant(6 / 255, -128), fused_activation_function=RELU6)
    return b.apply("MUL", op.name, [x, np.array(1 / 6)], quant=b.scale(op))


_activation("hard_swish", nn.Hardswish, (F.hardswish,), onnx_node("HardSwish"), tflite_op("HARD_SWISH"))
_activation("hard_sigmoid", nn.Hardsigmoid, (F.hardsigmoid,), onnx_node("HardSigmoid", alpha=1 / 6, beta=0.5), _hard_sigmoid_tflite)


def _silu_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Sigmoid", op, ins, output=f"{op.name}.sigmoid")
    w.node("Mul", op, [ins[0], f"{op.name}.sigmoid"])


def _silu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write x · σ(x)."""
    gate = b.apply("LOGISTIC", f"{op.name}.sigmoid", [ins[0]], quant=UNIT)
    return b.apply("MUL", op.name, [ins[0], gate], quant=b.scale(op))


_activation("silu", nn.SiLU, (F.silu,), _silu_onnx, _silu_tflite)
calls(classes=("Swish",))(unary("silu"))
_activation(
    "sigmoid",
    nn.Sigmoid,
    (torch.sigmoid, F.sigmoid),
    onnx_node("Sigmoid"),
    tflite_op("LOGISTIC", quant=UNIT),
    methods=("sigmoid", "sigmoid_"),
)
_activation("tanh", nn.Tanh, (torch.tanh, F.tanh), onnx_node("Tanh"), tflite_op("TANH", quant=SIGNED_UNIT), methods=("tanh",))


def _mish_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write x · tanh(ln(1 + eˣ)) = x · n / (n + 2) with n = eˣ · (eˣ + 2)."""
    low = b.apply("MINIMUM", f"{op.name}.low", [ins[0], np.array(MISH_TOP)])
    e = b.apply("EXP", f"{op.name}.exp", [low])
    n = b.apply("MUL", f"{op.name}.n", [e, b.apply("ADD", f"{op.name}.e2", [e, np.array(2.0)])])
    down = b.apply("ADD", f"{op.name}.n2", [n, np.array(2.0)])
    return b.apply("MUL", op.name, [ins[0], b.apply("DIV", f"{op.name}.gate", [n, down])])


_activation("mish", nn.Mish, (F.mish,), onnx_node("Mish"), _mish_tflite, int8=False)


def _elu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write an ELU: TFLite's own for α = 1; any other α multiplies the part below zero."""
    alpha = number(op.attrs, "alpha")
    if alpha == 1:
        return b.apply("ELU", op.name, [ins[0]])
    negative = b.apply("MINIMUM", f"{op.name}.below", [ins[0], np.array(0.0)])
    curved = b.apply("ELU", f"{op.name}.curved", [negative])
    scaled = b.apply("MUL", f"{op.name}.scaled", [curved, np.array(alpha)])
    return b.apply("ADD", op.name, [b.apply("RELU", f"{op.name}.above", [ins[0]]), scaled])


@calls(F.gelu, classes=("GELU",), fields=("approximate",), aten=("gelu",))
def _gelu(call: TracedCall, x: Any, approximate: str = "none") -> Step:
    return Step("gelu", {"approximate": approximate}, (x,))


@calls(F.elu, classes=("ELU",), fields=("alpha",), aten=("elu",))
def _elu(call: TracedCall, x: Any, alpha: float = 1.0, inplace: bool = False, scale: float = 1, input_scale: float = 1) -> Step:
    require_supported(scale == 1 and input_scale == 1, "it scales what it reads or gives")
    return Step("elu", {"alpha": float(alpha)}, (x,))


@calls(F.leaky_relu, classes=("LeakyReLU",), fields=("negative_slope",), aten=("leaky_relu",))
def _leaky(call: TracedCall, x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Step:
    return Step("leaky_relu", {"slope": float(negative_slope)}, (x,))


_gelu_op = tflite_op("GELU", settings=lambda a: {"approximate": a["approximate"] == "tanh"})
_gelu_node, _elu_node = (onnx_node(node, {key: key}) for node, key in (("Gelu", "approximate"), ("Elu", "alpha")))
_leaky_op = tflite_op("LEAKY_RELU", settings=lambda a: {"alpha": number(a, "slope")})
register("gelu", lambda ins, a: nn.GELU(approximate=str(a["approximate"])), _gelu_node, _gelu_op, int8=False, any_order=True)
register("elu", lambda ins, a: nn.ELU(number(a, "alpha")), _elu_node, _elu_tflite, int8=False, any_order=True)
register(
    "leaky_relu", lambda ins, a: nn.LeakyReLU(number(a, "slope")), onnx_node("LeakyRelu", {"alpha": "slope"}), _leaky_op, any_order=True
)


@calls(F.prelu, torch.prelu, classes=("PReLU",), fields=("weight",), aten=("prelu",))
def _prelu(call: TracedCall, x: Any, weight: Any) -> Step:
    """Lower a PReLU; a single slope is repeated for all channels."""
    return Step("prelu", {}, (x,), {"weight": constants(weight=weight)["weight"].expand(call.shapes[x][1])})


def _prelu_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Write a PReLU with one slope per channel, in the shape of an image without its batch."""
    slope = source.weights[op.name]["weight"].reshape(-1)
    return b.apply("PRELU", op.name, [ins[0], slope.reshape(*[1] * (len(ins[0].shape) - 2), -1)])


register(
    "prelu", lambda ins, a: nn.PReLU(ins[0][1]), onnx_node("PRelu", per_channel=("weight",)), _prelu_tflite, stored=("weight",), int8=False
)


# Sums and products in torch, ONNX and TFLite: of tensors, with a number, and with a learned number per channel.


class ChannelScale(nn.Module):
    """Multiplies each channel by a learned number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale along dimension 1."""
        return x * self.weight.reshape(-1, *[1] * (x.dim() - 2))


class ChannelShift(nn.Module):
    """Adds a learned number to each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shift along dimension 1."""
        return x + self.bias.reshape(-1, *[1] * (x.dim() - 2))


modules("ChannelScale")(lambda m, shape: Step("scale", weights={"weight": m.weight}))
modules("ChannelShift")(lambda m, shape: Step("shift", weights={"bias": m.bias}))


def _binary(kind: str) -> Callable[..., Step]:
    def rule(call: TracedCall, a: Any, b: Any, *, alpha: int = 1) -> Step:
        require_supported(alpha == 1, "it scales one side")
        for side, other in ((a, b), (b, a)):
            if isinstance(side, bool) or not isinstance(side, int | float | torch.Tensor | fx.Node):
                raise UnsupportedNode(f"it combines a tensor with {side!r}")
            if isinstance(side, int | float):
                if side == (0 if kind == "add" else 1):
                    return Step("identity", {}, (other,))
                return Step(f"{kind}_scalar", {"value": float(side)}, (other,))
            if isinstance(side, torch.Tensor):
                return _with_constant(kind, other, side, call.out)
            require_supported(len(call.shapes[side]) == len(call.out), "it broadcasts over missing dimensions")
        return Step(kind, {}, (a, b))

    return rule


def _with_constant(kind: str, x: Any, constant: torch.Tensor, out: Shape) -> Step:
    """Combine a tensor with one that does not depend on the input: a number, or a learned number per channel."""
    if constant.numel() == 1 and not constant.requires_grad:
        return Step(f"{kind}_scalar", {"value": float(constant)}, (x,))
    sizes = (*[1] * (len(out) - constant.dim()), *constant.shape)
    if len(sizes) != len(out) or constant.numel() not in (1, out[1]) or sizes[1] != constant.numel():
        raise UnsupportedNode(f"it combines a tensor with parameters of shape {tuple(constant.shape)}, not with one number per channel")
    per_channel = constant.reshape(-1).expand(out[1])
    return Step("scale", {}, (x,), {"weight": per_channel}) if kind == "mul" else Step("shift", {}, (x,), {"bias": per_channel})


_add = calls(operator.add, operator.iadd, torch.add, methods=("add", "add_"))(_binary("add"))
_mul = calls(operator.mul, operator.imul, torch.mul, methods=("mul", "mul_"))(_binary("mul"))


@calls(operator.sub, operator.isub, torch.sub, methods=("sub",))
def _subtract(call: TracedCall, a: Any, b: Any) -> Chain:
    if not isinstance(b, fx.Node):
        return _add(call, a, -b)
    require_supported(not isinstance(a, fx.Node), "it subtracts one tensor from another")
    return [Step("mul_scalar", {"value": -1.0}, (b,)), _add(call, b, a)]


@calls(operator.truediv, operator.itruediv, torch.div, methods=("div",))
def _divide(call: TracedCall, a: Any, b: Any) -> Step:
    if not isinstance(a, fx.Node) or isinstance(b, fx.Node) or not torch.all(torch.as_tensor(b) != 0):
        raise UnsupportedNode("it divides by something else than a number")
    return _mul(call, a, 1 / b)


calls(operator.neg, torch.neg, methods=("neg",))(lambda call, x: Step("mul_scalar", {"value": -1.0}, (x,)))


def _add_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Add" if len(ins) == 2 else "Sum", op, ins)


def _combine(code: str) -> TfliteRule:
    """Return the rule of a sum or product of several inputs, two at a time; shapes broadcast in NHWC as in NCHW."""

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        total, *terms = ins
        for i, term in enumerate(terms):
            name = op.name if i == len(terms) - 1 else f"{op.name}.part{i}"
            shape = tuple(max(sizes) for sizes in zip(total.shape, term.shape, strict=True))
            total = b.apply(code, name, [total, term], shape, b.scale(op))
        total.nonnegative = all(value.nonnegative for value in ins)
        return total

    return lower


computed("add", lambda a, *terms: reduce(operator.add, terms), _add_onnx, _combine("ADD"), pairwise=True, activates=True, any_order=True)
computed("mul", lambda a, x, y: x * y, onnx_node("Mul"), _combine("MUL"), pairwise=True, activates=True, any_order=True)
computed("div", lambda a, x, y: x / y, onnx_node("Div"))


def _with_number(node: str) -> tuple[OnnxRule, TfliteRule]:
    return onnx_node(node, numbers=lambda a: {"value": number(a, "value")}), tflite_op(node.upper(), number_key="value")


def _with_weight(node: str, key: str) -> tuple[OnnxRule, TfliteRule]:
    return onnx_node(node, per_channel=(key,)), tflite_op(node.upper(), weight=key)


computed("add_scalar", lambda a, x: x + number(a, "value"), *_with_number("Add"), any_order=True)
computed("mul_scalar", lambda a, x: x * number(a, "value"), *_with_number("Mul"), any_order=True)
register("scale", lambda ins, a: ChannelScale(ins[0][1]), *_with_weight("Mul", "weight"), stored=("weight",), any_order=True)
register("shift", lambda ins, a: ChannelShift(ins[0][1]), *_with_weight("Add", "bias"), stored=("bias",), any_order=True)
