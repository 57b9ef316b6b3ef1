"""A TFLite file put together: subgraphs, tensors, operators, signatures and metadata.

It is written straight as the flatbuffer of `scheduler.formats.tflite`; no converter is involved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.formats.tflite import OPERATORS, OPTIONS, TFLITE, TYPES, VERSION

Array = NDArray[Any]
Table = dict[str, Any]

#: A flatbuffer's offsets have 32 bits with a sign.
MAX_BYTES = (1 << 31) - (1 << 24)

#: Version of an operator that computes in int8, where it is not 2 (op_version.cc of LiteRT).
INT8_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "RESHAPE": 1, "HARD_SWISH": 1}


@dataclass(frozen=True)
class Quant:
    """Scale of an int8 tensor: real = scale · (integer − zero point)."""

    scale: float
    zero_point: int


@dataclass
class Piece:
    """One subgraph of a file, under construction."""

    writer: "Writer"  # The file.
    name: str  # Of the subgraph.
    tensors: list[Table] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)

    def tensor(self, name: str, shape: Sequence[int], dtype: str, quant: Quant | None = None) -> int:
        """Add a tensor that an operator, or the caller, writes; gives its index."""
        return self._add(name, shape, dtype, 0, None if quant is None else ([quant.scale], [quant.zero_point], 0))

    def constant(self, name: str, value: Array, scales: Sequence[float] = (), axis: int = 0, zero_point: int = 0) -> int:
        """Add a constant; gives its tensor's index.

        Args:
            value: float32, float16, int8 or int32.
            scales: Where it is rounded: one for the whole tensor, or one for each slice along `axis`.
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
            code: Its name in the schema, such as ``CONV_2D``.
            version: Of the operator; that of its input's type if None.
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
        self._buffers: list[Table] = [{}]  # the first one stands for "no data"
        self._subgraphs: list[Table] = []
        self._signatures: list[Table] = []
        self._metadata: list[Table] = []

    def buffer(self, value: Array) -> int:
        """Add data; gives its index."""
        self._bytes += value.nbytes
        if self._bytes > MAX_BYTES:
            raise StretchError(
                "the model has more than 2 GB of weights, a TFLite file holds less", "write weights in int8 or fp16, or keep ONNX"
            )
        self._buffers.append({"data": np.frombuffer(value.tobytes(), np.uint8)})
        return len(self._buffers) - 1

    def opcode(self, code: str, version: int) -> int:
        """Index of an operator code, added at its first use."""
        return self._opcodes.setdefault((code, version), len(self._opcodes))

    def add(self, piece: Piece, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        """Add a finished subgraph and its signature, which is called like it.

        Args:
            inputs: Tensor index by the name that the signature gives it.
        """
        maps = [[{"name": name, "tensor_index": index} for name, index in ends.items()] for ends in (inputs, outputs)]
        self._signatures.append(
            {"signature_key": piece.name, "subgraph_index": len(self._subgraphs), "inputs": maps[0], "outputs": maps[1]}
        )
        ends = {"inputs": list(inputs.values()), "outputs": list(outputs.values())}
        self._subgraphs.append({"name": piece.name, "tensors": piece.tensors, "operators": piece.operators, **ends})

    def metadata(self, name: str, content: bytes) -> None:
        """Add named bytes that runtimes carry along unread."""
        self._metadata.append({"name": name, "buffer": self.buffer(np.frombuffer(content, np.uint8))})

    def finish(self) -> bytearray:
        """The file."""
        codes = [
            # Older runtimes read the first field, which holds 127 at most.
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
