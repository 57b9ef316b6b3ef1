"""Collects the nodes and initialisers of one ONNX graph."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictors.graph import Op

# Only for type hints: this module is imported long before a file is written, and importing onnx takes a while.
if TYPE_CHECKING:
    import onnx

#: HardSwish needs opset 14, Gelu 20; newer features are not used.
OPSET = 20

#: Arrays by operator and key; those of operator families are float32.
Arrays = Mapping[str, Mapping[str, NDArray[Any]]]


class OnnxWriter:
    """An ONNX graph under construction.

    Attributes:
        nodes: Nodes so far, in order.
        initialisers: Weights and constants of the nodes.
    """

    def __init__(self, weights: Arrays) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self._named: set[str] = set()

    def weight(self, op: Op, key: str, fill: float | None = None) -> str:
        """Add an operator's weight as an initialiser, and return its name."""
        value = self.weights.get(op.name, {}).get(key)
        if value is None and fill is not None:
            value = np.full(op.shape[1], fill, np.float32)
        assert value is not None, f"{op.name}.{key}"
        return self.constant(f"{op.name}.{key}", np.asarray(value, np.float32))

    def per_channel(self, op: Op, key: str) -> str:
        """Add a weight with one number per channel, shaped to broadcast over the operator's result, and return its name."""
        values = np.asarray(self.weights[op.name][key], np.float32)
        return self.constant(f"{op.name}.{key}", values.reshape(-1, *[1] * (len(op.shape) - 2)))

    def typed_weight(self, op: Op, key: str, dtype: str) -> str:
        """Add a weight in the data type that its operator's calls read, and return its name."""
        return self.constant(f"{op.name}.{key}", np.asarray(self.weights[op.name][key]).astype(dtype))

    def number(self, op: Op, key: str, value: float) -> str:
        """Add a single real number, named after the operator, and return its name."""
        return self.constant(f"{op.name}.{key}", np.array(value, np.float32))

    def indices(self, op: Op, key: str, values: Iterable[int]) -> str:
        """Add a list of whole numbers, such as sizes or axes, named after the operator, and return its name."""
        return self.constant(f"{op.name}.{key}", np.array(list(values), np.int64))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add an initialiser, and return its name."""
        from onnx import numpy_helper

        self.initialisers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, op: Op, inputs: Iterable[str], output: str | None = None, **attributes: Any) -> None:
        """Add a node for an operator.

        Args:
            kind: Type of the node, such as ``Conv``.
            output: Name of the result; the operator's own if None.
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
            names: New names of tensors; every other tensor gets a name within the operator's.
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
