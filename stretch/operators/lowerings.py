"""Lowering of each operator kind to torch, ONNX and TFLite."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.registry import Registry
from predictors.shapes import Attrs, Shape
from stretch.operators.capturing import modules
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import UNIT, Quant, SubgraphBuilder, SubgraphSource, Value

#: Builds the torch module from input shapes and attributes.
Maker = Callable[[list[Shape], Attrs], nn.Module]
#: Writes the ONNX nodes of an operator, given the names of its inputs; the last node writes its result.
OnnxRule = Callable[[OnnxWriter, Op, list[str]], None]
#: Writes the TFLite operators of an operator, given its inputs, and returns its result.
TfliteRule = Callable[[SubgraphBuilder, SubgraphSource, Op, list[Value]], Value]


@dataclass(frozen=True)
class Lowering:
    """How one operator kind is computed in torch and written in ONNX and TFLite."""

    module: Maker  # The torch module that computes it.
    onnx: OnnxRule | None = None  # Writes it in ONNX; None if it needs no node.
    tflite: TfliteRule | None = None  # Writes it in TFLite; None if it needs no operator.
    stored: tuple[str, ...] = ()  # Keys of the weights that its ONNX node reads, in order.
    int8: bool = True  # Whether TFLite computes it in int8; otherwise in float, between a dequantise and a quantise.
    pairwise: bool = False  # Whether TFLite computes it on two inputs at a time.
    activates: bool = False  # Whether TFLite's operator can apply an activation to its own result.
    activation: int | None = None  # Number of this activation in TFLite (``ActivationFunctionType``), where operators apply it themselves.
    any_order: bool = False  # Whether torch's function or module computes the same on channels-last tensors.


#: Lowerings by operator kind; those of this package are registered when `stretch.operators` is imported.
lowerings: Registry[Lowering] = Registry("operator kind")


class ComputedModule(nn.Module):
    """An operator without weights.

    Args:
        kind: Of the operator.
        attrs: Of the operator.
        function: Computes it from its attributes and the tensors that it reads.
    """

    def __init__(self, kind: str, attrs: Attrs, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.kind, self.attrs, self.function = kind, dict(attrs), function

    def extra_repr(self) -> str:
        """Kind and attributes."""
        return ", ".join([self.kind, *(f"{key}={value}" for key, value in self.attrs.items())])

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute it."""
        return self.function(self.attrs, *tensors)


modules("ComputedModule")(lambda m, shape: [("", m.kind, dict(m.attrs), {})])


def computed(
    kind: str, function: Callable[..., torch.Tensor], onnx: OnnxRule | None = None, tflite: TfliteRule | None = None, **extra: Any
) -> None:
    """Register a kind without weights, which a function computes from its attributes and the tensors that it reads."""
    lowerings.register(kind)(Lowering(lambda ins, attrs: ComputedModule(kind, attrs, function), onnx, tflite, **extra))


def make_module(op: Op, input_shapes: list[Shape]) -> nn.Module:
    """The torch module that computes `op` on inputs of these shapes; its weights are torch's initial ones."""
    return lowerings.get(op.kind).module(input_shapes, op.attrs)


def onnx_node(kind: str, named: Mapping[str, str] | None = None, weights: tuple[str, ...] = (), **attributes: int | float) -> OnnxRule:
    """One ONNX node of the operator's inputs and weights; `named` says which attributes of the operator its own are, by name."""

    def write(w: OnnxWriter, op: Op, ins: list[str]) -> None:
        stored = [w.weight(op, key) for key in weights if op.attrs.get(key, True)]
        w.node(kind, op, [*ins, *stored], None, **attributes, **{key: op.attrs[name] for key, name in (named or {}).items()})

    return write


def tflite_op(code: str, nonnegative: bool = False, settings: Callable[[Attrs], dict[str, Any]] = lambda attrs: {}) -> TfliteRule:
    """One TFLite operator of one input, with settings by the operator's attributes."""

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        result = b.apply(code, op.name, [ins[0]], quant=b.scale(op), **settings(op.attrs))
        result.nonnegative = nonnegative
        return result

    return lower


def fixed_scale_op(code: str, quant: Quant, **settings: float) -> TfliteRule:
    """One TFLite operator whose int8 result has a fixed scale, whatever was calibrated."""

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        result = b.apply(code, op.name, [ins[0]], None, quant, (), **settings)
        result.nonnegative = quant == UNIT
        return result

    return lower


def no_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Refuse an operator without a TFLite lowering."""
    raise StretchError(
        f"operator `{op.name}` ({op.attrs.get('variant', op.kind)}) has no TFLite lowering",
        "keep this subgraph in ONNX, or let another processor have its segment",
    )
