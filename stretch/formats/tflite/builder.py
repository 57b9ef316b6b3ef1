"""Operators of one subgraph as TFLite computes them: tensors in NHWC, each real or int8, converted where the two meet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.graph import Op, OpGraph
from predictors.shapes import Shape
from stretch.formats.tflite.writer import Piece, Quant

Array = NDArray[Any]


@dataclass(frozen=True)
class RoundedWeights:
    """Weights in int8: real = scale of the output channel · integer."""

    values: Array  # int8, output channels first.
    scales: Array  # One for each output channel, or one for all.


@dataclass
class SubgraphSource:
    """One subgraph."""

    graph: OpGraph  # Its operators, batch-norms folded where something takes them up.
    weights: dict[str, dict[str, Array]]  # Float32 by operator and key.
    scales: dict[str, Quant] = field(default_factory=dict)  # Of tensors that are rounded, by the operator that writes them.
    integers: dict[str, RoundedWeights] = field(default_factory=dict)  # Weights as they were rounded, by operator.


#: Largest int8 of a symmetric scale: −128 stays unused, as TFLite asks of weights.
TOP = 127

#: Scales that TFLite's int8 operators of a known range insist on.
UNIT = Quant(1 / 256, -128)
SIGNED_UNIT = Quant(1 / 128, 0)


@dataclass
class Value:
    """A tensor of a subgraph."""

    name: str  # The operator that writes it.
    shape: Shape  # NHWC, or N×C.
    quant: Quant | None = None  # Its scale where it has one, whether or not it is rounded yet.
    real: int | None = None  # Index of its float tensor, or None.
    integer: int | None = None  # Index of its int8 tensor, or None.
    nonnegative: bool = False  # Whether no element is below 0.
    flattened: Shape | None = None  # Height, width and channels, where it is an image whose elements stand in NHWC order in one row.


Operand = Value | Array


def to_nhwc(shape: Sequence[int]) -> Shape:
    """A shape of N×C×H×W as N×H×W×C; others stay."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else tuple(shape)


class SubgraphBuilder:
    """Writes the operators of one subgraph.

    Args:
        scales: Scale of each tensor that is rounded, by operator.
        half: Whether float weights are stored in half precision and widened when they are read.
    """

    def __init__(self, piece: Piece, scales: Mapping[str, Quant], *, half: bool = False) -> None:
        self.piece = piece
        self.scales = scales
        self.half = half
        #: Whether the operator that is written now computes in int8.
        self.rounded = False

    def scale(self, op: Op) -> Quant | None:
        """Scale of an operator's result, where it is written in int8 now."""
        return self.scales.get(op.name) if self.rounded else None

    def input(self, name: str, shape: Shape) -> Value:
        """The float tensor that the caller provides."""
        return Value(name, shape, self.scales.get(name), self.piece.tensor(name, shape, "float32"))

    def real(self, value: Value) -> int:
        """Index of a value's float tensor, dequantised if need be."""
        if value.real is None:
            assert value.integer is not None
            value.real = self.piece.tensor(f"{value.name}.real", value.shape, "float32")
            self.piece.op("DEQUANTIZE", [value.integer], value.real)
        return value.real

    def integer(self, value: Value, quant: Quant | None = None) -> int:
        """Index of a value's int8 tensor, in its own scale or in `quant`."""
        wanted = quant or value.quant
        assert wanted is not None
        if wanted != value.quant:
            index = self.piece.tensor(f"{value.name}.rescaled", value.shape, "int8", wanted)
            self.piece.op("QUANTIZE", [self.integer(value) if value.quant else self.real(value)], index)
            return index
        if value.integer is None:
            value.integer = self.piece.tensor(f"{value.name}.int8", value.shape, "int8", wanted)
            self.piece.op("QUANTIZE", [self.real(value)], value.integer)
        return value.integer

    def constant(self, name: str, value: Array) -> int:
        """Index of a constant tensor of reals, in int8 with one scale where the operator computes in integers."""
        value = np.asarray(value, np.float32)
        if not self.rounded:
            return self.weight(name, value)
        scale = float(np.abs(value).max()) / TOP or 1.0
        return self.piece.constant(name, np.clip(np.rint(value / scale), -TOP, TOP).astype(np.int8), [scale])

    def weight(self, name: str, value: Array) -> int:
        """Index of a constant float tensor."""
        if not self.half or value.size < 2 or np.abs(value).max() > np.finfo(np.float16).max:
            return self.piece.constant(name, value.astype(np.float32))
        index = self.piece.tensor(f"{name}.real", value.shape, "float32")
        self.piece.op("DEQUANTIZE", [self.piece.constant(name, value.astype(np.float16))], index, version=3)
        return index

    def indices(self, name: str, value: Sequence[int] | Array) -> int:
        """Index of a constant tensor of whole numbers, such as a shape or axes."""
        return self.piece.constant(name, np.asarray(value, np.int32))

    def apply(
        self,
        code: str,
        name: str,
        operands: Sequence[Operand],
        shape: Shape | None = None,
        quant: Quant | None = None,
        extra: Sequence[int] = (),
        **settings: Any,
    ) -> Value:
        """Write an operator and give its result.

        Args:
            operands: What it computes with, reals or integers as the operator is; arrays are constants.
            shape: Of the result; of the first operand if None.
            quant: Scale of the result, where it is int8.
            extra: Further tensor indices, such as axes.
            settings: What the operator's table of settings holds.
        """
        indices = []
        for i, operand in enumerate(operands):
            if isinstance(operand, Value):
                indices.append(self.integer(operand) if self.rounded else self.real(operand))
            else:
                indices.append(self.constant(f"{name}.constant{i}", operand))
        if shape is None:
            first = operands[0]
            assert isinstance(first, Value)
            shape = first.shape
        return self.write(code, name, [*indices, *extra], shape, quant, **settings)

    def write(self, code: str, name: str, indices: Sequence[int], shape: Shape, quant: Quant | None = None, **settings: Any) -> Value:
        """Write an operator of tensors that exist and give its result, int8 or real as the operator is."""
        if self.rounded:
            assert quant is not None
            index = self.piece.tensor(name, shape, "int8", quant)
        else:
            index = self.piece.tensor(name, shape, "float32")
        self.piece.op(code, indices, index, **settings)
        return Value(name, shape, quant, integer=index) if self.rounded else Value(name, shape, None, real=index)

    def reshaped(self, name: str, value: Value, shape: Shape) -> Value:
        """Write an operator that gives the elements of a value another shape."""
        return self.moved("RESHAPE", name, value, shape, [self.indices(f"{name}.shape", shape)], new_shape=list(shape))

    def moved(self, code: str, name: str, value: Value, shape: Shape, extra: Sequence[int] = (), **settings: Any) -> Value:
        """Write an operator that only moves or selects elements, whose result has the scale of what it reads."""
        result = self.apply(code, name, [value], shape, value.quant, extra, **settings)
        result.nonnegative = value.nonnegative
        return result


