"""Nodes and initialisers of one ONNX graph, collected."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from predictors.graph import Op

#: Float32 arrays by operator and key.
Arrays = Mapping[str, Mapping[str, NDArray[np.float32]]]


class OnnxWriter:
    """An ONNX graph under construction.

    Args:
        weights: Of all operators.

    Attributes:
        nodes: Those written so far, in order.
        initialisers: Weights and constants that they read.
    """

    def __init__(self, weights: Arrays) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []

    def weight(self, op: Op, key: str, fill: float | None = None) -> str:
        """Name of an operator's weight, now an initialiser.

        Args:
            op: The operator.
            key: Of its weights.
            fill: What each channel has where the operator has no such weight.
        """
        value = self.weights.get(op.name, {}).get(key)
        if value is None and fill is not None:
            value = np.full(op.shape[1], fill, np.float32)
        assert value is not None, f"{op.name}.{key}"
        return self.constant(f"{op.name}.{key}", np.ascontiguousarray(value, dtype=np.float32))

    def per_channel(self, op: Op, key: str) -> str:
        """Name of a weight that has one number a channel, shaped so that it meets the channels of the operator's result."""
        values = np.asarray(self.weights[op.name][key], np.float32).reshape(-1, *[1] * (len(op.shape) - 2))
        return self.constant(f"{op.name}.{key}", np.ascontiguousarray(values))

    def number(self, op: Op, key: str, value: float) -> str:
        """Name of a single real number, called after the operator."""
        return self.constant(f"{op.name}.{key}", np.array(value, np.float32))

    def indices(self, op: Op, key: str, values: Iterable[int]) -> str:
        """Name of a list of whole numbers, such as sizes or axes, called after the operator."""
        return self.constant(f"{op.name}.{key}", np.array(list(values), np.int64))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add an initialiser of int64 or float32; gives its name."""
        dtype = TensorProto.INT64 if value.dtype == np.int64 else TensorProto.FLOAT
        self.initialisers.append(helper.make_tensor(name, dtype, value.shape, value.tobytes(), raw=True))
        return name

    def node(self, kind: str, op: Op, inputs: Iterable[str], output: str | None = None, **attributes: Any) -> None:
        """Add a node of an operator.

        Args:
            kind: Of the node, such as ``Conv``.
            op: The operator.
            inputs: Names of tensors.
            output: Of its result; the operator's own if None.
            attributes: Of the node.
        """
        suffix = "" if output is None else f".{kind.lower()}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output or op.name], name=op.name + suffix, **attributes))
