"""TFLite files: the parts of the schema that nn-stretch and other converters write, checked and read without trust.

Source: `schema.fbs` of LiteRT, version 3 (https://github.com/google-ai-edge/LiteRT).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError, need
from predictors.files import read_bytes
from scheduler.formats.flatbuffer import Flatbuffer

VERSION = 3


@dataclass(frozen=True)
class OperatorKind:
    """Facts of one operator in the schema and its runtime."""

    number: int  # Number in the schema.
    options: str | None  # Table of the operator's settings, or None.
    #: One letter per input tensor: ``x`` has the type of the result, ``w`` and ``b`` are the weight and the bias of such an
    #: operator, ``i`` is a constant of whole numbers such as a shape, and ``q`` has a type that the operator converts. ``*``: any number.
    reads: str


OPERATORS = {
    "ADD": OperatorKind(0, "AddOptions", "xx"),
    "AVERAGE_POOL_2D": OperatorKind(1, "Pool2DOptions", "x"),
    "CONCATENATION": OperatorKind(2, "ConcatenationOptions", "x*"),
    "CONV_2D": OperatorKind(3, "Conv2DOptions", "xwb"),
    "DEPTHWISE_CONV_2D": OperatorKind(4, "DepthwiseConv2DOptions", "xwb"),
    "DEQUANTIZE": OperatorKind(6, "DequantizeOptions", "q"),
    "FULLY_CONNECTED": OperatorKind(9, "FullyConnectedOptions", "xwb"),
    "LOGISTIC": OperatorKind(14, None, "x"),
    "MAX_POOL_2D": OperatorKind(17, "Pool2DOptions", "x"),
    "MUL": OperatorKind(18, "MulOptions", "xx"),
    "RELU": OperatorKind(19, None, "x"),
    "RELU6": OperatorKind(21, None, "x"),
    "RESHAPE": OperatorKind(22, "ReshapeOptions", "xi"),
    "SOFTMAX": OperatorKind(25, "SoftmaxOptions", "x"),
    "TANH": OperatorKind(28, None, "x"),
    "PAD": OperatorKind(34, "PadOptions", "xi"),
    "TRANSPOSE": OperatorKind(39, "TransposeOptions", "xi"),
    "MEAN": OperatorKind(40, "ReducerOptions", "xi"),
    "SUB": OperatorKind(41, "SubOptions", "xx"),
    "DIV": OperatorKind(42, "DivOptions", "xx"),
    "EXP": OperatorKind(47, None, "x"),
    "LOG_SOFTMAX": OperatorKind(50, "LogSoftmaxOptions", "x"),
    "PRELU": OperatorKind(54, None, "xx"),
    "MAXIMUM": OperatorKind(55, "MaximumMinimumOptions", "xx"),
    "MINIMUM": OperatorKind(57, "MaximumMinimumOptions", "xx"),
    "PADV2": OperatorKind(60, "PadV2Options", "xix"),
    "SLICE": OperatorKind(65, "SliceOptions", "xii"),
    "RSQRT": OperatorKind(76, None, "x"),
    "REDUCE_MAX": OperatorKind(82, "ReducerOptions", "xi"),
    "RESIZE_NEAREST_NEIGHBOR": OperatorKind(97, "ResizeNearestNeighborOptions", "xi"),
    "LEAKY_RELU": OperatorKind(98, "LeakyReluOptions", "x"),
    "ELU": OperatorKind(111, None, "x"),
    "QUANTIZE": OperatorKind(114, "QuantizeOptions", "q"),
    "HARD_SWISH": OperatorKind(117, None, "x"),
    "GELU": OperatorKind(150, "GeluOptions", "x"),
}

#: Number of each element type that nn-stretch writes, by numpy's name.
TYPES = {"float32": 0, "float16": 1, "int32": 2, "int8": 9}

#: Fields of each table in slot order, each with name and type (`scheduler.formats.flatbuffer`); ``-``: not written by nn-stretch.
_WRITTEN = {
    "Model": "version u32, operator_codes [OperatorCode], subgraphs [SubGraph], description string, buffers [Buffer], "
    "-, metadata [Metadata], signature_defs [SignatureDef]",
    "OperatorCode": "deprecated_builtin_code i8, -, version i32, builtin_code i32",
    "SubGraph": "tensors [Tensor], inputs [i32], outputs [i32], operators [Operator], name string",
    "Tensor": "shape [i32], type i8, buffer u32, name string, quantization QuantizationParameters",
    "QuantizationParameters": "-, -, scale [f32], zero_point [i64], -, -, quantized_dimension i32",
    "Operator": "opcode_index u32, inputs [i32], outputs [i32], "
    "builtin_options_type u8, builtin_options builtin_options_type?BuiltinOptions",
    "Buffer": "data [u8]",
    "Metadata": "name string, buffer u32",
    "SignatureDef": "inputs [TensorMap], outputs [TensorMap], signature_key string, -, subgraph_index u32",
    "TensorMap": "name string, tensor_index u32",
}

#: Settings of an operator that only applies an activation to its result.
_ACTIVATED = "fused_activation_function i8"

#: Settings of operators, one table each: its number and its fields.
_SETTINGS = {
    **{
        name: (number, _ACTIVATED)
        for name, number in {"FullyConnectedOptions": 8, "AddOptions": 11, "MulOptions": 21, "SubOptions": 28, "DivOptions": 29}.items()
    },
    **{
        name: (number, "")
        for name, number in {
            "PadOptions": 22,
            "TransposeOptions": 26,
            "LogSoftmaxOptions": 36,
            "DequantizeOptions": 38,
            "MaximumMinimumOptions": 39,
            "PadV2Options": 43,
            "SliceOptions": 48,
            "QuantizeOptions": 89,
        }.items()
    },
    "Conv2DOptions": (
        1,
        "padding i8, stride_w i32, stride_h i32, fused_activation_function i8, dilation_w_factor i32, dilation_h_factor i32",
    ),
    "DepthwiseConv2DOptions": (
        2,
        "padding i8, stride_w i32, stride_h i32, depth_multiplier i32, "
        "fused_activation_function i8, dilation_w_factor i32, dilation_h_factor i32",
    ),
    "Pool2DOptions": (5, "padding i8, stride_w i32, stride_h i32, filter_width i32, filter_height i32, fused_activation_function i8"),
    "SoftmaxOptions": (9, "beta f32"),
    "ConcatenationOptions": (10, "axis i32, fused_activation_function i8"),
    "ReshapeOptions": (17, "new_shape [i32]"),
    "ReducerOptions": (27, "keep_dims bool"),
    "ResizeNearestNeighborOptions": (74, "align_corners bool, half_pixel_centers bool"),
    "LeakyReluOptions": (75, "alpha f32"),
    "GeluOptions": (116, "approximate bool"),
}


def _fields(text: str) -> dict[str, tuple[int, str]]:
    """Return slot and type of each field in a line of the tables above."""
    split = [item.split() for item in text.split(", ")] if text else []
    return {words[0]: (slot, words[1]) for slot, words in enumerate(split) if len(words) == 2}


def _flatbuffer(tables: Mapping[str, str], settings: Mapping[str, tuple[int, str]]) -> Flatbuffer:
    fields = {name: _fields(text) for name, text in (*tables.items(), *((name, text) for name, (_, text) in settings.items()))}
    return Flatbuffer(fields, {"BuiltinOptions": {number: name for name, (number, _) in settings.items()}}, "Model", b"TFL3")


#: Reader and writer of exactly the tables that nn-stretch writes.
TFLITE = _flatbuffer(_WRITTEN, _SETTINGS)

#: Tables of `TFLITE`, and the number of each table of settings.
TABLES = TFLITE.tables
OPTIONS = {name: number for name, (number, _) in _SETTINGS.items()}

# Operators of TFLite as written by any converter: their numbers, their settings and the defaults of the settings.

#: Names of operators by number.
NAMES: dict[int, str] = {
    **{kind.number: name for name, kind in OPERATORS.items()},
    **{5: "DEPTH_TO_SPACE", 8: "FLOOR", 11: "L2_NORMALIZATION", 13: "LOCAL_RESPONSE_NORMALIZATION", 16: "LSTM", 20: "RELU_N1_TO_1"},
    **{23: "RESIZE_BILINEAR", 26: "SPACE_TO_DEPTH", 32: "CUSTOM", 36: "GATHER", 37: "BATCH_TO_SPACE_ND", 38: "SPACE_TO_BATCH_ND"},
    **{43: "SQUEEZE", 44: "UNIDIRECTIONAL_SEQUENCE_LSTM", 45: "STRIDED_SLICE", 48: "TOPK_V2", 49: "SPLIT", 53: "CAST", 56: "ARG_MAX"},
    **{58: "LESS", 59: "NEG", 61: "GREATER", 62: "GREATER_EQUAL", 63: "LESS_EQUAL", 64: "SELECT", 66: "SIN", 67: "TRANSPOSE_CONV"},
    **{69: "TILE", 70: "EXPAND_DIMS", 71: "EQUAL", 72: "NOT_EQUAL", 73: "LOG", 74: "SUM", 75: "SQRT", 77: "SHAPE", 78: "POW"},
    **{79: "ARG_MIN", 81: "REDUCE_PROD", 83: "PACK", 84: "LOGICAL_OR", 86: "LOGICAL_AND", 87: "LOGICAL_NOT", 88: "UNPACK"},
    **{89: "REDUCE_MIN", 90: "FLOOR_DIV", 92: "SQUARE", 99: "SQUARED_DIFFERENCE", 100: "MIRROR_PAD", 101: "ABS", 102: "SPLIT_V"},
    **{104: "CEIL", 105: "REVERSE_V2", 106: "ADD_N", 108: "COS", 109: "WHERE", 116: "ROUND", 118: "IF", 119: "WHILE", 123: "SELECT_V2"},
    **{126: "BATCH_MATMUL", 128: "CUMSUM", 129: "CALL_ONCE", 130: "BROADCAST_TO", 142: "VAR_HANDLE", 152: "RELU_0_TO_1", 158: "SIGN"},
}

#: Tables, with the additional fields that converters write.
_ANY_WRITTEN = {
    **_WRITTEN,
    "Model": "version u32, operator_codes [OperatorCode], subgraphs [SubGraph], -, buffers [Buffer]",
    "OperatorCode": "deprecated_builtin_code i8, custom_code string, version i32, builtin_code i32",
    "Tensor": "shape [i32], type i8, buffer u32, name string, quantization QuantizationParameters, is_variable bool, "
    "sparsity SparsityParameters, shape_signature [i32], -, -, external_buffer u32",
    "Buffer": "data [u8], offset u64, size u64",
    "SparsityParameters": "",
}

#: Settings of operators that nn-stretch does not write, or for which converters write more settings.
_ANY_SETTINGS = {
    **_SETTINGS,
    "FullyConnectedOptions": (8, "fused_activation_function i8, weights_format i8, keep_num_dims bool"),
    "L2NormOptions": (12, _ACTIVATED),
    "LocalResponseNormalizationOptions": (13, "radius i32, bias f32, alpha f32, beta f32"),
    "ResizeBilinearOptions": (15, "-, -, align_corners bool, half_pixel_centers bool"),
    "SqueezeOptions": (30, "squeeze_dims [i32]"),
    "StridedSliceOptions": (32, "begin_mask i32, end_mask i32, ellipsis_mask i32, new_axis_mask i32, shrink_axis_mask i32, offset bool"),
    "SpaceToDepthOptions": (19, "block_size i32"),
    "DepthToSpaceOptions": (94, "block_size i32"),
    "GatherOptions": (23, "axis i32, batch_dims i32"),
    "SplitOptions": (35, "num_splits i32"),
    "SplitVOptions": (79, "num_splits i32"),
    "CastOptions": (37, "in_data_type i8, out_data_type i8"),
    "ArgMaxOptions": (40, "output_type i8"),
    "ArgMinOptions": (57, "output_type i8"),
    "TransposeConvOptions": (49, "padding i8, stride_w i32, stride_h i32, fused_activation_function i8"),
    "ShapeOptions": (55, "out_type i8"),
    "PackOptions": (59, "values_count i32, axis i32"),
    "UnpackOptions": (64, "num i32, axis i32"),
    "MirrorPadOptions": (77, "mode i8"),
    "BatchMatMulOptions": (101, "adj_x bool, adj_y bool"),
    "CumsumOptions": (102, "exclusive bool, reverse bool"),
}

#: Settings with a default other than zero.
DEFAULTS: Mapping[str, Any] = {"dilation_w_factor": 1, "dilation_h_factor": 1}

#: Element types by number; other types keep their number.
ANY_TYPES: dict[int, str] = {
    **{0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8", 10: "float64", 15: "uint32"},
    **{16: "uint16", 17: "int4"},
}

ANY_TFLITE = _flatbuffer(_ANY_WRITTEN, _ANY_SETTINGS)


# A file from any converter, read without trust: every index must be valid.

#: Maximum number of elements of a tensor: a gigabyte of reals.
MAX_ELEMENTS = 1 << 28

#: Maximum size of a file, because offsets of the format have 31 bits.
MAX_BYTES = (1 << 31) - 1

#: Types of numbers that may represent reals.
ROUNDED = ("int4", "int8", "uint8", "int16", "int32", "int64")

_HINT = "convert it again"

#: Prefix of a custom operator's name, which may equal a name in the schema.
_CUSTOM = "custom"


@dataclass(frozen=True)
class Quantisation:
    """Meaning of quantised numbers: real = scale · (number − zero point)."""

    scales: NDArray[np.float32]  # One scale, or one for each position along an axis.
    zero_points: NDArray[np.int64]  # One zero point per scale.
    axis: int  # Axis of the scales.


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of a network."""

    name: str  # Name of the tensor; not necessarily unique.
    shape: tuple[int, ...]  # Shape of the tensor; an open size is 1.
    kind: str  # Element type, by numpy's name.
    stored: NDArray[Any] | None = None  # Numbers as stored in the file; None if the network computes them.
    quantisation: Quantisation | None = None  # Meaning of the numbers if they are quantised reals.
    opened: tuple[int, ...] = ()  # Axes with an open size in the file.

    @property
    def reals(self) -> NDArray[Any] | None:
        """Values that the stored numbers encode, in single precision if they are reals."""
        if self.stored is None or self.quantisation is None:
            return self.stored.astype(np.float32) if self.stored is not None and self.kind in ("float16", "float64") else self.stored
        broadcast_shape = [1] * len(self.shape)
        if len(self.quantisation.scales) > 1:
            broadcast_shape[self.quantisation.axis] = -1
        scale, zero = (
            values.astype(np.float64).reshape(broadcast_shape) for values in (self.quantisation.scales, self.quantisation.zero_points)
        )
        dequantised: NDArray[Any] = (scale * (self.stored.astype(np.float64) - zero)).astype(np.float32)
        return dequantised.reshape(self.shape)


