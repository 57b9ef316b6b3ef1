"""Layer norms that exporters wrote in several nodes, before opset 17 had an operator for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper


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
            found = self._values.get(stored)
            if isinstance(found, np.ndarray) and not isinstance(self._values.get(tensor), np.ndarray):
                return str(tensor), found
        return "", None

    def _mean_of(self, tensor: str, rank: int) -> str | None:
        """What a tensor is the mean of, over the last axis alone."""
        node = self._node(tensor, "ReduceMean")
        if node is None:
            return None
        attrs = {each.name: helper.get_attribute_value(each) for each in node.attribute}
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
