"""Build a torch network from an ONNX file, node by node: the inputs of each operator's rule, facts about them, and the lowering."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import fx, nn

from predictors.errors import StretchError, first_line, need, on_one_line
from predictors.formats.onnx import MAX_BYTES, TO_FIRST, TO_LAST, Readers, decode
from predictors.registry import RuleTable
from scheduler.bundle.manifest import SourceFile, SourceTensor
from scheduler.formats.onnx.file import EXTERNAL, MAX_PARTS, PLAIN_ATTRIBUTES, stored_tensor
from scheduler.formats.onnx.shapes import RULES as SHAPES
from scheduler.formats.onnx.shapes.moving import MAX_VALUES
from scheduler.formats.onnx.shapes.node import DOUBLE, FLOAT, FLOAT16, REALS, REASONS, TYPE_NAMES, Cost, KnownTensor, ShapeNode, require
from stretch.network.capture.inputs import InputShapes
from stretch.network.capture.results import walk_leaves
from stretch.network.models.builder import (
    MAX_KNOWN,
    Builder,
    End,
    OwnNetwork,
    Site,
    Size,
    by_name,
    finish_network,
    named_ends,
    permute_axes,
    permute_shape,
    reading,
    resolve_input_shapes,
    shape_of,
    with_weights,
)

#: Operators that move, choose or compare bytes without regard to the numbers that the bytes represent.
MOVING = frozenset(
    {
        *("ArgMax", "ArgMin", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Pad", "ReduceMax", "ReduceMin", "Reshape", "Resize", "Slice"),
        *("Shape", "Size", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze", "Upsample", "Where", "Clip"),
    }
)


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Mapping from bytes to real numbers: (byte − zero point) · scale."""

    scale: np.ndarray  # One number, or one per place along an axis.
    zero_point: np.ndarray  # Byte that represents zero, in the element type of the bytes.

    def __post_init__(self) -> None:
        """Refuse numbers that are no valid quantisation."""
        need(bool(self.scale.dtype == np.float32 and np.isfinite(self.scale).all()), "its scale is no real number")
        if self.zero_point.dtype.kind not in "iu" or self.zero_point.size not in (1, self.scale.size):
            raise StretchError(
                f"its zero point has {self.zero_point.size} numbers of type {self.zero_point.dtype} for {self.scale.size} scales"
            )

    def equals(self, other: "Quantisation") -> bool:
        """Return whether bytes encode the same numbers in both."""
        return np.array_equal(self.scale.ravel(), other.scale.ravel()) and np.array_equal(self.zero_point.ravel(), other.zero_point.ravel())

    def dequantize(self, stored: np.ndarray, axis: int = 0) -> np.ndarray:
        """Return the real values of stored bytes; `axis` is the axis along which scales differ."""
        zero, scale = self._along(self.zero_point, stored, axis), self._along(self.scale, stored, axis)
        return np.asarray((stored.astype(np.float32) - zero) * scale, np.float32)

    @staticmethod
    def _along(numbers: np.ndarray, stored: np.ndarray, axis: int) -> np.ndarray:
        numbers = numbers.astype(np.float32)
        if numbers.size == 1:
            return numbers.reshape(())
        if numbers.ndim == stored.ndim > 1 and all(n in (1, size) for n, size in zip(numbers.shape, stored.shape, strict=True)):
            return numbers
        if not -stored.ndim <= axis < stored.ndim or numbers.size != stored.shape[axis]:
            raise StretchError(f"it has {numbers.size} scales for the shape {list(stored.shape)}")
        return numbers.reshape([-1 if i == axis % stored.ndim else 1 for i in range(stored.ndim)])


@dataclass(frozen=True)
class QuantisedTensor:
    """Output of a rule that is bytes in the file: the real numbers, and the quantisation of the bytes."""

    node: fx.Node
    quant: Quantisation


