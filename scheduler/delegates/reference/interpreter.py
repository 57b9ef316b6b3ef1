"""Runs an ONNX graph node by node with numpy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictors.errors import StretchError
from scheduler.delegates.base import Array, Compiled, Delegate, Invocation, delegates
from scheduler.delegates.reference.ops import OPS, Node
from scheduler.formats.onnx import open_onnx

#: Operators are read as this version and later define them (axes of Pad and ReduceMean are inputs since 18).
MIN_OPSET = 18


class ReferenceInvocation(Invocation):
    """A graph tied to its buffers."""

    def __init__(self, compiled: "ReferenceCompiled", inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._compiled = compiled
        self._inputs = inputs
        self._outputs = outputs

    def run(self) -> None:
        """Evaluate the graph."""
        values = self._compiled.evaluate(self._inputs)
        for name, buffer in zip(self._compiled.outputs, self._outputs, strict=True):
            if values[name].shape != buffer.shape:
                raise StretchError(f"output `{name}` came out as {list(values[name].shape)}, the model says {list(buffer.shape)}")
            buffer[...] = values[name]


class ReferenceCompiled(Compiled):
    """An ONNX graph as a list of nodes."""

    def __init__(self, nodes: list[Node], weights: Mapping[str, Array], shapes: tuple[dict[str, tuple[int, ...]], ...]) -> None:
        super().__init__(shapes[0], shapes[1])
        self._nodes = nodes
        self._weights = dict(weights)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> ReferenceInvocation:
        """Tie the graph to `inputs` and `outputs`."""
        self.check(inputs, outputs)
        return ReferenceInvocation(self, inputs, outputs)

    def evaluate(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Every tensor of the graph, by name."""
        values: dict[str, Array] = dict(self._weights)
        values.update(zip(self.inputs, inputs, strict=True))
        for node in self._nodes:
            arguments = [values[name] if name else None for name in node.inputs]
            try:
                values[node.outputs[0]] = OPS[node.op](node, *arguments)
            except (ValueError, TypeError, IndexError, KeyError) as error:
                raise StretchError(f"node `{node.name}` ({node.op}) cannot be evaluated: {error}") from error
        return values


@delegates.register("reference")
class ReferenceDelegate(Delegate):
    """Numpy; convolutions, matrix products and means accumulate in double precision."""

    summary = "numpy, the definition of every operator"

    def compile(self, model: Path) -> ReferenceCompiled:
        """Read `model`; refuses an operator that it does not define."""
        from onnx import external_data_helper, helper, numpy_helper

        opened = open_onnx(model)
        proto = opened.proto
        external_data_helper.load_external_data_for_model(proto, str(model.parent))
        for opset in proto.opset_import:
            if opset.domain in ("", "ai.onnx") and opset.version < MIN_OPSET:
                raise StretchError(f"{model} uses opset {opset.version}, the reference delegate reads {MIN_OPSET} and later")
        weights: dict[str, Any] = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        nodes = []
        for i, node in enumerate(proto.graph.node):
            name = node.name or f"{node.op_type}_{i}"
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.domain not in ("", "ai.onnx") or (node.op_type not in OPS and node.op_type != "Constant"):
                raise StretchError(f"node `{name}` of {model} is a {node.op_type}, which the reference delegate does not define")
            if node.op_type == "Constant":
                weights[node.output[0]] = numpy_helper.to_array(attrs["value"])
                continue
            if sum(bool(output) for output in node.output) > 1:
                raise StretchError(f"node `{name}` of {model} has several outputs, the reference delegate gives one")
            nodes.append(Node(name, node.op_type, tuple(node.input), tuple(node.output), attrs))
        return ReferenceCompiled(nodes, weights, opened.ends)
