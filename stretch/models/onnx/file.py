"""An ONNX file of any exporter, read without trust: its nodes, its stored tensors, and its inputs, each of a fixed shape."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from predictors.errors import StretchError
from predictors.formats.onnx import MAX_BYTES, decode
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import MAX_PARTS
from scheduler.formats.onnx.shapes.node import FLOAT, REALS, TYPE_NAMES
from scheduler.formats.onnx.weights import EXTERNAL, TYPES, stored_tensor
from stretch.capture.inputs import InputShapes
from stretch.models.ends import End, Size, Stated, named_ends, settled

#: Opsets whose operators are read.
OPSETS = range(9, onnx.defs.onnx_opset_version() + 1)

#: Orders of axes that put channels second, and last.
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)

#: Operators that change no order of axes.
_SINGLE = frozenset({"Add", "Cast", "DequantizeLinear", "Div", "Identity", "Mul", "QuantizeLinear", "Sub"})

#: What exporters call axes of any length that have no name.
_NAMELESS = frozenset({"None", "none", "unk"})


@dataclass(frozen=True)
class Source:
    """What a file holds."""

    path: Path  # The file.
    nodes: Sequence[Any]  # Its `onnx.NodeProto`s, in order.
    stored: Mapping[str, np.ndarray]  # Its weights and other stored tensors by name.
    ends: tuple[End, ...]  # Its inputs.
    shapes: Mapping[str, Shape]  # Of each, batch first, by its argument, as the network reads it.
    last: frozenset[str]  # Arguments of those that are images whose channels are last, which are turned before anything else is done.
    outputs: tuple[str, ...]  # Names of its outputs.
    opset: int  # Which version of ONNX's operators it speaks.


def read_source(path: Path, input_shape: InputShapes | None = None) -> Source:
    """Read an ONNX file.

    Args:
        path: The file; weights beside it are read where they lie in its folder.
        input_shape: Of its input or of several, as `stretch.models.ends.settled` takes them, images as N×C×H×W; what the
            file states if None, with a batch of 1 where it leaves that open.
    """
    model = decode(path)
    graph = model.graph
    if model.functions:
        raise StretchError(f"{path} defines functions of its own", "export it with functions inlined")
    if max(len(graph.node), len(graph.initializer), len(graph.input)) > MAX_PARTS:
        raise StretchError(f"{path} has more than {MAX_PARTS} operators or weights, which is no network that can be branched")
    stored = _stored(path, graph)
    # files of old list their weights among the inputs
    inputs = [value for value in graph.input if value.name not in stored]
    readers = _Readers(graph.node)
    turned = [len(value.type.tensor_type.shape.dim) == 4 and readers.turn(value.name) for value in inputs]
    ends = named_ends(path, [_stated(value, last, readers) for value, last in zip(inputs, turned, strict=True)])
    last = frozenset(end.argument for end, turn in zip(ends, turned, strict=True) if turn)
    outputs = tuple(dict.fromkeys(value.name for value in graph.output))
    return Source(path, list(graph.node), stored, ends, settled(path, ends, input_shape), last, outputs, _opset(path, model))


class _Readers:
    def __init__(self, nodes: Sequence[Any]) -> None:
        self._by_name: dict[str, list[Any]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.input):
                self._by_name.setdefault(name, []).append(node)

    def cast(self, tensor: str) -> bool:
        """Whether all that reads a tensor first makes reals of it."""
        found = self._by_name.get(tensor, [])
        to = [attr.i for node in found for attr in node.attribute if attr.name == "to"]
        return bool(found) and all(node.op_type == "Cast" for node in found) and len(to) == len(found) and set(to) <= REALS

    def turn(self, tensor: str) -> bool:
        """Whether all that reads a tensor first puts its last axis second, whatever is computed of single elements before."""
        seen, waiting, found = {tensor}, [tensor], False
        while waiting:
            for node in self._by_name.get(waiting.pop(), []):
                if node.op_type == "Transpose":
                    orders = [list(each.ints) for each in node.attribute if each.name == "perm"]
                    if orders != [list(TO_FIRST)]:
                        return False
                    found = True
                elif node.op_type not in _SINGLE:
                    return False
                else:
                    waiting += [name for name in node.output if name not in seen]
                    seen |= set(node.output)
        return found


def _opset(path: Path, model: Any) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    found = max(versions, default=1)
    if found not in OPSETS:
        raise StretchError(f"{path} has opset {found}, those from {OPSETS[0]} to {OPSETS[-1]} are read", "export it with another opset")
    return int(found)


def _stored(path: Path, graph: Any) -> dict[str, np.ndarray]:
    """Every initialiser as an array."""
    if graph.sparse_initializer:
        raise StretchError(f"{path} has sparse weights", "export it with dense ones")
    beside = sum(_beside(path, tensor) for tensor in graph.initializer)
    if beside > MAX_BYTES:
        raise StretchError(
            f"{path} has {beside / 1e9:.1f} GB of weights beside it, {MAX_BYTES / 1e9:.1f} GB are read", "export a smaller network"
        )
    return {tensor.name: array(path, tensor) for tensor in graph.initializer}


def _beside(path: Path, tensor: Any) -> int:
    """Bytes of a weight that lies in another file, which must be in the model's folder."""
    if tensor.data_location != EXTERNAL:
        return 0
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    relative, folder = PurePosixPath(location), path.parent.resolve()
    file = folder / location if location and "\0" not in location else folder
    if relative.is_absolute() or ".." in relative.parts or not file.resolve().is_relative_to(folder) or not file.is_file():
        raise StretchError(
            f"weight `{tensor.name[:80]}` of {path} lies in `{location[:80]}`, which is no file in the model's folder",
            "put the file beside the model, or export it with weights inside",
        )
    width, _ = TYPES.get(tensor.data_type, (1, ""))
    return width * math.prod(max(0, n) for n in tensor.dims)


def array(path: Path, tensor: Any) -> np.ndarray:
    """The numbers of a stored tensor; half precision as reals."""
    try:
        stored_tensor(tensor, path)
        found = numpy_helper.to_array(tensor, base_dir=str(path.parent))
    except StretchError as error:
        raise StretchError(f"{path} cannot be read: {error.message}", "export it again, in single precision") from error
    # A file beside it that ends too early, or numbers that are none.
    except Exception as error:
        raise StretchError(f"weight `{tensor.name[:80]}` of {path} cannot be read: {str(error)[:120]}", "export it again") from error
    return found.astype(np.float32) if found.dtype == np.float16 else found


def _stated(value: Any, last: bool, readers: _Readers) -> Stated:
    """What the file states of an input."""
    kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
    # a batch that is open is 1
    sizes = [Size(max(0, dim.dim_value) or int(axis == 0), _symbol(dim.dim_param)) for axis, dim in enumerate(dims)]
    name = "float32" if kind == FLOAT else TYPE_NAMES.get(kind, f"element type {kind}")
    return Stated(value.name, [sizes[i] for i in TO_FIRST] if last else sizes or None, name, readers.cast(value.name))


def _symbol(name: str) -> str:
    """The name of an axis's length, if it is one: some write the same where nothing is known of any."""
    return name if name.isidentifier() and name not in _NAMELESS else ""
