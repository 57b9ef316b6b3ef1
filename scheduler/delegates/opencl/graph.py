"""A subgraph's ONNX file as nodes, constants and shapes that passes may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictors.errors import StretchError
from predictors.formats.inference import fixed_shapes
from scheduler.delegates.base import Array
from scheduler.formats.onnx import open_onnx

Shape = tuple[int, ...]

#: Opset below which axes of Pad and ReduceMean are attributes.
MIN_OPSET = 18
#: Element types of ONNX for 32-bit and 16-bit reals.
_REALS = (1, 10)


@dataclass(frozen=True)
class KernelNode:
    """One operator."""

    name: str  # Name of the ONNX node that it stems from.
    op: str  # Operator type, or a name that a pass gave to several operators merged.
    inputs: tuple[str, ...]  # Tensors read; empty for an optional input left out.
    output: str  # Tensor written.
    attrs: Mapping[str, Any] = field(default_factory=dict)  # Attributes as Python values; strings are bytes.
    merged: tuple[str, ...] = ()  # Names of the ONNX nodes that it computes, its own included.

    def with_attrs(self, **more: Any) -> "KernelNode":
        """A copy with some attributes set."""
        return replace(self, attrs={**self.attrs, **more})


@dataclass
class KernelGraph:
    """A subgraph."""

    nodes: list[KernelNode]  # In topological order.
    constants: dict[str, Array]  # Weights by name.
    shapes: dict[str, Shape]  # Shape of every tensor.
    inputs: tuple[str, ...]  # Names of the inputs.
    outputs: tuple[str, ...]  # Names of the outputs.
    gone: dict[str, str] = field(default_factory=dict)  # Why ONNX nodes that are in no node any more are gone, by name.

    def readers(self) -> dict[str, list[KernelNode]]:
        """Nodes that read each tensor; a node that reads it twice is named twice."""
        by_tensor: dict[str, list[KernelNode]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    by_tensor.setdefault(name, []).append(node)
        return by_tensor

    def writers(self) -> dict[str, KernelNode]:
        """The node that writes each tensor."""
        return {node.output: node for node in self.nodes}

    def only_reader(self, tensor: str) -> KernelNode | None:
        """The node that alone reads a tensor which is no output, or None."""
        if tensor in self.outputs:
            return None
        readers = [node for node in self.nodes if tensor in node.inputs]
        return readers[0] if len(readers) == 1 and readers[0].inputs.count(tensor) == 1 else None


def read_graph(model: Path) -> KernelGraph:
    """The graph in an ONNX file."""
    from onnx import external_data_helper, helper, numpy_helper

    opened = open_onnx(model)
    proto = opened.proto
    external_data_helper.load_external_data_for_model(proto, str(model.parent))
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version < MIN_OPSET:
            raise StretchError(f"{model} uses opset {opset.version}, the opencl delegate reads {MIN_OPSET} and later")
    inputs, outputs = opened.ends
    constants: dict[str, Array] = {tensor.name: _real(numpy_helper.to_array(tensor)) for tensor in proto.graph.initializer}
    nodes: list[KernelNode] = []
    for i, node in enumerate(proto.graph.node):
        name = node.name or f"{node.op_type}_{i}"
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant" and "value" in attrs:
            constants[node.output[0]] = _real(numpy_helper.to_array(attrs["value"]))
            continue
        if sum(bool(output) for output in node.output) != 1 or node.domain not in ("", "ai.onnx"):
            raise StretchError(f"node `{name}` of {model} is a {node.op_type} that the opencl delegate does not run")
        # Precision is the delegate's: a cast between reals only says where half precision begins and ends.
        op = "Identity" if node.op_type == "Cast" and attrs["to"] in _REALS else node.op_type
        nodes.append(KernelNode(name, op, tuple(node.input), node.output[0], attrs, (name,)))
    shapes = fixed_shapes(proto, str(model), trusted=True) | {name: array.shape for name, array in constants.items()} | inputs | outputs
    for written in nodes:
        if written.output not in shapes:
            raise StretchError(f"`{written.output}` of {model} has no fixed shape", "export the model with fixed shapes")
    return KernelGraph(nodes, constants, shapes, tuple(inputs), tuple(outputs))


def _real(values: Array) -> Array:
    """Weights in single precision, whatever they are stored in."""
    return values.astype(np.float32) if values.dtype == np.float16 else values
