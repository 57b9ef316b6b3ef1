"""ONNX files, read without trust: limits for a bundle's files, the operators that nn-stretch wrote, and the properties of a file."""

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import StretchError, need, on_one_line
from predictors.formats.onnx import decode
from predictors.graph import SHARED, Op, OpGraph
from predictors.shapes import Attr, Attrs
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.moving import MAX_VALUES
from scheduler.formats.onnx.shapes.node import (
    MAX_RANK,
    MAX_RESULTS,
    REALS,
    TYPE_NAMES,
    Cost,
    KnownTensor,
    Shape,
    ShapeNode,
    unsupported_reason,
)

#: Maximum multiply-accumulates of one file: twice those of a ViT-H/14 on 518 × 518 pixels.
MAX_WORK = 1 << 41

#: Maximum number of elements alive at once, without weights: half a gigabyte of reals.
MAX_LIVE_ELEMENTS = 1 << 27

#: Maximum number of operators, and of weights, of one file.
MAX_PARTS = 20_000

#: Types of attributes that are numbers or words: FLOAT, INT, STRING, FLOATS, INTS.
PLAIN_ATTRIBUTES = (1, 2, 3, 6, 7)

#: Operators with a tensor as attribute, and the type of such attributes.
_STORING, _TENSOR = ("Constant", "ConstantOfShape"), 4

_HINT = "write the bundle again with `stretch branch`"


@dataclass(frozen=True)
class FileCost:
    """Work and memory of one run of a file."""

    work: int  # Multiply-accumulates, or operations on single elements.
    peak_elements: int  # Maximum number of elements alive at once, without weights.


def _stated_tensor(value: Any) -> KnownTensor:
    """Return the stated shape and type of an input or output."""
    type, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
    need(type in TYPE_NAMES, f"`{value.name}` has element type {type}, which nn-stretch does not write")
    need(len(dims) <= MAX_RANK, f"`{value.name}` has {len(dims)} axes")
    need(all(d.dim_value > 0 for d in dims), f"`{value.name}` has no fixed shape")
    shape = tuple(d.dim_value for d in dims)
    need(math.prod(shape) <= MAX_LIVE_ELEMENTS, f"`{value.name}` has the shape {list(shape)}")
    return KnownTensor(shape, type)


def _costs(graph: Any, inputs: Mapping[str, KnownTensor], model: Path) -> list[Cost]:
    """Return the results and work of each operator; `inputs` include the weights."""
    tensors = dict(inputs)
    costs = []
    for i, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{i}"
        try:
            _check_node(node, tensors)
            cost = _cost(node, tensors, model)
        except StretchError as error:
            raise StretchError(on_one_line(f"operator `{name}` ({node.op_type}): {error.message}"), error.hint) from error
        tensors |= {name: tensor for name, tensor in zip(node.output, cost.results, strict=True) if name}
        costs.append(cost)
    return costs


def _check_node(node: Any, tensors: Mapping[str, KnownTensor]) -> None:
    """Refuse a node that has no rule, reads a missing tensor or writes an existing one."""
    need(node.domain in ("", "ai.onnx"), f"no bundle holds operators of the domain `{node.domain[:60]}`; write it with ONNX's own")
    need(node.op_type in RULES, unsupported_reason(node.op_type))
    written = [name for name in node.output if name]
    need(0 < len(node.output) <= MAX_RESULTS and bool(node.output[0]), f"it has {len(node.output)} results")
    duplicate = next((name for name in written if name in tensors or written.count(name) > 1), None)
    need(duplicate is None, f"`{duplicate}` is written twice")
    for name in node.input:
        need(not name or name in tensors, f"it reads `{name}`, which nothing writes before it")


def _cost(node: Any, tensors: Mapping[str, KnownTensor], model: Path) -> Cost:
    attrs = {attribute.name: _attribute(attribute, node.op_type in _STORING, model) for attribute in node.attribute}
    need(len(attrs) == len(node.attribute), "it has an attribute twice")
    cost = RULES[node.op_type](ShapeNode(tuple(tensors[name] if name else None for name in node.input), attrs, len(node.output)))
    need(len(cost.results) == len(node.output), f"it has {len(node.output)} results, {len(cost.results)} are allowed")
    for result in cost.results:
        fits = len(result.shape) <= MAX_RANK and all(n > 0 for n in result.shape) and result.size <= MAX_LIVE_ELEMENTS
        need(fits, f"it makes a tensor of {str(list(result.shape))[:200]}")
    return cost


