"""An ONNX file as a torch network, node by node."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import pi, sqrt
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import fx, nn

from predictors.errors import StretchError
from predictors.formats.onnx import MAX_BYTES, decode
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import MAX_PARTS
from scheduler.formats.onnx.shapes import RULES as SHAPES
from scheduler.formats.onnx.shapes.node import FLOAT, REALS, REASONS, TYPE_NAMES
from scheduler.formats.onnx.weights import EXTERNAL, TYPES, stored_tensor
from stretch.capture.inputs import InputShapes
from stretch.models.builder import Builder, filled, shape_of, turned
from stretch.models.ends import End, Size, Stated, by_name, finished, named_ends, settled
from stretch.models.onnx.known import by_rule, computed
from stretch.models.onnx.site import ROUNDING, RULES, OnnxSite, Result, Value
from stretch.models.onnx.steps import Rounded, Steps, common

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


#: Relative error of a number that was written in half or single precision.
_CLOSE = 1e-3


@dataclass(frozen=True)
class Activation:
    """What several nodes are together."""

    function: Callable[..., Any]  # Of torch, of one tensor.
    x: str  # Name of that tensor.
    settings: Mapping[str, str] = field(default_factory=dict)  # Its other arguments.


class Finder:
    """Finds activations in the nodes of one file.

    Args:
        nodes: The node that writes each tensor.
        numbers: Single numbers that the file stores, by name.
    """

    def __init__(self, nodes: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        self._nodes, self._numbers = nodes, numbers

    def find(self, last: Any) -> Activation | None:
        """The activation that ends with this node, or None."""
        factor, core = self._scaled_by(last, last.output[0])
        if _near(factor, 1 / 6) and (x := self._shifted_relu6(core)) is not None:
            return Activation(F.hardsigmoid, x)
        node = last if core == last.output[0] else self._nodes.get(core)
        if node is None or node.op_type != "Mul" or len(node.input) != 2:
            return None
        for one, other in (tuple(node.input), tuple(node.input)[::-1]):
            # A number may be written beside either of them, or be part of what is multiplied.
            for (first, x), (second, gate) in product(((1.0, one), self._scaled(one)), ((1.0, other), self._scaled(other))):
                gated = self._gated(x, gate, factor * first * second)
                if gated is not None:
                    return gated
        return None

    def _gated(self, x: str, gate: str, factor: float) -> Activation | None:
        """X times a gate of it: SiLU, hard swish, Mish, GELU."""
        node = self._nodes.get(gate)
        kind = "" if node is None else node.op_type
        if _near(factor, 1) and kind == "Sigmoid" and node.input[0] == x:
            return Activation(F.silu, x)
        if _near(factor, 1) and kind == "HardSigmoid" and node.input[0] == x and _of_sixths(node):
            return Activation(F.hardswish, x)
        if _near(factor, 1 / 6) and self._shifted_relu6(gate) == x:
            return Activation(F.hardswish, x)
        if _near(factor, 1) and kind == "Tanh" and self._read_by("Softplus", node.input[0]) == x:
            return Activation(F.mish, x)
        if _near(factor, 0.5) and self._erf_gate(gate) == x:
            return Activation(F.gelu, x)
        if _near(factor, 0.5) and self._tanh_gate(gate) == x:
            return Activation(F.gelu, x, {"approximate": "tanh"})
        return None

    def _scaled(self, tensor: str) -> tuple[float, str]:
        """The number and the tensor that a tensor is the product of."""
        return self._scaled_by(self._nodes.get(tensor), tensor)

    def _scaled_by(self, node: Any, tensor: str) -> tuple[float, str]:
        if node is None or node.op_type not in ("Mul", "Div") or len(node.input) != 2:
            return 1.0, tensor
        left, right = node.input
        if node.op_type == "Mul" and left in self._numbers:
            left, right = right, left
        number = self._numbers.get(right)
        if number is None or (node.op_type == "Div" and not number):
            return 1.0, tensor
        factor, core = self._scaled(left)
        return (factor * number if node.op_type == "Mul" else factor / number), core

    def _sum(self, tensor: str) -> tuple[str, float] | None:
        """The tensor and the number whose sum a tensor is."""
        node = self._nodes.get(tensor)
        if node is None or node.op_type != "Add":
            return None
        for x, number in (tuple(node.input), tuple(node.input)[::-1]):
            if number in self._numbers and x not in self._numbers:
                return x, self._numbers[number]
        return None

    def _shifted_relu6(self, tensor: str) -> str | None:
        """X of min(max(x + 3, 0), 6)."""
        node = self._nodes.get(tensor)
        if node is None or node.op_type != "Clip" or self._bounds(node) != (0, 6):
            return None
        total = self._sum(node.input[0])
        return total[0] if total is not None and _near(total[1], 3) else None

    def _bounds(self, node: Any) -> tuple[float | None, float | None]:
        """Bounds of a Clip: inputs, or attributes before opset 11."""
        stated = {item.name: item.f for item in node.attribute}
        low, high = (
            self._numbers.get(node.input[i]) if i < len(node.input) and node.input[i] else stated.get(name)
            for i, name in ((1, "min"), (2, "max"))
        )
        return low, high

    def _read_by(self, kind: str, tensor: str) -> str | None:
        """What the node of this kind reads that writes a tensor."""
        node = self._nodes.get(tensor)
        return str(node.input[0]) if node is not None and node.op_type == kind else None

    def _one_less(self, tensor: str) -> str:
        """T of t + 1."""
        total = self._sum(tensor)
        return total[0] if total is not None and _near(total[1], 1) else ""

    def _erf_gate(self, tensor: str) -> str | None:
        """X of erf(x / √2) + 1 (Hendrycks and Gimpel, GELU, section 2)."""
        read = self._read_by("Erf", self._one_less(tensor))
        factor, x = self._scaled(read or "")
        return x if _near(factor, 1 / sqrt(2)) else None

    def _tanh_gate(self, tensor: str) -> str | None:
        """X of tanh(√(2 / π) · (x + 0.044715 · x³)) + 1 (Hendrycks and Gimpel, GELU, section 2)."""
        read = self._read_by("Tanh", self._one_less(tensor))
        factor, total = self._scaled(read or "")
        node = self._nodes.get(total)
        if not _near(factor, sqrt(2 / pi)) or node is None or node.op_type != "Add":
            return None
        for x, cube in (tuple(node.input), tuple(node.input)[::-1]):
            share, power = self._scaled(cube)
            raised = self._nodes.get(power)
            if _near(share, 0.044715) and raised is not None and raised.op_type == "Pow" and raised.input[0] == x:
                return str(x) if self._numbers.get(raised.input[1]) == 3 else None
        return None


def _near(number: float, wanted: float) -> bool:
    return abs(number - wanted) <= _CLOSE * abs(wanted)


def _of_sixths(node: Any) -> bool:
    """Whether a HardSigmoid has the slope that hard swish is made of."""
    stated = {item.name: item.f for item in node.attribute}
    return _near(stated.get("alpha", 0.2), 1 / 6) and _near(stated.get("beta", 0.5), 0.5)


def numbers(stored: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Stored tensors of one number."""
    return {name: float(x.ravel()[0]) for name, x in stored.items() if x.size == 1 and x.dtype.kind in "fi"}


