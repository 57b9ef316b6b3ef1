"""A model file as a list of operators, read without a runtime, and its execution by a runtime."""

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import StretchError, UsageError
from predictors.formats.inference import infer_shapes
from scheduler.formats.onnx import open_onnx
from scheduler.formats.tflite import TfliteNetwork, TfliteOperator, open_tflite

#: Maximum number of operators in one file.
MAX_OPERATORS = 100_000

#: Kinds of files by suffix.
KINDS = {".onnx": "ONNX", ".tflite": "TFLite"}

_AGAIN = "export the model again"


@dataclass(frozen=True)
class ForeignOp:
    """One operator."""

    name: str  # Name, unique in the file.
    op: str  # Operator type.
    domain: str  # Domain of an ONNX operator that is not ONNX's own; else empty.
    inputs: tuple[str, ...]  # Input tensors.
    outputs: tuple[str, ...]  # Output tensors.
    attributes: Mapping[str, Any]  # Attributes that are numbers, words or lists of them.
    types: tuple[str, ...]  # Known element types of its inputs and outputs.
    shapes: tuple[tuple[int | None, ...], ...]  # Known shapes of its inputs and outputs; an open size is None.
    macs: int | None  # Multiply-accumulates; None if its shapes are open or do not determine them.

    @property
    def dynamic(self) -> bool:
        """Whether a tensor has an open size."""
        return any(size is None for shape in self.shapes for size in shape)


@dataclass(frozen=True)
class ForeignModel:
    """A model file."""

    path: Path  # Path of the file.
    kind: str  # ``ONNX`` or ``TFLite``.
    ops: tuple[ForeignOp, ...]  # Operators of the file, in execution order.
    proto: Any = None  # The `onnx.ModelProto`, whose nodes all have names, or None.
    network: TfliteNetwork | None = None  # The TFLite network, or None.

    @property
    def content(self) -> bytes:
        """Content of the ONNX file in which each node has a unique name."""
        serialised: bytes = self.proto.SerializeToString()
        return serialised

    @property
    def opset(self) -> int:
        """Opset of ONNX's own operators in an ONNX file."""
        return max((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def open_model(path: Path) -> ForeignModel:
    """Return the operators of an ONNX or TFLite file."""
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"{path} ends in neither {' nor '.join(KINDS)}", "give an ONNX or TFLite file, or a bundle without a runtime")
    model = _onnx(path) if kind == "ONNX" else _tflite(path)
    if not model.ops:
        raise StretchError(f"{path} has no operators", _AGAIN)
    return model


def _onnx(path: Path) -> ForeignModel:
    try:
        opened = open_onnx(path)
    except StretchError as error:
        raise StretchError(error.message, _AGAIN) from error
    proto = opened.proto
    if len(proto.graph.node) > MAX_OPERATORS:
        raise StretchError(f"{path} has {len(proto.graph.node)} operators, at most {MAX_OPERATORS} are explained", "give a part of it")
    for place in sorted(opened.external):
        target = path.parent / place
        if Path(place).is_absolute() or not target.resolve().is_relative_to(path.parent.resolve()):
            raise StretchError(
                f"{path} keeps weights outside of its folder, in `{place[:80]}`", "move them next to it, and name the new path in it"
            )
        if not target.is_file():
            raise StretchError(f"{path} keeps weights in `{place[:80]}`, which is missing", "put that file next to it")
    _name_nodes(proto)
    known = _static_shapes(proto)
    return ForeignModel(path, "ONNX", tuple(_onnx_op(node, known) for node in proto.graph.node), proto=proto)


def _name_nodes(proto: Any) -> None:
    """Give each node a unique name, because runtimes name nodes in messages."""
    counts = Counter(node.name for node in proto.graph.node)
    used = set(counts)
    seen: set[str] = set()
    for i, node in enumerate(proto.graph.node):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        name = f"{node.op_type}_{i}"
        while name in used:
            name += "_"
        node.name = name
        used.add(name)
        seen.add(name)


def _static_shapes(proto: Any) -> dict[str, tuple[int, tuple[int | None, ...] | None]]:
    """Return the known element types and shapes of tensors, including those that ONNX infers."""
    tensors: dict[str, tuple[int, tuple[int | None, ...] | None]] = {}
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    # the runtime reports contradictory shapes
    with suppress(StretchError):
        values += infer_shapes(proto, "the model")
    for value in values:
        tensor = value.type.tensor_type
        dims = tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim) if tensor.HasField("shape") else None
        tensors[value.name] = (tensor.elem_type, dims)
    for tensor in proto.graph.initializer:
        tensors[tensor.name] = (tensor.data_type, tuple(tensor.dims))
    return tensors