def _attribute(attribute: Any, stores: bool, model: Path) -> Any:
    """Return the value of an attribute: a number, a word, a list, or the tensor of an operator that stores one."""
    import onnx.helper

    is_allowed = attribute.type in PLAIN_ATTRIBUTES or (stores and attribute.type == _TENSOR)
    need(is_allowed and not attribute.ref_attr_name, f"its attribute `{attribute.name}` is no number or word")
    return stored_tensor(attribute.t, model) if attribute.type == _TENSOR else onnx.helper.get_attribute_value(attribute)


def _check_outputs(graph: Any, computed: Mapping[str, KnownTensor]) -> None:
    """Check that outputs have their stated shapes and types."""
    for value in graph.output:
        need(value.name in computed, f"nothing writes its output `{value.name}`")
        stated, computed_tensor = _stated_tensor(value), computed[value.name]
        need(
            computed_tensor.shape == stated.shape,
            f"it states {list(stated.shape)} for `{value.name}` and makes {list(computed_tensor.shape)}",
        )
        names = TYPE_NAMES[stated.type], TYPE_NAMES[computed_tensor.type]
        need(computed_tensor.type == stated.type, f"it states {names[0]} for `{value.name}` and makes {names[1]}")


def _check_statistics(graph: Any) -> None:
    """Check that no variance is negative, because its root would be NaN."""
    import onnx.numpy_helper

    variances = {node.input[4] for node in graph.node if node.op_type == "BatchNormalization"}
    for tensor in graph.initializer:
        if tensor.name in variances and tensor.data_location != EXTERNAL:
            array = onnx.numpy_helper.to_array(tensor)
            need(bool((array >= 0).all()), f"variance `{tensor.name}` of a batch norm is negative or no number")


def _peak_elements(graph: Any, computed: Mapping[str, KnownTensor]) -> int:
    """Return the maximum over operators of the elements that are written and will still be read."""
    sizes = {name: tensor.size for name, tensor in computed.items()}
    last_use = {name: i for i, node in enumerate(graph.node) for name in (*node.output, *node.input) if name in sizes}
    last_use |= {value.name: len(graph.node) for value in graph.output}
    freed: dict[int, list[str]] = {}
    for name, i in last_use.items():
        freed.setdefault(i, []).append(name)
    written = {name for node in graph.node for name in node.output}
    live = peak = sum(size for name, size in sizes.items() if name not in written)
    for i, node in enumerate(graph.node):
        live += sum(sizes[name] for name in node.output if name)
        peak = max(peak, live)
        live -= sum(sizes[name] for name in freed.get(i, []))
    return peak


#: Location of a tensor whose bytes are in another file.
EXTERNAL = 1


def stored_tensor(tensor: Any, model: Path, types: Collection[int] = TYPE_NAMES) -> KnownTensor:
    """Read the type and shape of a weight after checking its byte count, and the values of a short weight inside the file.

    Args:
        tensor: The `onnx.TensorProto`.
        types: ONNX's numbers of the allowed element types.
    """
    import onnx.helper

    need(tensor.data_type in types, f"weight `{tensor.name}` has element type {tensor.data_type}, which nn-stretch does not write")
    need(all(n >= 0 for n in tensor.dims), f"weight `{tensor.name}` has the shape {list(tensor.dims)}")
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    expected_bytes = math.prod(tensor.dims) * width
    if tensor.data_location == EXTERNAL:
        stored_bytes = _external_bytes(tensor, model)
    elif tensor.HasField("raw_data"):
        stored_bytes = len(tensor.raw_data)
    else:
        stored_bytes = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))) * width
    need(
        stored_bytes == expected_bytes,
        f"weight `{tensor.name}` has {stored_bytes} bytes, its shape {list(tensor.dims)} needs {expected_bytes}",
    )
    return KnownTensor(tuple(tensor.dims), tensor.data_type, _short_values(tensor))


def _external_bytes(tensor: Any, model: Path) -> int:
    """Return the number of bytes of a weight in an external file, which must be long enough."""
    location = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = location.get("offset", "0"), location.get("length", "0")
    digits = all(text.isascii() and text.isdigit() and len(text) < 19 for text in (offset, length))
    need(digits, f"weight `{tensor.name}` has no position in its file")
    file = model.parent / location.get("location", "")
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise StretchError(f"the file of weight `{tensor.name}` cannot be read") from error
    need(int(offset) + int(length) <= size, f"weight `{tensor.name}` lies beyond the end of its file")
    return int(length) if "length" in location else size - int(offset)