@dataclass(frozen=True)
class TfliteOperator:
    """One operator of a network."""

    code: str  # Name in the schema; for a custom operator ``custom`` and its own name.
    settings: Mapping[str, Any]  # Settings by name; missing ones are zero.
    inputs: tuple[int | None, ...]  # Numbers of the input tensors; None for an omitted input.
    outputs: tuple[int, ...]  # Numbers of the output tensors.

    @property
    def custom(self) -> bool:
        """Whether code outside the file and TFLite computes it."""
        return self.code.startswith(_CUSTOM)

    @property
    def name(self) -> str:
        """Name in runtimes: for a custom operator, its own name."""
        return self.code.removeprefix(f"{_CUSTOM} ")


@dataclass(frozen=True)
class TfliteNetwork:
    """The only network of a file."""

    path: Path  # Path of the file.
    tensors: Sequence[TfliteTensor]  # Tensors by number.
    operators: Sequence[TfliteOperator] = field(default_factory=list)  # Operators in order.
    inputs: tuple[int, ...] = ()  # Numbers of the input tensors.
    outputs: tuple[int, ...] = ()  # Numbers of the output tensors.


def open_tflite(path: Path) -> TfliteNetwork:
    """Read the only network of a file; refuse a damaged file or one without exactly one network."""
    content = read_bytes(path, "model", MAX_BYTES)
    try:
        model = ANY_TFLITE.decode(content, allow_unknown=True)
        need(model.get("version") == VERSION, f"its version is {model.get('version')}, not {VERSION}")
        graphs = model.get("subgraphs", [])
        need(
            len(graphs) == 1,
            f"it has {len(graphs)} subgraphs, one is taken",
            "convert the function that computes the network alone, without `if` or loops in it",
        )
        return _network(path, model, graphs[0], content)
    except StretchError as error:
        raise StretchError(f"{path} is no TFLite file that can be read: {error.message}", error.hint or _HINT) from error