def growth(source: SubgraphSource, op: Op, x: Value, result: Quant | None) -> float:
    """How many times larger the integers of a convolution's or matrix's result are than the products they come from.

    It is below 1 but for a result that is nearly nothing everywhere, such as that of a dead activation.
    """
    assert x.quant is not None
    assert result is not None
    rounded = source.integers.get(op.name) or _symmetric(source.weights[op.name]["weight"])
    return float(rounded.scales.max()) * x.quant.scale / result.scale


def matrix(
    b: SubgraphBuilder,
    source: SubgraphSource,
    op: Op,
    x: Value,
    order: tuple[int, ...],
    channels: int,
    image: tuple[int, ...] | None = None,
) -> list[int]:
    """Tensor indices of the input, the weight in `order` and the bias.

    Args:
        order: Axes of the weight in TFLite's order.
        channels: Axis of the output channels after that.
        image: Height, width and channels of a flattened image that a matrix reads.
    """
    arrays = source.weights[op.name]
    weight = arrays["weight"]

    def arranged(value: Array) -> Array:
        if image is not None:
            h, w, c = image
            value = value.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(value), -1)
        return np.ascontiguousarray(value.transpose(order))

    bias = arrays.get("bias", np.zeros(len(weight), np.float32))
    if not b.rounded:
        return [b.real(x), b.weight(f"{op.name}.weight", arranged(weight)), b.piece.constant(f"{op.name}.bias", bias.astype(np.float32))]
    assert x.quant is not None
    rounded = source.integers.get(op.name) or _symmetric(weight)
    scales = np.broadcast_to(rounded.scales, (len(weight),)).astype(np.float64)
    weights = b.piece.constant(f"{op.name}.weight", arranged(rounded.values), scales.tolist(), channels)
    # A bias is added to products of integers, so it has their scale.
    unit = scales * x.quant.scale
    limit = np.iinfo(np.int32)
    whole = np.clip(np.rint(bias.astype(np.float64) / unit), limit.min, limit.max).astype(np.int32)
    return [b.integer(x), weights, b.piece.constant(f"{op.name}.bias", whole, unit.tolist())]


def _symmetric(weight: Array) -> RoundedWeights:
    """A weight that was not rounded yet, with a scale for each output channel."""
    flat = weight.reshape(len(weight), -1).astype(np.float64)
    scales = np.maximum(np.abs(flat).max(axis=1), 1e-9) / TOP
    return RoundedWeights(np.rint(flat / scales[:, None]).astype(np.int8).reshape(weight.shape), scales)
