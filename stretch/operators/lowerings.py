"""Lowering of each operator kind to torch, ONNX and TFLite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.registry import Registry
from predictors.shapes import Attrs, Shape, number
from scheduler.formats.int8_edges import Quant
from stretch.operators.capturing import Step, modules
from stretch.operators.formats.onnx import OnnxWriter
from stretch.operators.formats.tflite import UNIT, SubgraphBuilder, SubgraphSource, Value

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


def register(kind: str, module: Maker, onnx: OnnxRule | None = None, tflite: TfliteRule | None = None, **extra: Any) -> None:
    """Register the lowering of a kind; `extra` are other fields of `Lowering`."""
    lowerings.register(kind)(Lowering(module, onnx, tflite, **extra))


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
        """Return the kind and attributes."""
        return ", ".join([self.kind, *(f"{key}={value}" for key, value in self.attrs.items())])

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute it."""
        return self.function(self.attrs, *tensors)


modules("ComputedModule")(lambda m, shape: Step(m.kind, dict(m.attrs)))


def computed(
    kind: str, function: Callable[..., torch.Tensor], onnx: OnnxRule | None = None, tflite: TfliteRule | None = None, **extra: Any
) -> None:
    """Register a kind without weights, which a function computes from its attributes and the tensors that it reads."""
    register(kind, lambda ins, attrs: ComputedModule(kind, attrs, function), onnx, tflite, **extra)


def make_module(op: Op, input_shapes: list[Shape]) -> nn.Module:
    """Return the torch module that computes `op` on inputs of these shapes; its weights are torch's initial ones."""
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
    """Return one ONNX node of the operator's inputs, of its weights and of constants that its attributes state.

    Args:
        named: Attributes of the operator by the names of the node's own.
        weights: Weights that are read as they are.
        per_channel: Weights of one number a channel.
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
    """Return one TFLite operator of one input, with settings by the operator's attributes.

    Args:
        quant: Scale of its int8 result, where that is fixed, whatever was calibrated.
        number_key: Attribute that it reads as a second input; none if empty.
        weight: Weight of one number a channel that it reads so; channels stand last in TFLite, where they broadcast.
    """

    def lower(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
        constants = [np.array(number(op.attrs, number_key))] if number_key else []
        constants += [source.weights[op.name][weight].reshape(-1)] if weight else []
        result = b.apply(code, op.name, [ins[0], *constants], quant=quant or b.scale(op), **settings(op.attrs))
        result.nonnegative = nonnegative or quant == UNIT
        return result

    return lower


def no_tflite(b: SubgraphBuilder, source: SubgraphSource, op: Op, ins: list[Value]) -> Value:
    """Refuse an operator without a TFLite lowering."""
    raise StretchError(
        f"operator `{op.name}` ({op.attrs.get('variant', op.kind)}) has no TFLite lowering",
        "keep this subgraph in ONNX, or let another processor have its segment",
    )