def _onnx_op(node: Any, shapes: Mapping[str, tuple[int, tuple[int | None, ...] | None]]) -> ForeignOp:
    import onnx

    tensors = [shapes[name] for name in (*node.input, *node.output) if name in shapes]
    types = dict.fromkeys(onnx.TensorProto.DataType.Name(kind).lower() for kind, _ in tensors if kind)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type in (1, 2, 3, 6, 7, 8)}
    reads = [shapes.get(name, (0, None))[1] for name in node.input]
    writes = [shapes.get(name, (0, None))[1] for name in node.output]
    return ForeignOp(
        name=node.name,
        op=node.op_type,
        domain="" if node.domain == "ai.onnx" else node.domain,
        inputs=tuple(name for name in node.input if name),
        outputs=tuple(name for name in node.output if name),
        attributes=attributes,
        types=tuple(types),
        shapes=tuple(shape for _, shape in tensors if shape is not None),
        macs=_onnx_macs(node.op_type, attributes, reads, writes),
    )


#: Operators of ONNX whose multiply-accumulates are not counted here.
_UNCOUNTED = frozenset({"Attention", "DeformConv", "Einsum", "GRU", "LSTM", "MultiHeadAttention", "RNN"})


def _product(*sizes: int | None) -> int | None:
    """Return a product, or None if a factor is unknown."""
    static = [size for size in sizes if size is not None]
    return math.prod(static) if len(static) == len(sizes) else None


def _onnx_macs(op: str, attributes: Mapping[str, Any], reads: list[Any], writes: list[Any]) -> int | None:
    """Return the multiply-accumulates of convolutions and matrix products, in any storage type."""
    first, output = reads[0] if reads else None, writes[0] if writes else None
    weight = reads[3] if op == "QLinearConv" and len(reads) > 3 else reads[1] if len(reads) > 1 else None
    if op in ("Conv", "ConvInteger", "QLinearConv"):
        return _product(*output, *weight[1:]) if weight and output else None
    if op == "ConvTranspose":
        return _product(*first, *weight[1:]) if weight and first else None
    if op == "Gemm":
        return _product(*output, first[0] if attributes.get("transA") else first[1]) if first and output and len(first) == 2 else None
    if op in ("MatMul", "MatMulInteger", "QLinearMatMul"):
        return _product(*output, first[-1]) if first and output is not None else None
    return None if op in _UNCOUNTED else 0


def tflite_macs(network: TfliteNetwork, operator: TfliteOperator) -> int | None:
    """Return the multiply-accumulates of one operator; 0 if it does not multiply, None if a shape is unknown."""
    if operator.code not in _TFLITE_MACS:
        return None if operator.code in _TFLITE_UNCOUNTED else 0
    reads = [() if i is None else network.tensors[i].shape for i in operator.inputs]
    try:
        return int(_TFLITE_MACS[operator.code](reads, network.tensors[operator.outputs[0]].shape, operator.settings))
    except IndexError:
        return None


#: Multiply-accumulates from inputs, output and settings; weights are output × height × width × input, linear ones output × input.
_TFLITE_MACS: Mapping[str, Any] = {
    "CONV_2D": lambda reads, writes, settings: math.prod(writes) * math.prod(reads[1][1:]),
    "DEPTHWISE_CONV_2D": lambda reads, writes, settings: math.prod(writes) * reads[1][1] * reads[1][2],
    "TRANSPOSE_CONV": lambda reads, writes, settings: math.prod(reads[2]) * math.prod(reads[1][:3]),
    "FULLY_CONNECTED": lambda reads, writes, settings: math.prod(writes) * reads[1][1],
    "BATCH_MATMUL": lambda reads, writes, settings: math.prod(writes) * reads[0][-2 if settings.get("adj_x") else -1],
}


