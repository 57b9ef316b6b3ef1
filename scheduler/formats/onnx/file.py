"""ONNX files as data, and what can be asked of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from predictors.formats.onnx import decode
from predictors.graph import OpGraph
from predictors.shapes import Shape
from scheduler.formats.onnx.checks import Demand, check_onnx, graph_shapes, tensor_shapes
from scheduler.formats.onnx.operators import Parts, graph_of, operators


def external_locations(graph: Any) -> set[str]:
    """Where the weights of an ONNX graph that are not in its file lie, those of nested graphs included."""
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
    """An ONNX model that was read from a file, or made of one that was.

    Nothing but that it is an ONNX model with an output is sure until it is asked
    for; what does not hold is a `StretchError` that names the file.
    """

    path: Path  # The file, for messages and for weights beside it.
    proto: Any  # Its `onnx.ModelProto`, without external data.

    @property
    def nodes(self) -> Sequence[Any]:
        """Its `onnx.NodeProto`s, in order."""
        return list(self.proto.graph.node)

    @property
    def named(self) -> list[tuple[str, str]]:
        """Name and operator type of each node; a node without a name is numbered."""
        return [(node.name or f"{node.op_type}_{i}", node.op_type) for i, node in enumerate(self.proto.graph.node)]

    @property
    def initialisers(self) -> dict[str, Any]:
        """Its weights as `onnx.TensorProto`, by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def ends(self) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """Shapes of its inputs, weights left out, and of its outputs, by name.

        Raises:
            StretchError: If a dimension is not a fixed number.
        """
        return graph_shapes(self.proto, self.path)

    @cached_property
    def external(self) -> set[str]:
        """Where weights lie that are not in the file, those of nested graphs included."""
        return external_locations(self.proto.graph)

    @cached_property
    def demand(self) -> Demand:
        """What it takes to run it, once it is checked.

        Raises:
            StretchError: As `scheduler.formats.onnx.checks.check_onnx`.
        """
        return check_onnx(self.proto, self.path)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every tensor, weights included, worked out from its inputs.

        Raises:
            StretchError: If they do not fit together.
        """
        return tensor_shapes(self.proto, self.path)

    @cached_property
    def operators(self) -> list[Parts]:
        """Every operator with its nodes and weights, in the order of its last node.

        Raises:
            StretchError: If a node belongs to no operator.
        """
        return list(operators(self.proto))

    @cached_property
    def graph(self) -> OpGraph:
        """Its operators as a graph; an int8 or fp16 subgraph comes back as if it were in reals.

        Raises:
            StretchError: If what its nodes state is not what they are.
        """
        return graph_of(self.proto, self.path)


def open_onnx(path: Path) -> OnnxFile:
    """The model in an ONNX file.

    Args:
        path: The file; its weights stay unread where they lie outside.

    Raises:
        StretchError: If the file is missing or no ONNX model.
    """
    return OnnxFile(path, decode(path, "write the bundle again with `stretch branch`"))
