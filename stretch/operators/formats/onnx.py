"""Nodes and initialisers of one ONNX graph, collected."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictors.graph import Op

# Operators know how they are written, and are known long before anything is: onnx is imported by then.
if TYPE_CHECKING:
    import onnx

#: HardSwish needs 14, Gelu 20; what newer ones add we do not use.
OPSET = 20

#: Arrays by operator and key; those of families are float32.
Arrays = Mapping[str, Mapping[str, NDArray[Any]]]


class OnnxWriter:
    """An ONNX graph under construction.

    Attributes:
        nodes: Those written so far, in order.
        initialisers: Weights and constants that they read.
    """

    def __init__(self, weights: Arrays) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self._named: set[str] = set()

    def weight(self, op: Op, key: str, fill: float | None = None) -> str:
        """Return the name of an operator's weight, now an initialiser."""
        value = self.weights.get(op.name, {}).get(key)
        if value is None and fill is not None:
            value = np.full(op.shape[1], fill, np.float32)
        assert value is not None, f"{op.name}.{key}"
        return self.constant(f"{op.name}.{key}", np.asarray(value, np.float32))

    def per_channel(self, op: Op, key: str) -> str:
        """Return the name of a weight that has one number a channel, shaped so that it meets the channels of the operator's result."""
        values = np.asarray(self.weights[op.name][key], np.float32)
        return self.constant(f"{op.name}.{key}", values.reshape(-1, *[1] * (len(op.shape) - 2)))

    def typed_weight(self, op: Op, key: str, dtype: str) -> str:
        """Return the name of a weight in the type that its operator's calls read."""
        return self.constant(f"{op.name}.{key}", np.asarray(self.weights[op.name][key]).astype(dtype))

    def number(self, op: Op, key: str, value: float) -> str:
        """Return the name of a single real number, called after the operator."""
        return self.constant(f"{op.name}.{key}", np.array(value, np.float32))

    def indices(self, op: Op, key: str, values: Iterable[int]) -> str:
        """Return the name of a list of whole numbers, such as sizes or axes, called after the operator."""
        return self.constant(f"{op.name}.{key}", np.array(list(values), np.int64))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add an initialiser; gives its name."""
        from onnx import numpy_helper

        self.initialisers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, op: Op, inputs: Iterable[str], output: str | None = None, **attributes: Any) -> None:
        """Add a node of an operator.

        Args:
            kind: Of the node, such as ``Conv``.
            output: Of its result; the operator's own if None.
        """
        from onnx import helper

        name = op.name if output is None else f"{op.name}.{kind.lower()}"
        if name in self._named:
            name = output or op.name
        self._named.add(name)
        self.nodes.append(helper.make_node(kind, list(inputs), [output or op.name], name=name, **attributes))

    def graft(self, op: Op, nodes: "Iterable[onnx.NodeProto]", constants: "Iterable[onnx.TensorProto]", names: Mapping[str, str]) -> None:
        """Add nodes that another exporter wrote for an operator.

        Args:
            names: Names of tensors here; every other tensor gets a name within the operator's.
        """
        from onnx import TensorProto, helper

        def name(tensor: str) -> str:
            return names.get(tensor, f"{op.name}.{tensor}") if tensor else ""

        for tensor in constants:
            initialiser = TensorProto()
            initialiser.CopyFrom(tensor)
            initialiser.name = name(tensor.name)
            self.initialisers.append(initialiser)
        for number, node in enumerate(nodes):
            grafted = helper.make_node(node.op_type, [*map(name, node.input)], [*map(name, node.output)], f"{op.name}.{number}")
            grafted.attribute.extend(node.attribute)
            self.nodes.append(grafted)