def requantise(builder: Builder, x: fx.Node, old: Quantisation, new: Quantisation) -> fx.Node:
    """Return the real numbers that result from bytes written with one quantisation and read with another."""
    if old.equals(new):
        return x
    if max(old.scale.size, new.scale.size, old.zero_point.size, new.zero_point.size) > 1 or old.scale.item() <= 0:
        raise StretchError("its bytes were rounded with other scales than it states")
    factor = new.scale.item() / old.scale.item()
    shift = (int(old.zero_point.item()) - int(new.zero_point.item())) * new.scale.item()
    x = builder.call(torch.mul, x, factor) if factor != 1 else x
    return builder.call(torch.add, x, shift) if shift else x


def common_quantisation(op: str, quants: Sequence[Quantisation | None]) -> Quantisation | None:
    """Return the quantisation that an operator on bytes passes on from its inputs; None if it reads no bytes."""
    result = [quant for quant in quants if quant is not None]
    if not result:
        return None
    need(op in MOVING, "it computes with bytes, not with the numbers that they encode")
    need(all(item.equals(result[0]) for item in result), "it reads bytes that were rounded with several scales")
    return result[0]


class Attributes(Mapping[str, Any]):
    """Attributes of an operator by name; remembers which ones a rule has read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        #: Names that were read, whether or not the operator has them.
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """Return the value of an attribute."""
        self.read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the attributes, without marking the attributes as read."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of attributes."""
        return len(self._values)

    def check(self, usual: Callable[[str], Any], harmless: Collection[str]) -> None:
        """Refuse attributes that no rule read and that may change the result; those with `usual` values or `harmless` names pass."""
        for name, value in self._values.items():
            if name not in self.read and name not in harmless and not np.array_equal(value, usual(name)):
                raise StretchError(f"its attribute `{name[:60]}` is {str(value)[:60]}, and that is not understood")


#: Input of a node: a tensor of the network, a stored array, or None if it is left out.
Value = fx.Node | np.ndarray | None


