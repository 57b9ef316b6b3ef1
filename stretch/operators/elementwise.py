"""Sums and products in torch, ONNX and TFLite: of tensors, with a number, and with a learned number per channel."""

import operator
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from predictors.graph import Op
from predictors.shapes import Shape, number
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import SubgraphBuilder, SubgraphSource, Value
from stretch.operators.capturing import Chain, FunctionRule, Refusal, TracedCall, calls, modules
from stretch.operators.lowerings import Lowering, OnnxRule, TfliteRule, computed, lowerings, no_tflite, onnx_node


class ChannelScale(nn.Module):
    """Each channel times a learned number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale along dimension 1."""
        return x * self.weight.reshape(-1, *[1] * (x.dim() - 2))


class ChannelShift(nn.Module):
    """Each channel plus a learned number."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shift along dimension 1."""
        return x + self.bias.reshape(-1, *[1] * (x.dim() - 2))


modules("ChannelScale")(lambda m, shape: [("", "scale", {}, {"weight": m.weight})])
modules("ChannelShift")(lambda m, shape: [("", "shift", {}, {"bias": m.bias})])


def _binary(kind: str) -> FunctionRule:
    def rule(call: TracedCall, a: Any, b: Any, *, alpha: int = 1) -> Chain:
        if alpha != 1:
            raise Refusal("it scales one side")
        for side, other in ((a, b), (b, a)):
            if isinstance(side, bool) or not isinstance(side, int | float | torch.Tensor | fx.Node):
                raise Refusal(f"it combines a tensor with {side!r}")
            if isinstance(side, int | float):
                if side == (0 if kind == "add" else 1):
                    return [other], "identity", {}
                return [other], f"{kind}_scalar", {"value": float(side)}
            if isinstance(side, torch.Tensor):
                return _with_constant(kind, other, side, call.out)
            if len(call.shapes[side]) != len(call.out):
                raise Refusal("it broadcasts over missing dimensions")
        return [a, b], kind, {}

    return rule


def _with_constant(kind: str, x: Any, constant: torch.Tensor, out: Shape) -> Chain:
    """A tensor with one that does not depend on the input: a number, or a learned number per channel."""
    if constant.numel() == 1 and not constant.requires_grad:
        return [x], f"{kind}_scalar", {"value": float(constant)}
    sizes = (*[1] * (len(out) - constant.dim()), *constant.shape)
    if len(sizes) != len(out) or constant.numel() not in (1, out[1]) or sizes[1] != constant.numel():
        raise Refusal(f"it combines a tensor with parameters of shape {tuple(constant.shape)}, not with one number per channel")
    per_channel = constant.reshape(-1).expand(out[1])
    return ([x], "scale", {}, {"weight": per_channel}) if kind == "mul" else ([x], "shift", {}, {"bias": per_channel})


_add = calls(operator.add, operator.iadd, torch.add, methods=("add", "add_"))(_binary("add"))
_mul = calls(operator.mul, operator.imul, torch.mul, methods=("mul", "mul_"))(_binary("mul"))


@calls(operator.sub, operator.isub, torch.sub, methods=("sub",))
def _subtract(call: TracedCall, a: Any, b: Any) -> Chain:
    if not isinstance(b, fx.Node):
        return _add(call, a, -b)
    if isinstance(a, fx.Node):
        raise Refusal("it subtracts one tensor from another")
    return [([b], "mul_scalar", {"value": -1.0}), _add(call, b, a)]


@calls(operator.truediv, operator.itruediv, torch.div, methods=("div",))
def _divide(call: TracedCall, a: Any, b: Any) -> Chain:
    if not isinstance(a, fx.Node) or isinstance(b, fx.Node) or not torch.all(torch.as_tensor(b) != 0):
        raise Refusal("it divides by something else than a number")
    return _mul(call, a, 1 / b)


@calls(operator.neg, torch.neg, methods=("neg",))
def _negate(call: TracedCall, x: Any) -> Chain:
    return [x], "mul_scalar", {"value": -1.0}


def _add_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("Add" if len(ins) == 2 else "Sum", op, ins)


def _combine(code: str) -> TfliteRule:
    """Of two inputs or, one after the other, of more; shapes broadcast in NHWC as they do in NCHW."""

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        total, *others = ins
        for i, other in enumerate(others):
            name = op.name if i == len(others) - 1 else f"{op.name}.part{i}"
            shape = tuple(max(sizes) for sizes in zip(total.shape, other.shape, strict=True))
            total = b.apply(code, name, [total, other], shape, b.scale(op))
        total.nonnegative = all(value.nonnegative for value in ins)
        return total

    return lower


computed("add", lambda a, *terms: reduce(operator.add, terms), _add_onnx, _combine("ADD"), pairwise=True, activates=True, any_order=True)
computed("mul", lambda a, x, y: x * y, onnx_node("Mul"), _combine("MUL"), pairwise=True, activates=True, any_order=True)
computed("div", lambda a, x, y: x / y, onnx_node("Div"), no_tflite)


def _with_number(onnx: str, tflite: str) -> tuple[OnnxRule, TfliteRule]:
    """ONNX and TFLite rules of an operator with one number, whose node and operator have these names."""

    def write(w: OnnxWriter, op: Op, ins: list[str]) -> None:
        w.node(onnx, op, [ins[0], w.number(op, "value", number(op.attrs, "value"))])

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        return b.apply(tflite, op.name, [ins[0], np.array(number(op.attrs, "value"))], quant=b.scale(op))

    return write, lower


def _with_learned(key: str, onnx: str, tflite: str) -> tuple[OnnxRule, TfliteRule]:
    """ONNX and TFLite rules of an operator with one learned number per channel; channels stand last in TFLite, where they broadcast."""

    def write(w: OnnxWriter, op: Op, ins: list[str]) -> None:
        w.node(onnx, op, [ins[0], w.per_channel(op, key)])

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        return b.apply(tflite, op.name, [ins[0], source.weights[op.name][key].reshape(-1)], quant=b.scale(op))

    return write, lower


computed("add_scalar", lambda a, x: x + number(a, "value"), *_with_number("Add", "ADD"), any_order=True)
computed("mul_scalar", lambda a, x: x * number(a, "value"), *_with_number("Mul", "MUL"), any_order=True)
for _kind, _make, _key, _node in (("scale", ChannelScale, "weight", "Mul"), ("shift", ChannelShift, "bias", "Add")):
    lowerings.register(_kind)(
        Lowering(lambda ins, a, make=_make: make(ins[0][1]), *_with_learned(_key, _node, _node.upper()), stored=(_key,), any_order=True)
    )