def _network(path: Path, model: Mapping[str, Any], graph: Mapping[str, Any], content: bytes) -> TfliteNetwork:
    """Return one subgraph of a file, with valid indices."""
    buffers = model.get("buffers", [])
    tensors = [_tensor(tensor, buffers, content) for tensor in graph.get("tensors", [])]
    # counted in single precision, because many tensors may name one buffer
    stored_bytes = sum(4 * tensor.stored.size for tensor in tensors if tensor.stored is not None)
    need(stored_bytes <= MAX_BYTES, f"it has {stored_bytes / 1e9:.1f} GB of stored numbers")
    codes = [_code(code) for code in model.get("operator_codes", [])]
    operators = [_operator(operator, codes, len(tensors)) for operator in graph.get("operators", [])]
    need(bool(operators), "it has no operators")
    inputs, outputs = (_indices(graph.get(key, ()), len(tensors), key) for key in ("inputs", "outputs"))
    available = {i for i, tensor in enumerate(tensors) if tensor.stored is not None} | set(inputs)
    need(all(tensors[i].stored is None for i in inputs), "its inputs are stored")
    for operator in operators:
        lacking = next((i for i in operator.inputs if i is not None and i not in available), None)
        need(lacking is None, f"{operator.code} reads `{tensors[lacking or 0].name[:80]}`, which nothing writes before it")
        twice = next((i for i in operator.outputs if i in available), None)
        need(twice is None, f"`{tensors[twice or 0].name[:80]}` is written twice")
        available |= set(operator.outputs)
    need(all(i in available for i in outputs), "it has outputs that nothing writes")
    return TfliteNetwork(path, tensors, operators, inputs, outputs)


