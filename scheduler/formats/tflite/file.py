"""A TFLite file of any converter, read without trust: tensors, stored numbers and operators, every index of which leads somewhere."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError, need
from predictors.files import read_bytes
from scheduler.formats.flatbuffer import Flatbuffer
from scheduler.formats.tflite_checks import MAX_ELEMENTS
from scheduler.formats.tflite_schema import OPERATORS, VERSION
from scheduler.formats.tflite_schema import OPTIONS as OWN_OPTIONS
from scheduler.formats.tflite_schema import TABLES as OWN

# Operators of TFLite as any converter writes them: their numbers, their settings and what those are where a file is silent.
#
# Source: `schema.fbs` of LiteRT, version 3 (https://github.com/google-ai-edge/LiteRT).

#: Names by number.
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

_ACTIVATION = {"fused_activation_function": (0, "i8")}

#: Settings of operators that nn-stretch does not write itself, or has more of.
_MORE: dict[str, dict[str, tuple[int, str]]] = {
    "FullyConnectedOptions": {**_ACTIVATION, "weights_format": (1, "i8"), "keep_num_dims": (2, "bool")},
    "L2NormOptions": _ACTIVATION,
    "LocalResponseNormalizationOptions": {"radius": (0, "i32"), "bias": (1, "f32"), "alpha": (2, "f32"), "beta": (3, "f32")},
    "ResizeBilinearOptions": {"align_corners": (2, "bool"), "half_pixel_centers": (3, "bool")},
    "SqueezeOptions": {"squeeze_dims": (0, "[i32]")},
    "StridedSliceOptions": {
        "begin_mask": (0, "i32"),
        "end_mask": (1, "i32"),
        "ellipsis_mask": (2, "i32"),
        "new_axis_mask": (3, "i32"),
        "shrink_axis_mask": (4, "i32"),
        "offset": (5, "bool"),
    },
    "SpaceToDepthOptions": {"block_size": (0, "i32")},
    "DepthToSpaceOptions": {"block_size": (0, "i32")},
    "GatherOptions": {"axis": (0, "i32"), "batch_dims": (1, "i32")},
    "SplitOptions": {"num_splits": (0, "i32")},
    "SplitVOptions": {"num_splits": (0, "i32")},
    "CastOptions": {"in_data_type": (0, "i8"), "out_data_type": (1, "i8")},
    "ArgMaxOptions": {"output_type": (0, "i8")},
    "ArgMinOptions": {"output_type": (0, "i8")},
    "TransposeConvOptions": {"padding": (0, "i8"), "stride_w": (1, "i32"), "stride_h": (2, "i32"), "fused_activation_function": (3, "i8")},
    "ShapeOptions": {"out_type": (0, "i8")},
    "PackOptions": {"values_count": (0, "i32"), "axis": (1, "i32")},
    "UnpackOptions": {"num": (0, "i32"), "axis": (1, "i32")},
    "MirrorPadOptions": {"mode": (0, "i8")},
    "BatchMatMulOptions": {"adj_x": (0, "bool"), "adj_y": (1, "bool")},
    "CumsumOptions": {"exclusive": (0, "bool"), "reverse": (1, "bool")},
}

#: Table of settings by its number.
OPTIONS: dict[int, str] = {
    **{number: name for name, number in OWN_OPTIONS.items()},
    **{12: "L2NormOptions", 13: "LocalResponseNormalizationOptions", 15: "ResizeBilinearOptions", 19: "SpaceToDepthOptions"},
    **{23: "GatherOptions", 30: "SqueezeOptions", 32: "StridedSliceOptions", 35: "SplitOptions", 37: "CastOptions", 40: "ArgMaxOptions"},
    **{49: "TransposeConvOptions", 55: "ShapeOptions", 57: "ArgMinOptions", 59: "PackOptions", 64: "UnpackOptions"},
    **{77: "MirrorPadOptions", 79: "SplitVOptions", 94: "DepthToSpaceOptions", 101: "BatchMatMulOptions", 102: "CumsumOptions"},
}

#: Settings whose default is not zero.
DEFAULTS: Mapping[str, Any] = {"dilation_w_factor": 1, "dilation_h_factor": 1}

TABLES: dict[str, dict[str, tuple[int, str]]] = {
    **OWN,
    **_MORE,
    "Model": {"version": (0, "u32"), "operator_codes": (1, "[OperatorCode]"), "subgraphs": (2, "[SubGraph]"), "buffers": (4, "[Buffer]")},
    "OperatorCode": {"deprecated_builtin_code": (0, "i8"), "custom_code": (1, "string"), "version": (2, "i32"), "builtin_code": (3, "i32")},
    "Tensor": {
        "shape": (0, "[i32]"),
        "type": (1, "i8"),
        "buffer": (2, "u32"),
        "name": (3, "string"),
        "quantization": (4, "QuantizationParameters"),
        "is_variable": (5, "bool"),
        "sparsity": (6, "SparsityParameters"),
        "shape_signature": (7, "[i32]"),
        "external_buffer": (10, "u32"),
    },
    "SparsityParameters": {},
    "Buffer": {"data": (0, "[u8]"), "offset": (1, "u64"), "size": (2, "u64")},
}

ANY_TFLITE = Flatbuffer(TABLES, {"BuiltinOptions": OPTIONS}, "Model", b"TFL3")


#: Offsets of the format have 31 bits.
MAX_BYTES = (1 << 31) - 1

#: Element types by number; those of other numbers are kept by their number.
TYPES: dict[int, str] = {
    **{0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8", 10: "float64", 15: "uint32"},
    **{16: "uint16", 17: "int4"},
}

#: Types whose numbers may stand for reals.
ROUNDED = ("int4", "int8", "uint8", "int16", "int32", "int64")

_AGAIN = "convert it again"

#: Stands before the name of a custom operator, which may be that of one of the schema.
_CUSTOM = "custom"


@dataclass(frozen=True)
class Quantisation:
    """What whole numbers stand for: real = scale · (number − zero point)."""

    scales: NDArray[np.float32]  # One, or one for each place along an axis.
    zero_points: NDArray[np.int64]  # As many.
    axis: int  # That axis.


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of a network."""

    name: str  # Its name, which another may have too.
    shape: tuple[int, ...]  # Its shape; an open size is 1.
    kind: str  # Its element type, by numpy's name.
    stored: NDArray[Any] | None = None  # Its numbers as the file stores them; None if the network computes it.
    quantisation: Quantisation | None = None  # What they stand for, if they are rounded reals.
    opened: tuple[int, ...] = ()  # Axes whose size the file leaves open.

    @property
    def reals(self) -> NDArray[Any] | None:
        """What the stored numbers stand for, in single precision if they are of reals."""
        if self.stored is None or self.quantisation is None:
            return self.stored.astype(np.float32) if self.stored is not None and self.kind in ("float16", "float64") else self.stored
        along = [1] * len(self.shape)
        if len(self.quantisation.scales) > 1:
            along[self.quantisation.axis] = -1
        scale, zero = (values.astype(np.float64).reshape(along) for values in (self.quantisation.scales, self.quantisation.zero_points))
        dequantised: NDArray[Any] = (scale * (self.stored.astype(np.float64) - zero)).astype(np.float32)
        return dequantised.reshape(self.shape)


