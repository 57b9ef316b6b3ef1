"""An ONNX file as a torch network, node by node."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch import fx

from predictors.errors import StretchError
from predictors.formats.onnx import MAX_BYTES, decode
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import EXTERNAL, MAX_PARTS, TYPES, stored_tensor
from scheduler.formats.onnx.shapes import RULES as SHAPES
from scheduler.formats.onnx.shapes.node import FLOAT, REALS, REASONS, TYPE_NAMES
from stretch.capture.inputs import InputShapes
from stretch.models.builder import Builder, End, Size, Stated, by_name, finished, named_ends, reading, settled, shape_of, turned
from stretch.models.onnx.site import ROUNDING, RULES, OnnxSite, Result, Rounded, Steps, Value, by_rule, common, computed

#: Opsets whose operators are read.
OPSETS = range(9, onnx.defs.onnx_opset_version() + 1)

#: Orders of axes that put channels second, and last.
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)

#: Operators that change no order of axes.
_SINGLE = frozenset({"Add", "Cast", "DequantizeLinear", "Div", "Identity", "Mul", "QuantizeLinear", "Sub"})

#: What exporters call axes of any length that have no name.
_NAMELESS = frozenset({"None", "none", "unk"})


@dataclass(frozen=True)
class OnnxSource:
    """What a file holds."""

    path: Path  # The file.
    nodes: Sequence[Any]  # Its `onnx.NodeProto`s, in order.
    stored: Mapping[str, np.ndarray]  # Its weights and other stored tensors by name.
    ends: tuple[End, ...]  # Its inputs.
    shapes: Mapping[str, Shape]  # Of each, batch first, by its argument, as the network reads it.
    last: frozenset[str]  # Arguments of those that are images whose channels are last, which are turned before anything else is done.
    outputs: tuple[str, ...]  # Names of its outputs.
    opset: int  # Which version of ONNX's operators it speaks.


def read_source(path: Path, input_shape: InputShapes | None = None) -> OnnxSource:
    """Read an ONNX file.

    Args:
        path: The file; weights beside it are read where they lie in its folder.
        input_shape: Of its input or of several, as `stretch.models.builder.settled` takes them, images as N×C×H×W; what the
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
    return OnnxSource(path, list(graph.node), stored, ends, settled(path, ends, input_shape), last, outputs, _opset(path, model))


class _Readers:
    def __init__(self, nodes: Sequence[Any]) -> None:
        self._by_name: dict[str, list[Any]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.input):
                self._by_name.setdefault(name, []).append(node)

    def cast(self, tensor: str) -> bool:
        """Whether all that reads a tensor first makes reals of it."""
        value = self._by_name.get(tensor, [])
        to = [attr.i for node in value for attr in node.attribute if attr.name == "to"]
        return bool(value) and all(node.op_type == "Cast" for node in value) and len(to) == len(value) and set(to) <= REALS

    def turn(self, tensor: str) -> bool:
        """Whether all that reads a tensor first puts its last axis second, whatever is computed of single elements before."""
        seen, waiting, result = {tensor}, [tensor], False
        while waiting:
            for node in self._by_name.get(waiting.pop(), []):
                if node.op_type == "Transpose":
                    orders = [list(item.ints) for item in node.attribute if item.name == "perm"]
                    if orders != [list(TO_FIRST)]:
                        return False
                    result = True
                elif node.op_type not in _SINGLE:
                    return False
                else:
                    waiting += [name for name in node.output if name not in seen]
                    seen |= set(node.output)
        return result


def _opset(path: Path, model: Any) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    largest = max(versions, default=1)
    if largest not in OPSETS:
        raise StretchError(f"{path} has opset {largest}, those from {OPSETS[0]} to {OPSETS[-1]} are read", "export it with another opset")
    return int(largest)


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
        values = numpy_helper.to_array(tensor, base_dir=str(path.parent))
    except StretchError as error:
        raise StretchError(f"{path} cannot be read: {error.message}", "export it again, in single precision") from error
    # A file beside it that ends too early, or numbers that are none.
    except Exception as error:
        raise StretchError(f"weight `{tensor.name[:80]}` of {path} cannot be read: {str(error)[:120]}", "export it again") from error
    return values.astype(np.float32) if values.dtype == np.float16 else values


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


#: Nodes that tell the shape of what they read.
_TOLD = ("Shape", "Size")

#: Attributes of ONNX that are tensors, and those that are graphs.
_TENSOR, _GRAPHS = 4, (5, 10)

#: Domains of ONNX's own operators, and one whose operators ONNX Runtime's quantisers write.
_OWN, _RUNTIME = ("", "ai.onnx"), "com.microsoft"


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """The network in an ONNX file of any exporter, in evaluation mode; of several outputs it returns a dictionary by their names.

    Weights that are stored in int8 become reals, and what rounds activations is left out.

    An image whose channels are last in the file, and which is turned before anything else is done, is N×C×H×W here.
    What the module says of its inputs: `stretch.models.builder.finished`.
    """
    try:
        return _Lowering(read_source(Path(path), input_shape)).network()
    except StretchError as error:
        if error.message.isprintable():
            raise
        # A name from the file may hold line breaks, and signs that terminals obey.
        raise type(error)(_shown(error.message), error.hint) from error


def _shown(text: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text)