def _code(code: Mapping[str, Any]) -> str:
    """Return an operator's name, with ``custom`` before the name of a custom one; old files have the number in another field."""
    number = max(int(code.get("builtin_code", 0)), int(code.get("deprecated_builtin_code", 0)))
    name = NAMES.get(number, f"operator {number}")
    return f"{_CUSTOM} {str(code.get('custom_code', ''))[:60]}".strip() if name == "CUSTOM" else name


def _indices(indices: Any, tensors: int, noun: str) -> tuple[int, ...]:
    numbers = tuple(int(i) for i in indices)
    need(all(0 <= i < tensors for i in numbers), f"it has {noun} that are no tensors")
    return numbers


def _operator(operator: Mapping[str, Any], codes: Sequence[str], tensors: int) -> TfliteOperator:
    index = int(operator.get("opcode_index", 0))
    need(index < len(codes), "it has an operator without a code")
    reads = tuple(None if i == -1 else int(i) for i in operator.get("inputs", ()))
    _indices([i for i in reads if i is not None], tensors, f"inputs of {codes[index]}")
    writes = _indices(operator.get("outputs", ()), tensors, f"outputs of {codes[index]}")
    return TfliteOperator(codes[index], {**DEFAULTS, **operator.get("builtin_options", {})}, reads, writes)