def _short_values(tensor: Any) -> tuple[float, ...] | None:
    """Return the numbers of a weight that may be a size, a bound or a scale; None for a long weight or one outside the file."""
    import onnx.numpy_helper

    if tensor.data_location == EXTERNAL or math.prod(tensor.dims) > MAX_VALUES:
        return None
    return tuple(onnx.numpy_helper.to_array(tensor).ravel().tolist())


# The operators of an ONNX file that nn-stretch wrote: statements in the metadata of its nodes, checked against the nodes.
#
# The last node of each operator states its kind and attributes; preceding nodes
# without a statement are part of it. Files are untrusted: the statements must
# fit the shapes, weights and windows of the nodes.


#: Operators that carry the scales of an int8 subgraph, or are at the edges of an fp16 subgraph.
QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "Cast")

#: Kind of opaque operators (`predictors.operators.opaque`), whose attributes do not describe windows; they read each tensor once.
_OPAQUE = "opaque"

KIND, ATTRIBUTES, INPUTS = "stretch.kind", "stretch.attributes", "stretch.inputs"

#: Node attribute: the weights that its operator shares with other operators (`predictors.graph.SHARED`).
SHARING = "stretch.shared"

#: Names of ONNX's window attributes in operators.
WINDOW_ATTRIBUTES = {"kernel_shape": "kernel", "strides": "stride", "pads": "padding", "dilations": "dilation", "group": "groups"}


def state_operator(node: Any, kind: str, attrs: Attrs, inputs: Sequence[str] = ()) -> None:
    """Write into a node's metadata that it ends an operator of this kind, and the order of the operator's inputs."""
    for i in reversed(range(len(node.metadata_props))):
        if node.metadata_props[i].key in (KIND, ATTRIBUTES, INPUTS):
            del node.metadata_props[i]
    order = {INPUTS: msgspec.json.encode(list(inputs)).decode()} if inputs else {}
    for key, value in ({KIND: kind, ATTRIBUTES: msgspec.json.encode(dict(attrs)).decode()} | order).items():
        entry = node.metadata_props.add()
        entry.key, entry.value = key, value


def stated_operator(node: Any) -> tuple[str, dict[str, Attr]] | None:
    """Return the kind and attributes of the operator that a node ends, or None."""
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    if KIND not in metadata:
        return None
    try:
        attrs = msgspec.json.decode(metadata.get(ATTRIBUTES, "{}"), type=dict[str, bool | int | float | str | tuple[int, ...]])
    except msgspec.MsgspecError as error:
        raise StretchError(f"node `{node.name}` states attributes that no operator has: {error}", _HINT) from error
    return metadata[KIND], attrs


@dataclass(frozen=True)
class OperatorNodes:
    """One operator with its nodes."""

    op: Op  # The operator, without its shape.
    nodes: tuple[Any, ...]  # Nodes of the operator, in order.
    weights: tuple[str, ...]  # Names of the initialisers that the nodes read, in order.


def operators(proto: Any) -> Iterator[OperatorNodes]:
    """Yield every operator of a model in the order of its last node.

    An operator has the name of the tensor that it writes, or of an output if that tensor is only converted to the output.
    """
    weights = {tensor.name for tensor in proto.graph.initializer}
    producers = {name: node for node in proto.graph.node if not is_quantiser(node) for name in node.output if name}
    position = {node.output[0]: i for i, node in enumerate(proto.graph.node)}
    names = _Names(proto)
    inner: set[str] = set()
    for node in proto.graph.node:
        if is_quantiser(node):
            continue
        kind = stated_operator(node)
        if kind is None:
            inner.update(name for name in node.output if name)
            continue
        nodes = sorted(_nodes(node, producers, inner, names), key=lambda member: position[member.output[0]])
        read = [names.resolve(name) for member in nodes for name in member.input if name]
        tensors = [name for name in read if name not in weights and name not in inner]
        produced = {name for member in nodes for name in member.output}
        inner -= produced
        # Several nodes of an operator may read one tensor, and calls of torch name each tensor once.
        inputs = tuple(dict.fromkeys(tensors)) if len(nodes) > 1 or kind[0] == _OPAQUE else tuple(tensors)
        sharing = [(SHARED, entry.value) for entry in node.metadata_props if entry.key == SHARING]
        op = Op(names.resolve(node.output[0]), kind[0], _state_inputs(node, inputs), kind[1], tags=dict(sharing))
        yield OperatorNodes(op, tuple(nodes), tuple(name for name in read if name in weights))
    if inner:
        raise StretchError(f"the node that writes `{min(inner)}` does not say which operator it is part of")


