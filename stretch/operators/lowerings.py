"""Lowering of each operator kind to torch, ONNX and TFLite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from predictors.graph import Op
from predictors.registry import Registry
from predictors.shapes import Attrs, Shape, number
from scheduler.formats.int8_edges import Quant
from stretch.operators.capturing import Step, modules
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import UNIT, SubgraphBuilder, SubgraphSource, Value

#: Function that builds the torch module from input shapes and attributes.
Maker = Callable[[list[Shape], Attrs], nn.Module]
#: Function that writes the ONNX nodes of an operator, given the names of its inputs; the last node writes its result.
OnnxRule = Callable[[OnnxWriter, Op, list[str]], None]
#: Function that writes the TFLite operators of an operator, given its inputs, and returns its result.
TfliteRule = Callable[[SubgraphBuilder, SubgraphSource, Op, list[Value]], Value]


@dataclass(frozen=True)
class Lowering:
    """Lowering of one operator kind to torch, ONNX and TFLite."""

    module: Maker  # Builds the torch module.
    onnx: OnnxRule | None = None  # Writes the ONNX nodes; None if the kind needs none.
    tflite: TfliteRule | None = None  # Writes the TFLite operators; None if TFLite has no lowering of the kind, or needs none.
    stored: tuple[str, ...] = ()  # Keys of the weights that its ONNX node reads, in order.
    int8: bool = True  # Whether TFLite computes it in int8; otherwise in float, between a dequantise and a quantise.
    pairwise: bool = False  # Whether TFLite computes it on two inputs at a time.
    activates: bool = False  # Whether TFLite's operator can apply an activation to its own result.
    activation: int | None = None  # Number of this activation in TFLite (``ActivationFunctionType``), if other operators can apply it.
    any_order: bool = False  # Whether torch's function or module computes the same on channels-last tensors.


#: Lowerings by operator kind; those of this package are registered when `stretch.operators` is imported.
lowerings: Registry[Lowering] = Registry("operator kind")


def register(kind: str, module: Maker, onnx: OnnxRule | None = None, tflite: TfliteRule | None = None, **extra: Any) -> None:
    """Register the lowering of a kind; `extra` are other fields of `Lowering`."""
    lowerings.register(kind)(Lowering(module, onnx, tflite, **extra))


class ComputedModule(nn.Module):
    """An operator without weights.

    Args:
        kind: Kind of the operator.
        attrs: Attributes of the operator.
        function: Function of the attributes and the input tensors that computes the operator.
    """

    def __init__(self, kind: str, attrs: Attrs, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.kind, self.attrs, self.function = kind, dict(attrs), function

    def extra_repr(self) -> str:
        """Return the kind and the attributes."""
        return ", ".join([self.kind, *(f"{key}={value}" for key, value in self.attrs.items())])

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute the operator."""
        return self.function(self.attrs, *tensors)


modules("ComputedModule")(lambda m, shape: Step(m.kind, dict(m.attrs)))


def computed(
    kind: str, function: Callable[..., torch.Tensor], onnx: OnnxRule | None = None, tflite: TfliteRule | None = None, **extra: Any
) -> None:
    """Register a kind without weights, which a function computes from its attributes and its input tensors."""
    register(kind, lambda ins, attrs: ComputedModule(kind, attrs, function), onnx, tflite, **extra)


def make_module(op: Op, input_shapes: list[Shape]) -> nn.Module:
    """Build the torch module that computes `op` on inputs of these shapes, with torch's initial weights."""
    return lowerings.get(op.kind).module(input_shapes, op.attrs)


def onnx_node(
    kind: str,
    named: Mapping[str, str] | None = None,
    weights: tuple[str, ...] = (),
    per_channel: tuple[str, ...] = (),
    numbers: Callable[[Attrs], Mapping[str, float]] = lambda attrs: {},
    indices: Callable[[Attrs], Mapping[str, Sequence[int]]] = lambda attrs: {},
    **attributes: int | float,
) -> OnnxRule:
    """Return the rule that writes one ONNX node with the operator's inputs, weights and constants from its attributes.

    Args:
        named: Attributes of the operator by the names of the node's attributes.
        weights: Keys of weights that are written in their own shape.
        per_channel: Keys of weights with one number per channel.
    """

    def write(w: OnnxWriter, op: Op, ins: list[str]) -> None:
        constants = [w.weight(op, key) for key in weights if op.attrs.get(key, True)]
        constants += [w.per_channel(op, key) for key in per_channel]
        constants += [w.number(op, key, value) for key, value in numbers(op.attrs).items()]
        constants += [w.indices(op, key, values) for key, values in indices(op.attrs).items()]
        w.node(kind, op, [*ins, *constants], None, **attributes, **{key: op.attrs[name] for key, name in (named or {}).items()})

    return write


def tflite_op(
    code: str,
    nonnegative: bool = False,
    settings: Callable[[Attrs], dict[str, Any]] = lambda attrs: {},
    quant: Quant | None = None,
    number_key: str = "",
    weight: str = "",
) -> TfliteRule:
    """Return the rule that writes one TFLite operator of one input, with settings from the operator's attributes.

    Args:
        quant: Fixed scale of its int8 result, if any; it replaces the calibrated one.
        number_key: Attribute that becomes a second input; none if empty.
        weight: Key of a weight with one number per channel as second input; channels are last in TFLite, where they broadcast.
    """

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        constants = [np.array(number(op.attrs, number_key))] if number_key else []
        constants += [source.weights[op.name][weight].reshape(-1)] if weight else []
        result = b.apply(code, op.name, [ins[0], *constants], quant=quant or b.scale(op), **settings(op.attrs))
        result.nonnegative = nonnegative or quant == UNIT
        return result

    return lower