def _tensor(tensor: Mapping[str, Any], buffers: Sequence[Mapping[str, Any]], content: bytes) -> TfliteTensor:
    name, kind = tensor.get("name", ""), ANY_TYPES.get(tensor.get("type", 0), f"type {tensor.get('type')}")
    shape = tuple(int(n) for n in tensor.get("shape", ()))
    signature = [int(n) for n in tensor.get("shape_signature", ())]
    opened = tuple(i for i, n in enumerate(signature) if n < 0) if len(signature) == len(shape) else ()
    shape = tuple(1 if i in opened and n < 1 else n for i, n in enumerate(shape))
    elements = math.prod(shape)
    need(len(shape) <= 8 and min((*shape, 0)) >= 0 and elements <= MAX_ELEMENTS, f"tensor `{name[:80]}` has the shape {list(shape[:8])}")
    index = int(tensor.get("buffer", 0))
    need(index < len(buffers), f"the buffer of tensor `{name[:80]}` is not there")
    data = _content(buffers[index], content, name)
    need(not tensor.get("external_buffer"), f"tensor `{name[:80]}` is in another file", "convert it with weights inside")
    if data is None:
        return TfliteTensor(name, shape, kind, None, _quantisation(tensor, name, shape, kind), opened)
    need("sparsity" not in tensor, f"tensor `{name[:80]}` is sparse", "convert it with dense weights")
    stored = _stored(data, name, shape, kind)
    return TfliteTensor(name, shape, kind, stored, _quantisation(tensor, name, shape, kind))