def _state_inputs(node: Any, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the inputs of an operator in the order stated by its last node, if that order has the same tensors."""
    text = next((entry.value for entry in node.metadata_props if entry.key == INPUTS), "[]")
    with contextlib.suppress(msgspec.MsgspecError):
        order = tuple(msgspec.json.decode(text, type=list[str]))
        return order if sorted(order) == sorted(inputs) else inputs
    return inputs


class _Names:
    """Names of tensors without conversions between precisions."""

    def __init__(self, proto: Any) -> None:
        self._known: dict[str, str] = {}
        producers = {node.output[0]: node.input[0] for node in proto.graph.node if is_quantiser(node)}
        # The operator that makes an output of an int8 or fp16 subgraph has the output's name, as in a float subgraph.
        for output in proto.graph.output:
            last = output.name
            while last in producers:
                last = producers[last]
            self._known[last] = output.name
        for node in proto.graph.node:
            if is_quantiser(node):
                self._known[node.output[0]] = self.resolve(node.input[0])

    def resolve(self, name: str) -> str:
        """Return the name of a tensor or weight before its conversions."""
        return self._known.get(name, name)


def is_quantiser(node: Any) -> bool:
    """Return whether a node only changes the precision of reals; a cast to another type, or one that is an operator, does more."""
    if node.op_type not in QUANTISERS or node.domain or any(entry.key == KIND for entry in node.metadata_props):
        return False
    return node.op_type != "Cast" or any(attribute.name == "to" and attribute.i in REALS for attribute in node.attribute)


def _nodes(last: Any, producers: Mapping[str, Any], inner: set[str], names: _Names) -> list[Any]:
    """Return the last node and the preceding nodes that belong to no other operator."""
    nodes, waiting = [last], list(last.input)
    while waiting:
        name = names.resolve(waiting.pop())
        if name in inner and all(producers[name] is not node for node in nodes):
            nodes.append(producers[name])
            waiting += producers[name].input
    return nodes


def _check_operator(graph: OpGraph, part: OperatorNodes, shapes: Mapping[str, Shape]) -> None:
    """Refuse an operator whose statement does not fit its nodes."""
    op = graph.by_name[part.op.name]
    node = part.nodes[-1]
    statement = f"operator `{op.name}` states that it is a {op.kind}"
    output_shape = shapes[node.output[0]]
    need(output_shape == op.shape, f"{statement} of shape {list(op.shape)}, its node {node.op_type} makes {list(output_shape)}")
    counts = Counter(_squeezed(shapes[name]) for name in part.weights)
    for shape in graph.op_weights(op).values():
        need(bool(counts[_squeezed(shape)]), f"{statement} with a weight of shape {list(shape)}, its nodes read none")
        counts[_squeezed(shape)] -= 1
    for attribute in (attribute for member in part.nodes for attribute in member.attribute):
        # the kernel of an opaque operator is a word, not a window
        key = "" if op.kind == _OPAQUE else WINDOW_ATTRIBUTES.get(attribute.name, "")
        value = tuple(attribute.ints) if attribute.ints else attribute.i
        if key in op.attrs and op.attrs[key] != value:
            raise StretchError(f"{statement} with {key} {op.attrs[key]}, its node {node.op_type} has {value}")


def _squeezed(shape: Shape) -> Shape:
    """Return a shape without axes of size 1, as it counts for broadcasting: one number per channel may be stored with more axes."""
    return tuple(size for size in shape if size != 1)


# ONNX files as data, and their properties.


def external_locations(graph: Any) -> set[str]:
    """Return the files that hold the external weights of an ONNX graph, nested graphs included."""
    locations: set[str] = set()
    tensors = list(graph.initializer)
    for sparse in graph.sparse_initializer:
        tensors += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for nested in (attribute.g, *attribute.graphs):
                if nested.node or nested.initializer:
                    locations |= external_locations(nested)
    for tensor in tensors:
        locations.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return locations


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX model, read from a file or derived from one.

    Beyond being an ONNX model with an output, nothing is checked until a property
    is read; an error is then a `StretchError` that names the file.
    """

    path: Path  # Path of the file, for messages and for external weights in its folder.
    proto: Any  # The `onnx.ModelProto`, without external data.

    @property
    def nodes(self) -> Sequence[Any]:
        """The graph's nodes as `onnx.NodeProto`, in order."""
        return list(self.proto.graph.node)

    @property
    def named_nodes(self) -> list[tuple[str, str]]:
        """Name and operator type of each node; nodes without a name are numbered."""
        return [(node.name or f"{node.op_type}_{i}", node.op_type) for i, node in enumerate(self.proto.graph.node)]

    @property
    def initialisers(self) -> dict[str, Any]:
        """The graph's weights as `onnx.TensorProto`, by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def ends(self) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """Shapes of inputs, without weights, and of outputs, by name."""
        graph, weights, ends = self.proto.graph, self.initialisers, []
        for values in (graph.input, graph.output):
            shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values if v.name not in weights}
            for name, shape in shapes.items():
                need(all(n > 0 for n in shape), f"`{name}` of {self.path} has no fixed shape", "export the model with fixed shapes")
            ends.append(shapes)
        return ends[0], ends[1]

    @cached_property
    def external(self) -> set[str]:
        """Files that hold the external weights, including those of nested graphs."""
        return external_locations(self.proto.graph)

    @cached_property
    def _tensors(self) -> tuple[dict[str, KnownTensor], dict[str, KnownTensor], list[Cost]]:
        """The weights by name, all other tensors, and the results of each operator."""
        proto, graph = self.proto, self.proto.graph
        need(not proto.functions and not proto.training_info, "it defines functions or training steps")
        need(not graph.sparse_initializer, "it has sparse weights")
        need(not graph.quantization_annotation, "it has quantisation annotations")
        need(max(len(graph.node), len(graph.initializer)) <= MAX_PARTS, f"it has more than {MAX_PARTS} operators or weights")
        for kind, values in (("weights", graph.initializer), ("inputs", graph.input), ("outputs", graph.output)):
            duplicate = next((name for name, count in Counter(value.name for value in values).items() if count > 1), None)
            need(duplicate is None, f"two of its {kind} are called `{duplicate}`")
        weights = {tensor.name: stored_tensor(tensor, self.path) for tensor in graph.initializer}
        inputs = {value.name: _stated_tensor(value) for value in graph.input if value.name not in weights}
        costs = _costs(graph, weights | inputs, self.path)
        written = [pair for node, cost in zip(graph.node, costs, strict=True) for pair in zip(node.output, cost.results, strict=True)]
        return weights, inputs | {name: tensor for name, tensor in written if name}, costs

    @cached_property
    def cost(self) -> FileCost:
        """Work and memory of a run, after checks of operators, weights and both limits."""
        with _add_subject_to_errors(f"{self.path} cannot be run"):
            _, computed, costs = self._tensors
            _check_outputs(self.proto.graph, computed)
            _check_statistics(self.proto.graph)
            work, peak = sum(cost.work for cost in costs), _peak_elements(self.proto.graph, computed)
            need(work <= MAX_WORK, f"it takes {work:.1e} multiply-accumulates, {MAX_WORK:.1e} are allowed")
            need(peak <= MAX_LIVE_ELEMENTS, f"it keeps {peak:.1e} elements at one time, {MAX_LIVE_ELEMENTS:.1e} are allowed")
            return FileCost(work, peak)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every tensor, including weights, computed from the inputs."""
        with _add_subject_to_errors(f"{self.path} cannot be read"):
            weights, computed, _ = self._tensors
            return {name: tensor.shape for name, tensor in (weights | computed).items()}

    @cached_property
    def operators(self) -> list[OperatorNodes]:
        """Every operator with its nodes and weights, in the order of its last node."""
        return list(operators(self.proto))

    @cached_property
    def graph(self) -> OpGraph:
        """The file's operators as a graph; an int8 or fp16 subgraph is returned as if it were in fp32.

        Operators that are identities at inference were not written and are missing.
        """
        (inputs, outputs), shapes = self.ends, self.shapes
        with _add_subject_to_errors(f"{self.path} is not as nn-stretch writes it"):
            first = [Op(name, "input", attrs={"shape": shape}) for name, shape in inputs.items()]
            graph = OpGraph.build(self.proto.graph.name, [*first, *[part.op for part in self.operators]], outputs)
            for part in self.operators:
                _check_operator(graph, part, shapes)
            return graph


@contextlib.contextmanager
def _add_subject_to_errors(sentence: str) -> Iterator[None]:
    """Put the subject `sentence` before the message of errors."""
    try:
        yield
    except StretchError as error:
        raise StretchError(f"{sentence}: {error.message}", error.hint or _HINT) from error


def open_onnx(path: Path) -> OnnxFile:
    """Return the model in an ONNX file.

    Args:
        path: The file; external weights are not read.
    """
    return OnnxFile(path, decode(path, "write the bundle again with `stretch branch`"))