@dataclass(frozen=True)
class OnnxSite(Site[fx.Node]):
    """One node as its rule sees it."""

    opset: int = 0  # Opset of the file.
    quants: Sequence[Quantisation | None] = ()  # Quantisation of each input that the file rounds to bytes; None for other inputs.

    @property
    def x(self) -> fx.Node:
        """The node's first input as a tensor of the network."""
        return self.tensor(0)

    def tensor(self, i: int) -> fx.Node:
        """Return input `i` as a tensor of the network; a stored one becomes a parameter."""
        if (value := self.value(i)) is None:
            raise StretchError(f"it has no input {i}")
        return value if isinstance(value, fx.Node) else self.add_tensor(value, i)

    def method(self, name: str, x: fx.Node, *args: Any) -> fx.Node:
        """Add a call of a method of a tensor, and return its node."""
        return self.builder.method(name, x, *args)

    def module(self, module: nn.Module, x: fx.Node | None = None, /, **numbers: np.ndarray | None) -> fx.Node:
        """Add a module with these weights that reads a tensor (default: the first input), and return its node."""
        return self.builder.module(with_weights(module, **numbers), self.x if x is None else x, self.name)

    def word(self, name: str, usual: str) -> str:
        """Return a text attribute."""
        return str(self.attrs.get(name, usual))

    def quantisation_of(self, i: int) -> Quantisation | None:
        """Return the quantisation of input `i`; None if the network does not compute it as bytes."""
        return self.quants[i] if i < len(self.quants) else None

    def int_list(self, name: str, i: int) -> list[int] | None:
        """Return whole numbers from an attribute, or from a stored input in later opsets; None if both are missing."""
        if self.value(i) is not None:
            return self.numbers(i, name)
        return None if name not in self.attrs else [int(n) for n in self.attrs[name]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the node's first input."""
        return shape_of(self.x)

    def pair(self, name: str, usual: int = 1) -> list[int]:
        """Return one number per axis of a window."""
        axes = len(self.shape) - 2
        numbers = [int(n) for n in self.attrs.get(name, [usual] * axes)]
        need(len(numbers) == axes, f"its {name} is {numbers} for {axes} axes")
        return numbers


#: One result of a node: computed, computed and rounded in the file, or constant.
Result = fx.Node | QuantisedTensor | np.ndarray

#: Function that builds the computation of a node and returns its results.
Rule = Callable[[OnnxSite], Result | Sequence[Result]]

#: Rules by the name of the operator, preceded by its domain unless it is ONNX's own (`com.microsoft.QGemm`);
#: every file of this package adds its own rules.
RULES: RuleTable[Rule] = RuleTable()

#: Operators whose rules define the meaning of the bytes in their outputs; all others may read bytes only if `MOVING` has them.
QUANTISING: set[str] = set()


def rule(*names: str, quantising: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for operators with these names; `quantising` if the rule defines the scale of bytes."""
    if quantising:
        QUANTISING.update(names)
    return RULES.add(*names)


#: The oldest opset in which the evaluator knows scales; their meaning was the same before.
_RESIZE_OPSET = 21

#: Domains of ONNX's own operators, and the domain that ONNX Runtime's quantisers use.
_OWN, _RUNTIME = ("", "ai.onnx"), "com.microsoft"

#: Operators whose result is part of their input, and may be empty: exporters cut the shapes of single numbers out of others.
_CUTTING = ("Slice",)


def compute_constant(node: Any, reads: list[np.ndarray | None], attrs: Mapping[str, Any], opset: int) -> list[np.ndarray]:
    """Return the results of a node whose inputs are all constant.

    The reference evaluator of the `onnx` package computes them, after a check of their size.

    Args:
        node: The `onnx.NodeProto`.
        reads: Inputs of the node; None for one that is left out.
    """
    from onnx.reference import ReferenceEvaluator

    if node.op_type not in _CUTTING:
        need(node.op_type in SHAPES and node.domain in _OWN, "it is not computed from what the file stores")
        cost = cost_of(node.op_type, reads, {name: _to_constant(value) for name, value in attrs.items()}, len(node.output))
        fits = max(result.size for result in cost.results) <= MAX_KNOWN and cost.work <= 64 * MAX_KNOWN
        need(fits, "it makes a stored tensor too large")
    spoken = max(opset, _RESIZE_OPSET) if node.op_type in ("QuantizeLinear", "DequantizeLinear") else opset
    feed = {name: x for name, x in zip(node.input, reads, strict=True) if name}
    function = helper.make_function("known", "node", [*feed], node.output, [node], [helper.make_opsetid("", spoken)])
    try:
        run_result = ReferenceEvaluator(function).run(None, feed, attributes={})
    # The evaluator raises any exception that numpy raises.
    except Exception as error:
        raise StretchError(f"it cannot be computed from what the file stores: {first_line(error)[:120]}") from error
    arrays = [np.asarray(item) for item in run_result]
    return [_in_single_precision(array) for array in arrays]


def by_rule(rule: Rule, site: OnnxSite) -> list[np.ndarray]:
    """Compute a node whose inputs are all constant by its rule.

    This serves operators whose shapes bundles do not know; sizes have the limits of a network.
    """
    read = site.inputs[0]
    first = site.builder.add_tensor(read, "x0") if isinstance(read, np.ndarray) else read
    built = rule(replace(site, inputs=[first, *site.inputs[1:]]))
    if isinstance(built, np.ndarray):
        return [built]
    if not isinstance(built, fx.Node):
        raise StretchError("it is not computed from what the file stores")
    return [site.builder.evaluate(built)]


def cost_of(op: str, inputs: Sequence[Value], attrs: Mapping[str, Any], results: int) -> Cost:
    """Return the cost of a node by the rules of the bundle checks."""
    return SHAPES[op](ShapeNode(tuple(map(_to_constant, inputs)), attrs, results))


def _to_constant(x: Any) -> Any:
    """Return the facts that these rules need about a computed or stored tensor; any other value unchanged."""
    if isinstance(x, fx.Node):
        return KnownTensor(shape_of(x))
    if not isinstance(x, np.ndarray):
        return x
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    need(kind in TYPE_NAMES, f"it reads numbers of type {x.dtype}, which no network computes with")
    return KnownTensor(x.shape, kind, tuple(x.ravel().tolist()) if x.size <= MAX_VALUES else None)


# An ONNX file as a torch network, node by node.


#: Opsets that can be read.
OPSETS = range(9, onnx.defs.onnx_opset_version() + 1)

#: Attributes that change no result here: they concern training or types, or follow from shapes.
HARMLESS: dict[str, tuple[str, ...]] = {
    "Attention": ("q_num_heads", "kv_num_heads"),
    "BatchNormalization": ("momentum",),
    "Cast": ("saturate", "round_mode"),
    "CastLike": ("saturate", "round_mode"),
    "DequantizeLinear": ("axis",),
    "Dropout": ("ratio", "seed"),
    "Gemm": ("beta",),
    "QuantizeLinear": ("axis", "saturate", "precision"),
    "RotaryEmbedding": ("num_heads",),
    "Split": ("num_outputs",),
    **{
        f"Reduce{op}": ("noop_with_empty_axes",)
        for op in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}

#: Element types of stored tensors that are read.
_STORED_TYPES = frozenset({*TYPE_NAMES, DOUBLE})

#: Names that exporters give to axes of any length without a name.
_NAMELESS = frozenset({"None", "none", "unk"})


def _opset(path: Path, model: Any) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    largest = max(versions, default=1)
    need(largest in OPSETS, f"{path} has opset {largest}, those from {OPSETS[0]} to {OPSETS[-1]} are read", "export it with another opset")
    return int(largest)


def _initializers(path: Path, graph: Any) -> dict[str, np.ndarray]:
    """Return every initialiser as an array."""
    need(not graph.sparse_initializer, f"{path} has sparse weights", "export it with dense ones")
    external_bytes = sum(_external_bytes(path, tensor) for tensor in graph.initializer)
    need(
        external_bytes <= MAX_BYTES,
        f"{path} has {external_bytes / 1e9:.1f} GB of weights in other files, {MAX_BYTES / 1e9:.1f} GB are read",
        "export a smaller network",
    )
    return {tensor.name: array(path, tensor) for tensor in graph.initializer}


def _external_bytes(path: Path, tensor: Any) -> int:
    """Return the size of a weight in another file, in bytes; the file must be in the model's folder."""
    if tensor.data_location != EXTERNAL:
        return 0
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    relative, folder = PurePosixPath(location), path.parent.resolve()
    file = folder / location if location and "\0" not in location else folder
    need(
        not relative.is_absolute() and ".." not in relative.parts and file.resolve().is_relative_to(folder) and file.is_file(),
        f"weight `{tensor.name[:80]}` of {path} is in `{location[:80]}`, which is no file in the model's folder",
        "put the file next to the model, or export it with weights inside",
    )
    width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize if tensor.data_type in _STORED_TYPES else 1
    return int(width * math.prod(max(0, n) for n in tensor.dims))


def array(path: Path, tensor: Any) -> np.ndarray:
    """Return the numbers of a stored tensor; half and double precision become single precision."""
    try:
        stored_tensor(tensor, path, _STORED_TYPES)
        values = numpy_helper.to_array(tensor, base_dir=str(path.parent))
    except StretchError as error:
        raise StretchError(f"{path} cannot be read: {error.message}", "export it again, in single precision") from error
    # The file of weights may end too early, or the numbers may be invalid.
    except Exception as error:
        raise StretchError(f"weight `{tensor.name[:80]}` of {path} cannot be read: {str(error)[:120]}", "export it again") from error
    return _in_single_precision(values)


def _in_single_precision(values: np.ndarray) -> np.ndarray:
    """Return reals in single precision, other numbers unchanged; reals beyond its range become its largest."""
    if values.dtype == np.float64:
        largest = np.finfo(np.float32).max
        values = np.where(np.isinf(values), values, values.clip(-largest, largest))
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def _input_end(value: Any, last: bool, readers: Readers) -> End:
    """Return the file's statement about an input."""
    kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
    # some exporters write one fixed name for every axis of unknown length
    symbols = [dim.dim_param if dim.dim_param.isidentifier() and dim.dim_param not in _NAMELESS else "" for dim in dims]
    # an open batch is 1
    sizes = [Size(max(0, dim.dim_value) or int(not axis), symbol) for axis, (dim, symbol) in enumerate(zip(dims, symbols, strict=True))]
    name = "float32" if kind == FLOAT else TYPE_NAMES.get(kind, f"element type {kind}")
    # a scalar has a shape without axes
    axes = sizes if sizes or value.type.tensor_type.HasField("shape") else None
    return End(value.name, [sizes[i] for i in TO_FIRST] if last else axes, name, readers.cast(value.name, REALS))


#: Types of ONNX attributes that are tensors, and of those that are graphs.
_TENSOR, _GRAPHS = 4, (5, 10)


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """Load the network of an ONNX file of any exporter, in evaluation mode; it returns several outputs as a dictionary by their names.

    Weights that are stored in int8 become reals, and operators that round activations are removed. Weights in other files are read from
    the model's folder.

    Args:
        path: The file.
        input_shape: Shape of its input or shapes of several (`stretch.network.models.builder.resolve_input_shapes`), images as N×C×H×W;
            the file's own shapes if None, with a batch of 1 where the file leaves it open.

    An image with its channels last in the file, which the file transposes first, is N×C×H×W here.
    The module describes its inputs: `stretch.network.models.builder.finish_network`.
    """
    try:
        return _Lowering(Path(path), input_shape).network()
    except StretchError as error:
        if error.message.isprintable():
            raise
        raise type(error)(on_one_line(error.message), error.hint) from error


class _Lowering:
    def __init__(self, path: Path, input_shape: InputShapes | None) -> None:
        model = decode(path)
        graph = model.graph
        need(not model.functions, f"{path} defines functions of its own", "export it with functions inlined")
        if max(len(graph.node), len(graph.initializer), len(graph.input)) > MAX_PARTS:
            raise StretchError(f"{path} has more than {MAX_PARTS} operators or weights, which is no network that can be branched")
        self._path, self._nodes, self._opset = path, list(graph.node), _opset(path, model)
        self._outputs = [value.name for value in graph.output]
        self._halves = any(tensor.data_type == FLOAT16 for tensor in graph.initializer)
        self._values: dict[str, Value] = {**_initializers(path, graph)}
        # old files list their weights among the inputs
        inputs, readers = [value for value in graph.input if value.name not in self._values], Readers(graph.node)
        last = [len(value.type.tensor_type.shape.dim) == 4 and readers.turn(value.name) for value in inputs]
        self._ends = named_ends(path, [_input_end(*pair, readers) for pair in zip(inputs, last, strict=True)])
        self._shapes = resolve_input_shapes(path, self._ends, input_shape)
        self._builder = Builder(self._shapes)
        #: Images with their channels last, which the file transposes first.
        self._last = [end for end, turns in zip(self._ends, last, strict=True) if turns]
        for end in self._ends:
            x = self._builder.inputs[end.argument]
            self._values[end.name] = permute_axes(self._builder, x, TO_LAST) if end in self._last else x
        self._quants: dict[str, Quantisation] = {}
        self._rounded = 0

    def network(self) -> fx.GraphModule:
        """Build the network."""
        for i, node in enumerate(self._nodes):
            stated = {item.name: _to_str(helper.get_attribute_value(item)) for item in node.attribute if item.type in PLAIN_ATTRIBUTES}
            with reading(
                self._path, self._describe(i), "export the network without it, or give the module itself as `module:factory`", stated
            ):
                self._lower(node)
        returned = by_name(self._builder, [(name, self._result(name)) for name in self._outputs])
        keys = [key for key, _ in walk_leaves(returned)]
        own = OwnNetwork(self._own_file(keys), [(self._describe(i), self._output_nodes(node)) for i, node in enumerate(self._nodes)])
        return finish_network(self._path, self._builder.finish(returned, "Network"), self._shapes, self._ends, self._warnings(), own)

    def _describe(self, i: int) -> str:
        """Return the name of a node in messages."""
        node = self._nodes[i]
        return f"node `{(node.name or f'{node.op_type}_{i}')[:80]}` ({node.op_type[:60]})"

    def _output_nodes(self, node: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the network's nodes for the results of a node of the file, except results that the file rounds."""
        values = {name: self._values.get(name) for name in node.output if name and name not in self._quants}
        return {name: (value.name, ()) for name, value in values.items() if isinstance(value, fx.Node)}

    def _own_file(self, keys: Sequence[str]) -> SourceFile:
        """Return the inputs and outputs of the file, and the precision in which it computes."""
        turned = {end.name: TO_LAST if end in self._last else () for end in self._ends}
        inputs = [
            SourceTensor(end.name, end.argument, permute_shape(self._shapes[end.argument], turned[end.name]), end.kind, turned[end.name])
            for end in self._ends
        ]
        shapes = [shape_of(self._result(name)) for name in self._outputs]
        outputs = [SourceTensor(name, key, shape) for name, key, shape in zip(self._outputs, keys, shapes, strict=True)]
        return SourceFile(tuple(inputs), tuple(outputs), "int8" if self._rounded else "fp16" if self._halves else "fp32")

    def _result(self, name: str) -> fx.Node:
        """Return the node that the network returns as an output of this name; stored tensors become parameters."""
        value = require(self._values.get(name), f"{self._path} returns `{name[:80]}`, which nothing computes")
        return (
            self._builder.to_reals(value) if isinstance(value, fx.Node) else self._builder.add_tensor(np.asarray(value, np.float32), name)
        )

    def _warnings(self) -> list[str]:
        """Return warnings about differences from the file."""
        path, warnings = self._path, []
        for end in self._last:
            subject = "the input" if len(self._ends) == 1 else f"the input `{end.name[:80]}`"
            warnings.append(f"{subject} of {path} has its channels last and is turned at once: here they are second, as in all networks")
        if self._rounded:
            warnings.append(
                f"{path} rounds {self._rounded} activations to int8: they are reals here, and `stretch export` finds new scales"
            )
        return warnings

    def _lower(self, node: Any) -> None:
        need(node.domain in (*_OWN, _RUNTIME), f"it is of the domain `{node.domain[:60]}`, and only ONNX's own operators are read")
        unknown = next((name for name in node.input if name and name not in self._values), None)
        if unknown is not None:
            raise StretchError(f"it reads `{unknown[:80]}`, which nothing writes before it")
        for item in node.attribute:
            if node.op_type == "Cast" and item.name == "to" and item.i == DOUBLE:
                item.i = FLOAT
        if node.op_type == "If" and node.domain in _OWN:
            self._decide(node)
            return
        reads = [self._values[name] if name else None for name in node.input]
        results = self._results(node, reads)
        for name, result in zip(node.output, results, strict=False):
            need(name not in self._values, f"`{name[:80]}` is written twice")
            if name:
                self._values[name] = result.node if isinstance(result, QuantisedTensor) else result
                if isinstance(result, QuantisedTensor):
                    self._quants[name] = result.quant

    def _decide(self, node: Any) -> None:
        """Lower the branch of an `If` that these sizes select; exporters write it when the number of axes decides."""
        condition = self._values[node.input[0]]
        if not isinstance(condition, np.ndarray) or condition.size != 1:
            raise StretchError("it decides by what is computed from the inputs")
        graph = {item.name: item.g for item in node.attribute}["then_branch" if condition.all() else "else_branch"]
        # names within a branch are local to it
        values, quants = dict(self._values), dict(self._quants)
        self._values |= _initializers(self._path, graph)
        for inner in graph.node:
            self._lower(inner)
        results = list(zip(node.output, [value.name for value in graph.output], strict=True))
        self._values = values | {name: self._values[inner] for name, inner in results}
        self._quants = quants | {name: self._quants[inner] for name, inner in results if inner in self._quants}

    def _results(self, node: Any, reads: list[Value]) -> Sequence[Result]:
        attrs = self._attributes(node)
        op = node.op_type if node.domain in _OWN else f"{node.domain}.{node.op_type}"
        function = RULES.get(op)
        settings = Attributes({key: _to_str(value) for key, value in attrs.items()})
        stored = [read for read in reads if not isinstance(read, fx.Node)]
        if len(stored) == len(reads):
            if function is None or not reads or op in SHAPES or op in QUANTISING:
                return compute_constant(node, stored, attrs, self._opset)
            constant = by_rule(function, OnnxSite(stored, op, "known", settings, len(node.output), Builder((1,)), self._opset))
            self._check_unread(node, settings)
            return constant
        if function is None:
            domain = "" if node.domain in _OWN else f" of the domain `{_RUNTIME}`"
            raise StretchError(REASONS.get(op, f"there is no rule for this operator{domain}"))
        name = _short_name(node.name, node.op_type) or node.output[0]
        quants = [self._quants.get(item) for item in node.input]
        shared = None if op in QUANTISING else common_quantisation(op, quants)
        if shared is not None:
            reads = [
                shared.dequantize(read) if isinstance(read, np.ndarray) and read.dtype == shared.zero_point.dtype else read
                for read in reads
            ]
        built = function(OnnxSite(reads, op, name, settings, len(node.output), self._builder, self._opset, quants))
        self._check_unread(node, settings)
        results = built if isinstance(built, Sequence) else [built]
        if shared is not None:
            return [
                QuantisedTensor(result, shared) if isinstance(result, fx.Node) and result.meta["val"].is_floating_point() else result
                for result in results
            ]
        self._rounded += "DynamicQuantize" in op or any(isinstance(result, QuantisedTensor) for result in results)
        return results

    def _check_unread(self, node: Any, attrs: Attributes) -> None:
        """Refuse attributes that the rule did not read, because they may change the result."""

        def usual(name: str) -> Any:
            try:
                stated = onnx.defs.get_schema(node.op_type, self._opset, "").attributes[name].default_value
            # the domain has no schema, or the operator is unknown in it
            except (onnx.defs.SchemaError, KeyError):
                return None
            return _to_str(helper.get_attribute_value(stated)) if stated.type else None

        attrs.check(usual, HARMLESS.get(node.op_type.removeprefix("QLinear"), ()))

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of a node by name; stored tensors become arrays."""
        need(
            all(item.type not in _GRAPHS and not item.ref_attr_name for item in node.attribute),
            "it holds a graph that runs only for some values",
            "export the network with fixed sizes and no `if` or loop that depends on its input, or only the graph that is run",
        )
        return {
            item.name: array(self._path, item.t) if item.type == _TENSOR else helper.get_attribute_value(item) for item in node.attribute
        }


def _to_str(value: Any) -> Any:
    """Return an attribute's value, with bytes decoded to text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _short_name(name: str, op: str) -> str:
    """Return a node's name without the parts that exporters add: its operator, and repeated parts of its path."""
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and parts[-1].startswith(op):
        parts = parts[:-1]
    return "_".join(part for i, part in enumerate(parts) if i + 1 == len(parts) or not parts[i + 1].startswith(f"{part}."))