class _Lowering:
    def __init__(self, source: OnnxSource) -> None:
        self._source = source
        self._builder = Builder(source.shapes)
        self._values: dict[str, Value] = {**source.stored}
        for end in source.ends:
            arguments = self._builder.inputs[end.argument]
            self._values[end.name] = turned(self._builder, arguments, TO_LAST) if end.argument in source.last else arguments
        self._steps: dict[str, Steps] = {}
        self._rounded = 0

    def network(self) -> fx.GraphModule:
        """The network."""
        for i, node in enumerate(self._source.nodes):
            what = f"node `{(node.name or f'{node.op_type}_{i}')[:80]}` ({node.op_type[:60]})"
            with reading(self._source.path, what, "export the network without it, or give the module itself as `module:factory`"):
                self._lower(node)
        returned = by_name([(name, self._result(name)) for name in self._source.outputs])
        network = self._builder.finish(returned, "Network")
        return finished(self._source.path, network, self._source.shapes, self._source.ends, self._warnings())

    def _result(self, name: str) -> fx.Node:
        """What the network returns as an output of this name; what the file stores as it is."""
        value = self._values.get(name)
        if value is None:
            raise StretchError(f"{self._source.path} returns `{name[:80]}`, which nothing computes")
        return value if isinstance(value, fx.Node) else self._builder.stored(value, name)

    def _warnings(self) -> list[str]:
        """What is other than in the file."""
        path, warnings = self._source.path, []
        for name in [end.name for end in self._source.ends if end.argument in self._source.last]:
            what = "the input" if len(self._source.ends) == 1 else f"the input `{name[:80]}`"
            warnings.append(f"{what} of {path} has its channels last and is turned at once: here they are second, as in all networks")
        if self._rounded:
            warnings.append(
                f"{path} rounds {self._rounded} activations to int8: they are reals here, and `stretch export` finds new scales"
            )
        return warnings

    def _lower(self, node: Any) -> None:
        if node.domain not in (*_OWN, _RUNTIME):
            raise StretchError(f"it is of the domain `{node.domain[:60]}`, and only ONNX's own operators are read")
        unknown = next((name for name in node.input if name and name not in self._values), None)
        if unknown is not None:
            raise StretchError(f"it reads `{unknown[:80]}`, which nothing writes before it")
        reads = [self._values[name] if name else None for name in node.input]
        results = self._results(node, reads)
        for name, result in zip(node.output, results, strict=False):
            if name in self._values:
                raise StretchError(f"`{name[:80]}` is written twice")
            if name:
                self._values[name] = result.node if isinstance(result, Rounded) else result
                if isinstance(result, Rounded):
                    self._steps[name] = result.steps

    def _results(self, node: Any, reads: list[Value]) -> Sequence[Result]:
        attrs = self._attributes(node)
        answer = self._told(node, reads, attrs)
        if answer is not None:
            return [answer]
        op = node.op_type if node.domain in _OWN else f"{node.domain}.{node.op_type}"
        function = RULES.get(op)
        words = {key: value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in attrs.items()}
        known = [read for read in reads if not isinstance(read, fx.Node)]
        if len(known) == len(reads):
            if function is None or not reads or op in SHAPES or op in ROUNDING:
                return computed(node, known, attrs, self._source.opset)
            return by_rule(function, OnnxSite(known, op, "known", words, len(node.output), self._source.opset, Builder((1,))))
        if function is None:
            where = "" if node.domain in _OWN else f" of the domain `{_RUNTIME}`"
            raise StretchError(REASONS.get(op, f"there is no rule for this operator{where}"))
        name = _plain_name(node.name, node.op_type) or node.output[0]
        steps = [self._steps.get(item) for item in node.input]
        shared = None if op in ROUNDING else common(op, steps)
        if shared is not None:
            reads = [shared.reals(read) if isinstance(read, np.ndarray) and read.dtype == shared.zero.dtype else read for read in reads]
        built = function(OnnxSite(reads, op, name, words, len(node.output), self._source.opset, self._builder, steps))
        results = built if isinstance(built, Sequence) else [built]
        if shared is not None:
            return [Rounded(result, shared) if isinstance(result, fx.Node) and _of_reals(result) else result for result in results]
        self._rounded += "DynamicQuantize" in op or any(isinstance(result, Rounded) for result in results)
        return results

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Attributes by name; stored tensors as arrays."""
        if any(item.type in _GRAPHS or item.ref_attr_name for item in node.attribute):
            raise StretchError("it holds a graph")
        return {
            item.name: array(self._source.path, item.t) if item.type == _TENSOR else helper.get_attribute_value(item)
            for item in node.attribute
        }

    def _told(self, node: Any, reads: list[Value], attrs: dict[str, Any]) -> Value:
        """What a node tells of the shape of a tensor of the network; None for any other node."""
        if node.op_type not in _TOLD or not reads or not isinstance(reads[0], fx.Node):
            return None
        shape = shape_of(reads[0])
        if node.op_type == "Size":
            return np.array(int(np.prod(shape)), np.int64)
        return np.array(shape[attrs.get("start", 0) : attrs.get("end", len(shape))], np.int64)


def _of_reals(node: fx.Node) -> bool:
    return bool(node.meta["val"].is_floating_point())


def _plain_name(name: str, op: str) -> str:
    """A node's name without what exporters add to every one: its operator, and repeated parts of its path."""
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and parts[-1].startswith(op):
        parts = parts[:-1]
    return "_".join(part for i, part in enumerate(parts) if i + 1 == len(parts) or not parts[i + 1].startswith(f"{part}."))