def _content(buffer: Mapping[str, Any], content: bytes, name: str) -> NDArray[np.uint8] | None:
    """Return the bytes of a buffer, stored in the buffer or, in large files, after all tables; None without bytes."""
    offset, size = int(buffer.get("offset", 0)), int(buffer.get("size", 0))
    if offset > 1 and size:
        need(offset + size <= len(content), f"tensor `{name[:80]}` lies beyond the end of the file")
        return np.frombuffer(content, np.uint8, size, offset)
    stored: NDArray[np.uint8] | None = buffer.get("data")
    return stored if stored is not None and len(stored) else None


def _stored(data: NDArray[np.uint8], name: str, shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    elements = math.prod(shape)
    if kind == "int4":
        need(len(data) == -(-elements // 2), f"tensor `{name[:80]}` has {len(data)} bytes, its shape needs {-(-elements // 2)}")
        halves = np.stack([data & 15, data >> 4], axis=1).reshape(-1)[:elements].astype(np.int8)
        return np.where(halves > 7, halves - 16, halves).astype(np.int8).reshape(shape)
    need(kind in ANY_TYPES.values(), f"tensor `{name[:80]}` has element {kind}, which no network computes with")
    expected_bytes = elements * np.dtype(kind).itemsize
    need(len(data) == expected_bytes, f"tensor `{name[:80]}` has {len(data)} bytes, its shape needs {expected_bytes}")
    return data.view(np.dtype(kind).newbyteorder("<")).reshape(shape)


def _quantisation(tensor: Mapping[str, Any], name: str, shape: tuple[int, ...], kind: str) -> Quantisation | None:
    fields = tensor.get("quantization", {})
    scales = np.asarray(fields.get("scale", ()), np.float32)
    if not len(scales) or kind not in ROUNDED:
        return None
    zeros = np.asarray(fields.get("zero_point", np.zeros(len(scales))), np.int64)
    axis = int(fields.get("quantized_dimension", 0))
    fits = len(scales) == 1 or (0 <= axis < len(shape) and len(scales) == shape[axis])
    need(fits and len(zeros) in (1, len(scales)), f"tensor `{name[:80]}` has {len(scales)} scales and {len(zeros)} zero points")
    need(bool(np.isfinite(scales).all() and (scales > 0).all()), f"tensor `{name[:80]}` has a scale that is none")
    return Quantisation(scales, np.broadcast_to(zeros, scales.shape), axis)


# Checks that every number in a file of nn-stretch is valid for a runtime, because runtimes do not check.

#: Range of scales of int8 tensors: beyond it LiteRT's fixed-point factors overflow, and it stops the process.
MIN_SCALE, MAX_SCALE = 2.0**-24, 2.0**24

#: Maximum factor from the integers of an operator's inputs to those of its result: LiteRT stops the process
#: at twice this factor for products with weights, and for additions.
MAX_FACTORS = {"weights": 2.0**7, "others": 2.0**18}

#: Operators whose int8 result always has the same scale.
_BOUNDED = ("LOGISTIC", "TANH", "SOFTMAX")

_KINDS = {kind.number: (name, kind) for name, kind in OPERATORS.items()}

#: Settings that a runtime divides by or derives memory sizes from.
_POSITIVE = ("stride_w", "stride_h", "dilation_w_factor", "dilation_h_factor", "depth_multiplier", "filter_width", "filter_height")
#: Settings with a small number of values, and that number.
_CHOICES = {"padding": 2, "fused_activation_function": 4}


def check_model(model: Mapping[str, Any]) -> None:
    """Check every index and size that a runtime follows, and fill in defaults of missing fields.

    Args:
        model: Tables of a file, as read by `TFLITE`.
    """
    need(model.get("version") == VERSION, f"its version is {model.get('version')}, not {VERSION}")
    for key in ("operator_codes", "subgraphs", "buffers", "signature_defs"):
        need(bool(model.get(key)), f"it has no {key.replace('_', ' ')}")
    for code in model["operator_codes"]:
        number = code.setdefault("builtin_code", 0)
        need(number in _KINDS, f"it has operator number {number}, which nn-stretch does not write")
        need(1 <= code.get("version", 1) <= 16, f"its operator {_KINDS[number][0]} has version {code.get('version')}")
    need(not model["buffers"][0], "its first buffer is not empty")
    for entry in model.get("metadata", []):
        need(entry.get("buffer", 0) < len(model["buffers"]), "its metadata lie in a buffer that is not there")
    for graph in model["subgraphs"]:
        for tensor in graph.setdefault("tensors", []):
            for key, default in (("name", ""), ("shape", np.empty(0, np.int32)), ("buffer", 0)):
                tensor.setdefault(key, default)
        for operator in graph.get("operators", []):
            operator.setdefault("opcode_index", 0)
        _check_graph(graph, _network(Path(graph.get("name", "")), model, graph, b""))
    taken = Counter(definition.setdefault("subgraph_index", 0) for definition in model["signature_defs"])
    need(set(taken) == set(range(len(model["subgraphs"]))) and max(taken.values()) == 1, "its signatures are not one for each subgraph")
    keys = [definition.get("signature_key", "") for definition in model["signature_defs"]]
    need(all(keys) and len(set(keys)) == len(keys), "two of its signatures have one name")
    for definition in model["signature_defs"]:
        graph = model["subgraphs"][definition["subgraph_index"]]
        for key in ("inputs", "outputs"):
            ends = definition.get(key, [])
            indices = [end.setdefault("tensor_index", 0) for end in ends]
            names = [end.get("name", "") for end in ends]
            proper = indices == graph[key].tolist() and all(names) and len(set(names)) == len(names)
            need(proper, f"signature `{definition['signature_key']}` does not name the {key} of its subgraph")


def _check_graph(graph: Mapping[str, Any], network: TfliteNetwork) -> None:
    """Check the additional guarantees of nn-stretch for a subgraph."""
    for table, tensor in zip(graph["tensors"], network.tensors, strict=True):
        _check_tensor(tensor, table.get("quantization"))
    for key, numbers in (("inputs", network.inputs), ("outputs", network.outputs)):
        need(len(numbers) > 0, f"subgraph `{network.path}` has no {key}")
        need(all(network.tensors[i].stored is None for i in numbers), f"subgraph `{network.path}` has {key} that are stored")
    for table, operator in zip(graph["operators"], network.operators, strict=True):
        kind, noun = OPERATORS[operator.code], f"{operator.code} of subgraph `{network.path}`"
        fits = len(operator.inputs) > 0 if kind.reads.endswith("*") else len(operator.inputs) == len(kind.reads)
        need(fits and None not in operator.inputs, f"{noun} has {len(operator.inputs)} inputs")
        need(len(operator.outputs) == 1, f"{noun} writes no tensor of its own")
        expected = OPTIONS[kind.options] if kind.options else 0
        need(table.get("builtin_options_type", 0) == expected, f"{noun} has the settings of another operator")
        reads = [network.tensors[i] for i in operator.inputs if i is not None]
        result = network.tensors[operator.outputs[0]]
        if kind.options:
            _check_settings(operator.code, noun, table.get("builtin_options", {}))
        _check_types(operator.code, noun, kind.reads, reads, result)
        _check_factor(operator.code, noun, kind.reads, reads, result)
        _check_growth(operator.code, noun, reads, result)


def _check_tensor(tensor: TfliteTensor, quantisation: Mapping[str, Any] | None) -> None:
    noun = f"tensor `{tensor.name}`"
    need(tensor.kind in TYPES, f"{noun} has a type that nn-stretch does not write")
    need(min(tensor.shape, default=1) > 0, f"{noun} has the shape {list(tensor.shape)}")
    has_scale = "none" if quantisation is None else "a scale"
    need((quantisation is not None) == (tensor.kind == "int8") or tensor.kind == "int32", f"{noun} is {tensor.kind} and has {has_scale}")
    if quantisation is None:
        return
    scale, zero = (np.asarray(quantisation.get(key, ())) for key in ("scale", "zero_point"))
    need(len(scale) == len(zero) > 0, f"{noun} has {len(scale)} scales and {len(zero)} zero points")
    need(bool((np.abs(zero) <= 128).all()), f"{noun} has a zero point that is none")
    need(len(scale) == 1 or tensor.stored is not None, f"{noun} has a scale for each channel and is no weight")
    fits = tensor.stored is not None or MIN_SCALE <= scale[0] <= MAX_SCALE
    need(bool(fits), f"{noun} has the scale {scale[:1]}, which is out of range")


def _check_settings(code: str, noun: str, settings: Mapping[str, Any]) -> None:
    for key in settings.keys() & _POSITIVE:
        need(1 <= settings[key] <= 1 << 16, f"{noun} has {key} {settings[key]}")
    for key in settings.keys() & _CHOICES.keys():
        need(0 <= settings[key] < _CHOICES[key], f"{noun} has {key} {settings[key]}")
    if code in ("CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"):
        need({"stride_w", "stride_h"} <= settings.keys(), f"{noun} has no stride")
    if code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        need({"filter_width", "filter_height"} <= settings.keys(), f"{noun} has no window")


def _check_types(code: str, noun: str, letters: str, reads: Sequence[TfliteTensor], result: TfliteTensor) -> None:
    """Refuse types for which an operator has no kernel: a runtime would stop the process."""
    allowed = {
        "x": (result.kind,),
        "w": (result.kind,),
        "b": ("int32" if result.kind == "int8" else "float32",),
        "i": ("int32",),
        "q": ("float32", "int8") if code == "QUANTIZE" else ("int8", "float16"),
    }
    results = {"QUANTIZE": ("int8",), "DEQUANTIZE": ("float32",)}.get(code, ("float32", "int8"))
    need(result.kind in results, f"{noun} gives {result.kind}")
    for letter, tensor in zip(letters[0] * len(reads) if letters.endswith("*") else letters, reads, strict=True):
        need(tensor.kind in allowed[letter], f"{noun} reads {tensor.kind} as `{tensor.name}` and gives {result.kind}")
        need(tensor.stored is not None or letter != "i", f"{noun} reads no constant as `{tensor.name}`")


def _check_factor(code: str, noun: str, letters: str, reads: Sequence[TfliteTensor], result: TfliteTensor) -> None:
    """Refuse an operator whose result would have integers too large for its scale."""
    if result.quantisation is None or code in _BOUNDED or reads[0].quantisation is None:
        return
    scales = [float(tensor.quantisation.scales.max()) for tensor in reads if tensor.quantisation is not None]
    weighted = "w" in letters
    need(not weighted or len(scales) == len(reads), f"{noun} has a weight without a scale")
    factor = scales[0] * scales[1] if weighted else math.prod(scales) if code == "MUL" else max(scales)
    factor /= float(result.quantisation.scales[0])
    need(factor <= MAX_FACTORS["weights" if weighted else "others"], f"{noun} makes its integers {factor:.1g} times as large")


def _check_growth(code: str, noun: str, reads: Sequence[TfliteTensor], result: TfliteTensor) -> None:
    """Refuse an operator whose constant gives a result of another size than stated: a runtime would use the constant's."""
    if code not in ("PAD", "PADV2", "RESIZE_NEAREST_NEIGHBOR", "RESHAPE"):
        return
    shape, stored = reads[0].shape, reads[1].stored
    numbers = [] if stored is None else stored.ravel().tolist()
    if code == "RESHAPE":
        need(math.prod(numbers) == math.prod(shape), f"{noun} has the shape {numbers}")
        expected = numbers
    elif code == "RESIZE_NEAREST_NEIGHBOR":
        need(len(shape) == 4 and len(numbers) == 2, f"{noun} has the size {numbers}")
        expected = [shape[0], *numbers, shape[3]]
    else:
        need(len(numbers) == 2 * len(shape) and min(numbers) >= 0, f"{noun} has the widths {numbers}")
        expected = [size + before + after for size, before, after in zip(shape, numbers[::2], numbers[1::2], strict=True)]
    need(expected == list(result.shape), f"{noun} gives {expected}, the file says {list(result.shape)}")
