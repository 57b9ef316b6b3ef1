"""The operators of an ONNX file that nn-stretch wrote: what its nodes state in their metadata, checked against what they are.

The last node of each operator states its kind and attributes; nodes before it
that state none are part of it. A file is data from anywhere: what it states
must fit the shapes, weights and windows that its nodes have.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.shapes import Attr, Attrs, Shape
from scheduler.formats.onnx.checks import graph_shapes, tensor_shapes
from scheduler.formats.onnx.shapes.node import REALS

#: Carry the scales of an int8 subgraph, or stand at the edges of an fp16 one.
QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "Cast")

KIND, ATTRIBUTES = "stretch.kind", "stretch.attributes"

#: Attributes of ONNX nodes that operators have under another name.
_SAME = {"kernel_shape": "kernel", "strides": "stride", "pads": "padding", "dilations": "dilation", "group": "groups"}

_AGAIN = "write the bundle again with `stretch branch`"


def state(node: Any, kind: str, attrs: Attrs) -> None:
    """Let a node state that it ends an operator of this kind, whatever it stated before."""
    for i in reversed(range(len(node.metadata_props))):
        if node.metadata_props[i].key in (KIND, ATTRIBUTES):
            del node.metadata_props[i]
    for key, value in ((KIND, kind), (ATTRIBUTES, msgspec.json.encode(dict(attrs)).decode())):
        entry = node.metadata_props.add()
        entry.key, entry.value = key, value


def stated(node: Any) -> tuple[str, dict[str, Attr]] | None:
    """Kind and attributes of the operator that a node ends; None if it ends none.

    Raises:
        StretchError: If they are no attributes of an operator.
    """
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    if KIND not in metadata:
        return None
    try:
        attrs = msgspec.json.decode(metadata.get(ATTRIBUTES, "{}"), type=dict[str, bool | int | float | str | tuple[int, ...]])
    except msgspec.MsgspecError as error:
        raise StretchError(f"node `{node.name}` states attributes that no operator has: {error}", _AGAIN) from error
    return metadata[KIND], attrs


@dataclass(frozen=True)
class Parts:
    """One operator and what it is made of."""

    op: Op  # The operator; its shape is not known yet.
    nodes: tuple[Any, ...]  # Its nodes, in order.
    weights: tuple[str, ...]  # Names of the initialisers that they read, in order.


def graph_of(proto: Any, path: Path) -> OpGraph:
    """The operators of a model.

    Operators that are identities at inference were not written and do not come
    back. An int8 or fp16 subgraph comes back as if it were in reals.

    Args:
        proto: The `onnx.ModelProto`.
    """
    inputs, outputs = graph_shapes(proto, path)
    shapes = tensor_shapes(proto, path)
    try:
        parts = list(operators(proto))
        first = [Op(name, "input", attrs={"shape": shape}) for name, shape in inputs.items()]
        graph = OpGraph.build(proto.graph.name, [*first, *[part.op for part in parts]], outputs)
        for part in parts:
            _check(graph, part, shapes)
    except StretchError as error:
        raise StretchError(f"{path} is not as nn-stretch writes it: {error.message}", error.hint or _AGAIN) from error
    return graph


def operators(proto: Any) -> Iterator[Parts]:
    """Every operator of a model in the order of its last node.

    An operator is called like the tensor that it writes, or an output if that tensor is only converted to it.
    """
    weights = {tensor.name for tensor in proto.graph.initializer}
    producers = {name: node for node in proto.graph.node if not _quantises(node) for name in node.output if name}
    place = {node.output[0]: i for i, node in enumerate(proto.graph.node)}
    names = _Names(proto)
    inner: set[str] = set()
    for node in proto.graph.node:
        if _quantises(node):
            continue
        kind = stated(node)
        if kind is None:
            inner.update(name for name in node.output if name)
            continue
        nodes = sorted(_nodes(node, producers, inner, names), key=lambda member: place[member.output[0]])
        read = [names.real(name) for member in nodes for name in member.input if name]
        tensors = [name for name in read if name not in weights and name not in inner]
        inside = {name for member in nodes for name in member.output}
        inner -= inside
        # What an operator of several nodes reads, more than one of them may read.
        inputs = tuple(dict.fromkeys(tensors)) if len(nodes) > 1 else tuple(tensors)
        op = Op(names.real(node.output[0]), kind[0], inputs, kind[1])
        yield Parts(op, tuple(nodes), tuple(name for name in read if name in weights))
    if inner:
        raise StretchError(f"the node that writes `{min(inner)}` does not say which operator it is part of")


class _Names:
    """What tensors are called once conversions between precisions are left out."""

    def __init__(self, proto: Any) -> None:
        self._known: dict[str, str] = {}
        producers = {node.output[0]: node.input[0] for node in proto.graph.node if _quantises(node)}
        # The operator that makes an output of an int8 or fp16 subgraph is called like it, as in a float one.
        for output in proto.graph.output:
            last = output.name
            while last in producers:
                last = producers[last]
            self._known[last] = output.name
        for node in proto.graph.node:
            if _quantises(node):
                self._known[node.output[0]] = self.real(node.input[0])

    def real(self, name: str) -> str:
        """The tensor, or the weight, that one stands for."""
        return self._known.get(name, name)


def _quantises(node: Any) -> bool:
    """Whether a node only changes the precision of reals; a cast to another type, or one that is an operator, does more."""
    if node.op_type not in QUANTISERS or node.domain or any(entry.key == KIND for entry in node.metadata_props):
        return False
    return node.op_type != "Cast" or any(attribute.name == "to" and attribute.i in REALS for attribute in node.attribute)


def _nodes(last: Any, producers: Mapping[str, Any], inner: set[str], names: _Names) -> list[Any]:
    """The node and those before it that belong to no other operator."""
    nodes, waiting = [last], list(last.input)
    while waiting:
        name = names.real(waiting.pop())
        if name in inner and all(producers[name] is not node for node in nodes):
            nodes.append(producers[name])
            waiting += producers[name].input
    return nodes


def _check(graph: OpGraph, part: Parts, shapes: Mapping[str, Shape]) -> None:
    """Refuse an operator that its nodes are not."""
    op = graph.by_name[part.op.name]
    node = part.nodes[-1]
    where = f"operator `{op.name}` states that it is a {op.kind}"
    output_shape = shapes[node.output[0]]
    if output_shape != op.shape:
        raise StretchError(f"{where} of shape {list(op.shape)}, its node {node.op_type} makes {list(output_shape)}")
    there = Counter(_without_ones(shapes[name]) for name in part.weights)
    for shape in graph.op_weights(op).values():
        if not there[_without_ones(shape)]:
            raise StretchError(f"{where} with a weight of shape {list(shape)}, its nodes read none")
        there[_without_ones(shape)] -= 1
    for attribute in (attribute for member in part.nodes for attribute in member.attribute):
        key = _SAME.get(attribute.name, "")
        value = tuple(attribute.ints) if attribute.ints else attribute.i
        if key in op.attrs and op.attrs[key] != value:
            raise StretchError(f"{where} with {key} {op.attrs[key]}, its node {node.op_type} has {value}")


def _without_ones(shape: Shape) -> Shape:
    """A shape as it counts for what broadcasts: a number a channel may be stored with further axes."""
    return tuple(size for size in shape if size != 1)