@dataclass(frozen=True)
class TfliteOperator:
    """One operator."""

    code: str  # Its name in the schema; of a custom operator ``custom`` and its own name.
    settings: Mapping[str, Any]  # Its settings by name; those that are left out are zero.
    inputs: tuple[int | None, ...]  # Numbers of the tensors that it reads; None for one that is left out.
    outputs: tuple[int, ...]  # Numbers of those that it writes.

    @property
    def custom(self) -> bool:
        """Whether it is computed by code outside of the file and of TFLite."""
        return self.code.startswith(_CUSTOM)

    @property
    def name(self) -> str:
        """What runtimes call it: a custom operator by its own name."""
        return self.code.removeprefix(f"{_CUSTOM} ")


@dataclass(frozen=True)
class TfliteNetwork:
    """The one network of a file."""

    path: Path  # The file.
    tensors: Sequence[TfliteTensor]  # By number.
    operators: Sequence[TfliteOperator] = field(default_factory=list)  # In order.
    inputs: tuple[int, ...] = ()  # Numbers of the tensors that it reads.
    outputs: tuple[int, ...] = ()  # Numbers of those that it gives.


def open_tflite(path: Path) -> TfliteNetwork:
    """Read a file.

    Raises:
        StretchError: If it cannot be read, is damaged, or holds what is no single network.
    """
    content = read_bytes(path, "model", MAX_BYTES)
    try:
        return _network(path, ANY_TFLITE.decode(content, others=True), content)
    except StretchError as error:
        raise StretchError(f"{path} is no TFLite file that can be read: {error.message}", error.hint or _AGAIN) from error