@dataclass(frozen=True)
class LayerNorm:
    """What several nodes are together."""

    x: str  # Name of the tensor that is normalised over its last axis.
    weight: np.ndarray  # A number for each place along it.
    bias: np.ndarray  # Another.
    eps: float  # What is added to the variance.


class LayerNorms:
    """Finds layer norms in the nodes of one file.

    Args:
        nodes: The node that writes each tensor.
        values: What is known of each tensor; those that are stored are arrays.
    """

    def __init__(self, nodes: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self._nodes, self._values = nodes, values

    def find(self, last: Any, rank: int) -> LayerNorm | None:
        """The layer norm over the last of so many axes that ends with this node: (x − m) / √(v + eps) · weight + bias."""
        scaled, bias = self._with_stored(last, "Add")
        normed, weight = self._with_stored(self._nodes.get(scaled), "Mul")
        division = self._node(normed, "Div")
        if division is None or bias is None or weight is None or not bias.shape == weight.shape == (weight.size,):
            return None
        centred, deviation = division.input
        x = self._centred(centred, rank)
        eps = None if x is None else self._deviation_of(deviation, x, rank)
        return None if x is None or eps is None else LayerNorm(x, weight, bias, eps)

    def _node(self, tensor: str, kind: str) -> Any:
        """The node that writes a tensor, if it is of this kind."""
        node = self._nodes.get(tensor)
        return node if node is not None and node.op_type == kind else None

    def _with_stored(self, node: Any, kind: str) -> tuple[str, np.ndarray | None]:
        """The tensor and the stored one that a node of this kind combines."""
        if node is None or node.op_type != kind or len(node.input) != 2:
            return "", None
        for tensor, stored in (tuple(node.input), tuple(node.input)[::-1]):
            value = self._values.get(stored)
            if isinstance(value, np.ndarray) and not isinstance(self._values.get(tensor), np.ndarray):
                return str(tensor), value
        return "", None

    def _mean_of(self, tensor: str, rank: int) -> str | None:
        """What a tensor is the mean of, over the last axis alone."""
        node = self._node(tensor, "ReduceMean")
        if node is None:
            return None
        attrs = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        stored = self._values.get(node.input[1]) if len(node.input) > 1 else None
        axes = list(attrs.get("axes", []) if stored is None else np.asarray(stored).ravel())
        return str(node.input[0]) if attrs.get("keepdims", 1) and axes in ([-1], [rank - 1]) else None

    def _centred(self, tensor: str, rank: int) -> str | None:
        """X of x − mean(x)."""
        node = self._node(tensor, "Sub")
        return str(node.input[0]) if node is not None and self._mean_of(node.input[1], rank) == node.input[0] else None

    def _deviation_of(self, tensor: str, x: str, rank: int) -> float | None:
        """Eps of √(mean((x − mean(x))²) + eps)."""
        root = self._node(tensor, "Sqrt")
        variance, eps = self._with_stored(self._nodes.get(root.input[0]) if root is not None else None, "Add")
        square = self._node(self._mean_of(variance, rank) or "", "Pow")
        if square is None or eps is None or eps.size != 1 or self._centred(square.input[0], rank) != x:
            return None
        exponent = self._values.get(square.input[1])
        return float(eps.ravel()[0]) if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.ravel()[0] == 2 else None


#: Nodes that tell the shape of what they read.
_TOLD = ("Shape", "Size")

#: Attributes of ONNX that are tensors, and those that are graphs.
_TENSOR, _GRAPHS = 4, (5, 10)

#: Domains of ONNX's own operators, and one whose operators ONNX Runtime's quantisers write.
_OWN, _RUNTIME = ("", "ai.onnx"), "com.microsoft"

#: What Python, numpy and torch raise for attributes and stored tensors of another kind or size than a rule expects.
_MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RuntimeError, MemoryError)


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """The network in an ONNX file of any exporter, in evaluation mode; of several outputs it returns a dictionary by their names.

    Weights that are stored in int8 become reals, and what rounds activations is left out.

    An image whose channels are last in the file, and which is turned before anything else is done, is N×C×H×W here.
    What the module says of its inputs: `stretch.models.ends.finished`.
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
        self._nodes: dict[str, Any] = {}
        self._numbers = numbers(source.stored)
        self._finder, self._norms = Finder(self._nodes, self._numbers), LayerNorms(self._nodes, self._values)
        self._rounded = 0

    def network(self) -> fx.GraphModule:
        """The network."""
        for i, node in enumerate(self._source.nodes):
            try:
                self._lower(node)
            except (StretchError, *_MISFITS) as error:
                words = (str(error).splitlines() or ["?"])[0][:160]
                reason = error.message if isinstance(error, StretchError) else f"its attributes are not understood ({words})"
                name = node.name or f"{node.op_type}_{i}"
                raise StretchError(
                    f"node `{name[:80]}` ({node.op_type[:60]}) of {self._source.path} cannot be read: {reason}",
                    "export the network without it, or give the module itself as `module:factory`",
                ) from error
        returned = by_name([(name, self._result(name)) for name in self._source.outputs])
        return finished(self._source.path, self._builder, self._source.ends, returned, self._warnings())

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
                value = result.node if isinstance(result, Rounded) else result
                self._values[name], self._nodes[name] = value, node
                if isinstance(result, Rounded):
                    self._steps[name] = result.steps
                if isinstance(value, np.ndarray):
                    self._numbers |= numbers({name: value})

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
        whole = self._activation(node) or self._layer_norm(node, reads, name)
        if whole is not None:
            return [whole]
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

    def _activation(self, node: Any) -> fx.Node | None:
        """The activation that ends with this node, if several nodes before it are one."""
        if node.op_type not in ("Mul", "Div"):
            return None
        match = self._finder.find(node)
        x = None if match is None else self._values.get(match.x)
        return self._builder.call(match.function, x, **match.settings) if match is not None and isinstance(x, fx.Node) else None

    def _layer_norm(self, node: Any, reads: list[Value], name: str) -> fx.Node | None:
        """The layer norm that ends with this node, if it and nodes before it are one."""
        ranks = [len(shape_of(read)) for read in reads if isinstance(read, fx.Node)]
        match = self._norms.find(node, ranks[0]) if node.op_type == "Add" and ranks else None
        x = None if match is None else self._values.get(match.x)
        if match is None or not isinstance(x, fx.Node) or shape_of(x)[-1:] != match.weight.shape:
            return None
        module = nn.LayerNorm(shape_of(x)[-1:], eps=match.eps)
        return self._builder.module(filled(module, weight=match.weight, bias=match.bias), x, name)


def _of_reals(node: fx.Node) -> bool:
    return bool(node.meta["val"].is_floating_point())


def _plain_name(name: str, op: str) -> str:
    """A node's name without what exporters add to every one: its operator, and repeated parts of its path."""
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and parts[-1].startswith(op):
        parts = parts[:-1]
    return "_".join(part for i, part in enumerate(parts) if i + 1 == len(parts) or not parts[i + 1].startswith(f"{part}."))
