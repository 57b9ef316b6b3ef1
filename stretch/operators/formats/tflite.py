"""TFLite files, written without a converter: assembly of a file, and operators of one subgraph as TFLite computes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import need
from predictors.graph import Op, OpGraph
from predictors.shapes import Attrs, Shape, ints
from scheduler.formats.int8_edges import Quant
from scheduler.formats.tflite import OPERATORS, OPTIONS, TFLITE, TYPES, VERSION

Array = NDArray[Any]
Table = dict[str, Any]

#: Maximum size of a file: offsets in a flatbuffer are signed 32-bit numbers.
MAX_BYTES = (1 << 31) - (1 << 24)

#: Versions of operators in int8, if they are not 2 (op_version.cc of LiteRT).
INT8_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "RESHAPE": 1, "HARD_SWISH": 1}


@dataclass
class SubgraphPiece:
    """One subgraph of a file, under construction."""

    writer: "Writer"  # Writer of the file.
    name: str  # Name of the subgraph.
    tensors: list[Table] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)

    def tensor(self, name: str, shape: Sequence[int], dtype: str, quant: Quant | None = None) -> int:
        """Add a tensor that an operator or the caller writes, and return its index."""
        return self._add(name, shape, dtype, 0, None if quant is None else ([quant.scale], [quant.zero_point], 0))

    def constant(self, name: str, value: Array, scales: Sequence[float] = (), axis: int = 0, zero_point: int = 0) -> int:
        """Add a constant, and return its tensor's index.

        Args:
            value: Values in float32, float16, int8 or int32.
            scales: Scales of rounded values: one for the whole tensor, or one per slice along `axis`.
        """
        buffer = self.writer.buffer(value)
        return self._add(name, value.shape, str(value.dtype), buffer, (scales, [zero_point] * len(scales), axis) if len(scales) else None)

    def _add(self, name: str, shape: Sequence[int], dtype: str, buffer: int, quant: tuple[Sequence[float], list[int], int] | None) -> int:
        tensor: Table = {"name": name, "shape": list(shape), "type": TYPES[dtype], "buffer": buffer}
        if quant is not None:
            tensor["quantization"] = dict(zip(("scale", "zero_point", "quantized_dimension"), quant, strict=True))
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def op(self, code: str, inputs: Sequence[int], output: int, version: int | None = None, **settings: Any) -> None:
        """Add an operator.

        Args:
            code: Name of the operator in the schema, such as ``CONV_2D``.
            version: Version of the operator; by default the version for its input's type.
        """
        if version is None:
            version = INT8_VERSIONS.get(code, 2) if self.tensors[inputs[0]]["type"] == TYPES["int8"] else 1
        operator: Table = {"opcode_index": self.writer.opcode(code, version), "inputs": list(inputs), "outputs": [output]}
        options = OPERATORS[code].options
        if options is not None:
            operator |= {"builtin_options_type": OPTIONS[options], "builtin_options": settings}
        self.operators.append(operator)


class Writer:
    """A TFLite file under construction."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._opcodes: dict[tuple[str, int], int] = {}
        self._bytes = 0
        self._buffers: list[Table] = [{}]  # the first one means "no data"
        self._subgraphs: list[Table] = []
        self._signatures: list[Table] = []
        self._metadata: list[Table] = []

    def buffer(self, value: Array) -> int:
        """Add data, and return its index."""
        self._bytes += value.nbytes
        need(
            self._bytes <= MAX_BYTES,
            "the model has more than 2 GB of weights, a TFLite file holds less",
            "write weights in int8 or fp16, or keep ONNX",
        )
        self._buffers.append({"data": np.frombuffer(value.tobytes(), np.uint8)})
        return len(self._buffers) - 1

    def opcode(self, code: str, version: int) -> int:
        """Return the index of an operator code; it is added at its first use."""
        return self._opcodes.setdefault((code, version), len(self._opcodes))

    def add(self, piece: SubgraphPiece, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        """Add a finished subgraph, and a signature with the same name.

        Args:
            inputs: Tensor index by the input's name in the signature; `outputs` likewise.
        """
        maps = [[{"name": name, "tensor_index": index} for name, index in ends.items()] for ends in (inputs, outputs)]
        self._signatures.append(
            {"signature_key": piece.name, "subgraph_index": len(self._subgraphs), "inputs": maps[0], "outputs": maps[1]}
        )
        ends = {"inputs": list(inputs.values()), "outputs": list(outputs.values())}
        self._subgraphs.append({"name": piece.name, "tensors": piece.tensors, "operators": piece.operators, **ends})

    def metadata(self, name: str, content: bytes) -> None:
        """Add named bytes that runtimes do not read."""
        self._metadata.append({"name": name, "buffer": self.buffer(np.frombuffer(content, np.uint8))})

    def finish(self) -> bytearray:
        """Return the bytes of the file."""
        codes = [
            # Older runtimes read the first field, whose maximum is 127.
            {"deprecated_builtin_code": min(OPERATORS[code].number, 127), "builtin_code": OPERATORS[code].number, "version": version}
            for code, version in self._opcodes
        ]
        return TFLITE.encode(
            {
                "version": VERSION,
                "description": self._description,
                "operator_codes": codes,
                "subgraphs": self._subgraphs,
                "buffers": self._buffers,
                "metadata": self._metadata,
                "signature_defs": self._signatures,
            }
        )


# Operators of one subgraph as TFLite computes them: tensors in NHWC, each real or int8, with conversions between the two.


@dataclass(frozen=True)
class RoundedWeights:
    """Weights in int8: real number = scale of the output channel · integer."""

    values: Array  # Values in int8, output channels first.
    scales: Array  # One scale per output channel, or one for all.


@dataclass
class SubgraphSource:
    """Source of one subgraph."""

    graph: OpGraph  # Operators of the subgraph, with batch norms folded into other operators where possible.
    weights: dict[str, dict[str, Array]]  # Float32 weights by operator and key.
    scales: dict[str, Quant] = field(default_factory=dict)  # Scales of rounded tensors, by the operator that writes them.
    integers: dict[str, RoundedWeights] = field(default_factory=dict)  # Rounded weights by operator.


#: Largest int8 of a symmetric scale: −128 stays unused, as TFLite requires for weights.
TOP = 127

#: Fixed scales that TFLite's int8 operators of a known range require.
UNIT = Quant(1 / 256, -128)
SIGNED_UNIT = Quant(1 / 128, 0)


@dataclass
class Value:
    """A tensor of a subgraph."""

    name: str  # Name of the operator that writes it.
    shape: Shape  # Shape, NHWC or N×C.
    quant: Quant | None = None  # Its scale, if it has one, whether or not the tensor is already rounded.
    real: int | None = None  # Index of its float tensor; None if there is none yet.
    integer: int | None = None  # Index of its int8 tensor; None if there is none yet.
    nonnegative: bool = False  # Whether no element is below 0.
    flattened: Shape | None = None  # Height, width and channels of an image whose elements are in one row in NHWC order; None otherwise.


Operand = Value | Array


def to_nhwc(shape: Sequence[int]) -> Shape:
    """Return the NHWC form of an NCHW shape; other shapes stay unchanged."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else tuple(shape)


class SubgraphBuilder:
    """Writes the operators of one subgraph.

    Args:
        scales: Scales of rounded tensors, by operator.
        half: Whether float weights are stored in half precision and widened at run time.
    """

    def __init__(self, piece: SubgraphPiece, scales: Mapping[str, Quant], *, half: bool = False) -> None:
        self.piece = piece
        self.scales = scales
        self.half = half
        #: Whether the operator that is being written computes in int8.
        self.rounded = False

    def scale(self, op: Op) -> Quant | None:
        """Return the scale of an operator's result if it is being written in int8, else None."""
        return self.scales.get(op.name) if self.rounded else None

    def input(self, name: str, shape: Shape) -> Value:
        """Add a float input of the subgraph."""
        return Value(name, shape, self.scales.get(name), self.piece.tensor(name, shape, "float32"))

    def real(self, value: Value) -> int:
        """Return the index of a value's float tensor; dequantise it if necessary."""
        if value.real is None:
            assert value.integer is not None
            value.real = self.piece.tensor(f"{value.name}.real", value.shape, "float32")
            self.piece.op("DEQUANTIZE", [value.integer], value.real)
        return value.real

    def integer(self, value: Value, quant: Quant | None = None) -> int:
        """Return the index of a value's int8 tensor, in its own scale or in `quant`."""
        requested = quant or value.quant
        assert requested is not None
        if requested != value.quant:
            index = self.piece.tensor(f"{value.name}.rescaled", value.shape, "int8", requested)
            self.piece.op("QUANTIZE", [self.integer(value) if value.quant else self.real(value)], index)
            return index
        if value.integer is None:
            value.integer = self.piece.tensor(f"{value.name}.int8", value.shape, "int8", requested)
            self.piece.op("QUANTIZE", [self.real(value)], value.integer)
        return value.integer

    def constant(self, name: str, value: Array) -> int:
        """Add a constant tensor of reals, in int8 with one scale if the operator computes in int8; return its index."""
        value = np.asarray(value, np.float32)
        if not self.rounded:
            return self.weight(name, value)
        scale = float(np.abs(value).max()) / TOP or 1.0
        return self.piece.constant(name, np.clip(np.rint(value / scale), -TOP, TOP).astype(np.int8), [scale])

    def weight(self, name: str, value: Array) -> int:
        """Add a constant float tensor, and return its index."""
        if not self.half or value.size < 2 or np.abs(value).max() > np.finfo(np.float16).max:
            return self.piece.constant(name, value.astype(np.float32))
        index = self.piece.tensor(f"{name}.real", value.shape, "float32")
        self.piece.op("DEQUANTIZE", [self.piece.constant(name, value.astype(np.float16))], index, version=3)
        return index

    def indices(self, name: str, value: Sequence[int | Sequence[int]] | Array) -> int:
        """Add a constant tensor of whole numbers, such as a shape or axes, and return its index."""
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
        """Write an operator, and return its result.

        Args:
            operands: Inputs, which are converted to reals or int8 as the operator requires; arrays are constants.
            shape: Shape of the result; that of the first operand if None.
            quant: Scale of the result if it is int8.
            extra: Indices of further input tensors, such as axes.
            settings: Entries of the operator's table of settings.
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
        """Write an operator of existing tensors, and return its result, int8 or real as the operator is."""
        if self.rounded:
            assert quant is not None
            index = self.piece.tensor(name, shape, "int8", quant)
        else:
            index = self.piece.tensor(name, shape, "float32")
        self.piece.op(code, indices, index, **settings)
        return Value(name, shape, quant, integer=index) if self.rounded else Value(name, shape, None, real=index)

    def add_reshape(self, name: str, value: Value, shape: Shape) -> Value:
        """Write an operator that gives a value another shape."""
        return self.add_move("RESHAPE", name, value, shape, [self.indices(f"{name}.shape", shape)], new_shape=list(shape))

    def add_move(self, code: str, name: str, value: Value, shape: Shape, extra: Sequence[int] = (), **settings: Any) -> Value:
        """Write an operator that only moves or selects elements, so that its result has the scale of its input."""
        result = self.apply(code, name, [value], shape, value.quant, extra, **settings)
        result.nonnegative = value.nonnegative
        return result


def growth(source: SubgraphSource, op: Op, x: Value, result: Quant | None) -> float:
    """Return the ratio of the integers of a convolution's or matrix's result to the products that they come from.

    It is above 1 only if the result is almost zero everywhere, as after a dead activation.
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
    """Return the tensor indices of the input, of the weight in `order`, and of the bias.

    Args:
        order: Axes of the weight in TFLite's order.
        channels: Axis of the output channels in that order.
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
    integers = np.clip(np.rint(bias.astype(np.float64) / unit), limit.min, limit.max).astype(np.int32)
    return [b.integer(x), weights, b.piece.constant(f"{op.name}.bias", integers, unit.tolist())]


def _symmetric(weight: Array) -> RoundedWeights:
    """Round a weight symmetrically, with one scale per output channel."""
    flat = weight.reshape(len(weight), -1).astype(np.float64)
    scales = np.maximum(np.abs(flat).max(axis=1), 1e-9) / TOP
    return RoundedWeights(np.rint(flat / scales[:, None]).astype(np.int8).reshape(weight.shape), scales)


# Explicit padding, where TFLite only knows the rules SAME and VALID.


_SAME, _VALID = 0, 1


@dataclass(frozen=True)
class PaddedWindow:
    """Position of a window with explicit padding in TFLite."""

    padding: int  # ``Padding`` of the schema: 0 is SAME, 1 is VALID.
    before: tuple[int, int]  # Rows and columns that are added above and left first; none for SAME.
    after: tuple[int, int]  # Rows and columns that are added below and right first.

    @property
    def explicit(self) -> bool:
        """Whether a separate operator must pad."""
        return any((*self.before, *self.after))


@dataclass(frozen=True)
class SameWindows:
    """Windows along one axis, as a subset of the windows of SAME."""

    before: int  # Rows or columns to add before the image, which none of these windows reads.
    after: int  # Rows or columns to add after the image.
    first: int  # Index of the first window among those of SAME.
    count: int  # Number of windows of SAME.


def within_same(attrs: Attrs, image: Shape, result: Shape, axis: int) -> SameWindows | None:
    """Return the windows of an axis as a subset of SAME's, which know the image's border; None if they are no such subset.

    Args:
        attrs: ``kernel``, ``stride``, ``padding`` (top, left, bottom, right).
        image: Shape of the image, N×C×H×W.
        axis: 0 for rows, 1 for columns.
    """
    size, result_size = image[axis + 2], result[axis + 2]
    kernel, stride, padding = (ints(attrs, key)[axis] for key in ("kernel", "stride", "padding"))
    # explicit padding would count in windows that overhang
    paddings = range(kernel + stride)
    ends_inside = (result_size - 1) * stride - padding + kernel <= size
    for before in paddings if padding == 0 else (0,):
        for after in paddings if ends_inside else (0,):
            padded_size = before + size + after
            count = -(-padded_size // stride)
            gap = max((count - 1) * stride + kernel - padded_size, 0) // 2 + before - padding
            if gap >= 0 and gap % stride == 0 and gap // stride + result_size <= count:
                return SameWindows(before, after, gap // stride, count)
    return None


def window(attrs: Attrs, image: Shape, result: Shape, *, same: bool = True) -> PaddedWindow:
    """Return TFLite's padding rule for the same windows as `attrs`, with explicit padding if neither rule gives them.

    SAME pads to ⌈size / stride⌉ windows, with an odd row or column below and right, so that
    symmetric padding with an even stride differs. Rows that no window reads
    are left out, and rows that a window reads beyond the padding (``ceil_mode``) are added.

    Args:
        attrs: ``kernel``, ``stride``, ``padding`` (top, left, bottom, right) and optionally ``dilation``.
        image: Shape of the image, N×C×H×W.
    """
    kernel, stride, padding = ints(attrs, "kernel"), ints(attrs, "stride"), ints(attrs, "padding")
    dilation = ints(attrs, "dilation") if "dilation" in attrs else (1, 1)
    after = []
    for axis in (0, 1):
        size, count = image[axis + 2], result[axis + 2]
        reach = (count - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        total = max(reach - size, 0)
        same = same and count == -(-size // stride[axis]) and padding[axis] == total // 2
        after.append(max(0, reach - size - padding[axis]))
    if not any((*padding[:2], *after)):
        return PaddedWindow(_VALID, (0, 0), (0, 0))
    if same:
        return PaddedWindow(_SAME, (0, 0), (0, 0))
    return PaddedWindow(_VALID, (padding[0], padding[1]), (after[0], after[1]))


def pad(b: SubgraphBuilder, op: Op, x: Value, before: tuple[int, int], after: tuple[int, int], value: float = 0.0) -> Value:
    """Pad an image with rows and columns of zeros or of another number; negative widths cut rows and columns off."""
    if min(*before, *after) < 0:
        x = _cut(b, op, x, [max(0, -n) for n in before], [max(0, -n) for n in after])
        before, after = (max(0, before[0]), max(0, before[1])), (max(0, after[0]), max(0, after[1]))
        if not any((*before, *after)):
            return x
    n, h, w, c = x.shape
    shape = (n, before[0] + h + after[0], before[1] + w + after[1], c)
    name = f"{op.name}.padded"
    widths = b.indices(f"{name}.widths", [[0, 0], [before[0], after[0]], [before[1], after[1]], [0, 0]])
    if value == 0:
        return b.add_move("PAD", name, x, shape, [widths])
    if b.rounded:
        assert x.quant is not None
        lowest = np.array([-128 if value < 0 else TOP], np.int8)
        filler = b.piece.constant(f"{name}.value", lowest, [x.quant.scale], zero_point=x.quant.zero_point)
    else:
        filler = b.piece.constant(f"{name}.value", np.array([value], np.float32))
    return b.add_move("PADV2", name, x, shape, [widths, filler])


def _cut(b: SubgraphBuilder, op: Op, x: Value, before: list[int], after: list[int]) -> Value:
    """Cut rows and columns off the borders of an image."""
    n, h, w, c = x.shape
    shape = (n, h - before[0] - after[0], w - before[1] - after[1], c)
    name = f"{op.name}.cut"
    return b.add_move("SLICE", name, x, shape, [b.indices(f"{name}.begin", [0, *before, 0]), b.indices(f"{name}.size", shape)])
