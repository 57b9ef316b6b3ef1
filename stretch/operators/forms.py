"""What one kind of operator is in torch, in ONNX and in TFLite."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.registry import Registry
from predictors.shapes import Attrs, Shape
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import UNIT, Builder, Value
from stretch.formats.tflite.source import Source
from stretch.formats.tflite.writer import Quant

#: Shapes of what it reads and attributes to the module that computes it.
Maker = Callable[[list[Shape], Attrs], nn.Module]
#: Writes the nodes of an operator that reads tensors of these names; the last one writes its result.
OnnxRule = Callable[[OnnxWriter, Op, list[str]], None]
#: Writes the operators of one that reads these values, and gives its result.
TfliteRule = Callable[[Builder, Source, Op, list[Value]], Value]


@dataclass(frozen=True)
class Form:
    """One kind of operator outside of the operator graph."""

    module: Maker  # The torch module that computes it.
    onnx: OnnxRule | None = None  # How it is written in ONNX; None for one that leaves no node.
    tflite: TfliteRule | None = None  # How it is written in TFLite; None for one that leaves no operator.
    stored: tuple[str, ...] = ()  # Keys of the weights that its ONNX node reads, in order.
    int8: bool = True  # Whether TFLite computes it in int8 as it is written; else it computes in reals between two conversions.
    pairwise: bool = False  # Whether TFLite computes it on two inputs at a time.
    activates: bool = False  # Whether TFLite's operator can apply an activation to its own result.
    activation: int | None = None  # Number of this activation in TFLite (``ActivationFunctionType``), where operators apply it themselves.
    any_order: bool = False  # Whether torch's own function or module computes the same on channels that lie last.


#: Forms by the name of the kind; those of this package are registered once `stretch.operators` is imported.
forms: Registry[Form] = Registry("operator kind")


def make_module(op: Op, input_shapes: list[Shape]) -> nn.Module:
    """The torch module that computes `op` on inputs of these shapes; its weights are torch's initial ones."""
    return forms.get(op.kind).module(input_shapes, op.attrs)


def onnx_node(kind: str, **attributes: int | float) -> OnnxRule:
    """One ONNX node with the operator's inputs."""
    return lambda writer, op, ins: writer.node(kind, op, ins, **attributes)


def tflite_op(code: str, nonnegative: bool = False) -> TfliteRule:
    """One TFLite operator of one input."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        made = b.apply(code, op.name, [ins[0]], quant=b.scale(op))
        made.nonnegative = nonnegative
        return made

    return lower


def bounded(code: str, quant: Quant, **settings: float) -> TfliteRule:
    """One TFLite operator whose int8 result has a scale of its own, whatever was calibrated."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        made = b.apply(code, op.name, [ins[0]], quant=quant, **settings)
        made.nonnegative = quant == UNIT
        return made

    return lower


def no_tflite(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Refuses an operator that is not written in TFLite."""
    raise StretchError(
        f"operator `{op.name}` ({op.attrs.get('variant', op.kind)}) has no form in TFLite",
        "keep this subgraph in ONNX, or let another processor have its segment",
    )