#: Operators that also multiply, but whose shapes do not determine how often.
_TFLITE_UNCOUNTED = frozenset(
    {"CUSTOM", "CONV_3D", "CONV_3D_TRANSPOSE", "SVDF", "RNN", "LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
    | {"BIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"}
)


def _tflite(path: Path) -> ForeignModel:
    network = open_tflite(path)
    if len(network.operators) > MAX_OPERATORS:
        raise StretchError(f"{path} has {len(network.operators)} operators, at most {MAX_OPERATORS} are explained", "give a part of it")
    ops = []
    for i, operator in enumerate(network.operators):
        reads = [network.tensors[t] for t in operator.inputs if t is not None]
        writes = [network.tensors[t] for t in operator.outputs]
        shapes = [tuple(None if axis in t.opened else size for axis, size in enumerate(t.shape)) for t in (*reads, *writes)]
        counted = tflite_macs(network, operator)
        ops.append(
            ForeignOp(
                name=f"{operator.name}_{i}",
                op=operator.name,
                domain="",
                # Tensors of a TFLite file may share a name, so their unique numbers are used.
                inputs=tuple(str(t) for t in operator.inputs if t is not None),
                outputs=tuple(str(t) for t in operator.outputs),
                attributes={
                    name: value
                    for name, value in operator.settings.items()
                    if name not in ("dilation_w_factor", "dilation_h_factor") or value != 1
                },
                types=tuple(dict.fromkeys(t.kind for t in (*reads, *writes))),
                shapes=tuple(shapes),
                macs=None if any(None in shape for shape in shapes) and counted else counted,
            )
        )
    return ForeignModel(path, "TFLite", tuple(ops), network=network)


class RuntimeOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of one operator."""

    name: str  # Name; a number if the file has none.
    op: str  # Operator type.
    target: str | None  # Processor or provider, such as ``CPUExecutionProvider``; None if there is none, or the operator is folded.
    taken: bool | None  # Whether the target processor takes it; None if it is folded before partitioning.
    partition: int | None  # Index of its partition on that processor.
    macs: int | None  # Multiply-accumulates; None where its shapes are dynamic or do not determine them.
    reason: str  # Explanation of `taken`.


class UnsupportedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why the processor does not support one operator."""

    operator: str  # Operator name.
    op: str  # Operator type.
    cause: str  # The unsupported attribute, type, shape or version, or the operator itself.
    words: str | None  # Message of the runtime; None if there is none.
    change: str  # Suggested change of the model.


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the file after which the processor takes more operators."""

    steps: tuple[str, ...]  # Descriptions of the changes, in order.
    operators: tuple[int, int]  # Number of unsupported operators before and after.
    file: Path | None = None  # Changed file; None if it was not written.
    #: Largest difference between the outputs of both models, relative to the largest output; None if not compared.
    max_error: float | None = None


class RuntimeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `stretch explain --runtime --json`."""

    file: Path
    runtime: str  # Name and version.
    device: str  # Target device.
    operators: list[RuntimeOperator]  # In execution order.
    partitions: int  # Number of partitions on the processor.
    obstacles: list[UnsupportedReason]  # Unsupported operators, in execution order.
    copies: int  # Tensors copied between the processor and others, and conversions that the runtime adds.
    share: float | None  # Share of the multiply-accumulates on the processor; None if there are none.
    fix: Fix | None  # Automatic fix; None if there is none.
    log: str  # Output of the runtime; the end of a long one.
    warnings: list[str]

    @property
    def off(self) -> int:
        """Number of operators that the processor does not take."""
        return sum(op.taken is False for op in self.operators)


class Verdict(msgspec.Struct, kw_only=True):
    """Operator support as a runtime reports it; keys are the indices of operators."""

    runtime: str  # Name and version.
    device: str  # Target device.
    target: str  # Runtime's name of that device.
    taken: dict[int, str] = {}  # Provider or processor of each operator, the CPU included.
    removed: dict[int, str] = {}  # Operators that are folded or merged before partitioning, with the reason.
    messages: dict[int, str] = {}  # Messages of the runtime for unsupported operators.
    parts: dict[int, int] = {}  # Partition of each operator, where the runtime reports it.
    refused: str | None = None  # Error message if the runtime rejects the whole file.
    at: int | None = None  # Index of the operator that the error names; None for none.
    added: int = 0  # Number of conversions and copies that the runtime adds.
    warnings: list[str] = []