def _network(path: Path, model: Mapping[str, Any], content: bytes) -> TfliteNetwork:
    need(model.get("version") == VERSION, f"its version is {model.get('version')}, not {VERSION}")
    graphs = model.get("subgraphs", [])
    need(len(graphs) == 1, f"it has {len(graphs)} subgraphs, one is taken", "convert the function that computes the network alone")
    graph, buffers = graphs[0], model.get("buffers", [])
    tensors = [_tensor(tensor, buffers, content) for tensor in graph.get("tensors", [])]
    known = _known(tensors)
    need(known <= MAX_BYTES, f"it has {known / 1e9:.1f} GB of stored numbers")
    codes = [_code(code) for code in model.get("operator_codes", [])]
    operators = [_operator(operator, codes, len(tensors)) for operator in graph.get("operators", [])]
    need(bool(operators), "it has no operators")
    inputs, outputs = (_indices(graph.get(key, ()), len(tensors), key) for key in ("inputs", "outputs"))
    there = {i for i, tensor in enumerate(tensors) if tensor.stored is not None} | set(inputs)
    need(all(tensors[i].stored is None for i in inputs), "its inputs are stored")
    for operator in operators:
        lacking = next((i for i in operator.inputs if i is not None and i not in there), None)
        need(lacking is None, f"{operator.code} reads `{tensors[lacking or 0].name[:80]}`, which nothing writes before it")
        twice = next((i for i in operator.outputs if i in there), None)
        need(twice is None, f"`{tensors[twice or 0].name[:80]}` is written twice")
        there |= set(operator.outputs)
    need(all(i in there for i in outputs), "it has outputs that nothing writes")
    return TfliteNetwork(path, tensors, operators, inputs, outputs)


def _known(tensors: Sequence[TfliteTensor]) -> int:
    """Bytes of the stored numbers in single precision: many tensors may name one buffer."""
    return sum(4 * tensor.stored.size for tensor in tensors if tensor.stored is not None)


def _code(code: Mapping[str, Any]) -> str:
    """An operator's name, ``custom`` before that of a custom one; files of old have its number in another field."""
    number = max(int(code.get("builtin_code", 0)), int(code.get("deprecated_builtin_code", 0)))
    name = NAMES.get(number, f"operator {number}")
    return f"{_CUSTOM} {str(code.get('custom_code', ''))[:60]}".strip() if name == "CUSTOM" else name


def _indices(indices: Any, tensors: int, what: str) -> tuple[int, ...]:
    numbers = tuple(int(i) for i in indices)
    need(all(0 <= i < tensors for i in numbers), f"it has {what} that are no tensors")
    return numbers


def _operator(operator: Mapping[str, Any], codes: Sequence[str], tensors: int) -> TfliteOperator:
    index = int(operator.get("opcode_index", 0))
    need(index < len(codes), "it has an operator without a code")
    reads = tuple(None if i == -1 else int(i) for i in operator.get("inputs", ()))
    _indices([i for i in reads if i is not None], tensors, f"inputs of {codes[index]}")
    writes = _indices(operator.get("outputs", ()), tensors, f"outputs of {codes[index]}")
    return TfliteOperator(codes[index], {**DEFAULTS, **operator.get("builtin_options", {})}, reads, writes)


def _tensor(tensor: Mapping[str, Any], buffers: Sequence[Mapping[str, Any]], content: bytes) -> TfliteTensor:
    name, kind = tensor.get("name", ""), TYPES.get(tensor.get("type", 0), f"type {tensor.get('type')}")
    shape = tuple(int(n) for n in tensor.get("shape", ()))
    signature = [int(n) for n in tensor.get("shape_signature", ())]
    opened = tuple(i for i, n in enumerate(signature) if n < 0) if len(signature) == len(shape) else ()
    shape = tuple(1 if i in opened and n < 1 else n for i, n in enumerate(shape))
    elements = math.prod(shape)
    need(len(shape) <= 8 and min((*shape, 0)) >= 0 and elements <= MAX_ELEMENTS, f"tensor `{name[:80]}` has the shape {list(shape[:8])}")
    index = int(tensor.get("buffer", 0))
    need(index < len(buffers), f"the buffer of tensor `{name[:80]}` is not there")
    data = _content(buffers[index], content, name)
    need(not tensor.get("external_buffer"), f"tensor `{name[:80]}` lies in another file", "convert it with weights inside")
    if data is None:
        return TfliteTensor(name, shape, kind, None, _quantisation(tensor, name, shape, kind), opened)
    need("sparsity" not in tensor, f"tensor `{name[:80]}` is sparse", "convert it with dense weights")
    stored = _stored(data, name, shape, kind)
    return TfliteTensor(name, shape, kind, stored, _quantisation(tensor, name, shape, kind))


def _content(buffer: Mapping[str, Any], content: bytes, name: str) -> NDArray[np.uint8] | None:
    """The bytes of a buffer, in it or, in large files, behind everything else; None if it has none."""
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
    need(kind in TYPES.values(), f"tensor `{name[:80]}` has element {kind}, which no network computes with")
    wanted = elements * np.dtype(kind).itemsize
    need(len(data) == wanted, f"tensor `{name[:80]}` has {len(data)} bytes, its shape needs {wanted}")
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
