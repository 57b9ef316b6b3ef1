"""Activations that exporters write in several nodes, found by what is multiplied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import pi, sqrt
from typing import Any

import numpy as np
import torch.nn.functional as F

#: Relative error of a number that was written in half or single precision.
_CLOSE = 1e-3


@dataclass(frozen=True)
class Activation:
    """What several nodes are together."""

    function: Callable[..., Any]  # Of torch, of one tensor.
    x: str  # Name of that tensor.
    settings: Mapping[str, str] = field(default_factory=dict)  # Its other arguments.


class Finder:
    """Finds activations in the nodes of one file.

    Args:
        nodes: The node that writes each tensor.
        numbers: Single numbers that the file stores, by name.
    """

    def __init__(self, nodes: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        self._nodes, self._numbers = nodes, numbers

    def find(self, last: Any) -> Activation | None:
        """The activation that ends with this node, or None."""
        factor, core = self._scaled_by(last, last.output[0])
        if _near(factor, 1 / 6) and (x := self._shifted_relu6(core)) is not None:
            return Activation(F.hardsigmoid, x)
        node = last if core == last.output[0] else self._nodes.get(core)
        if node is None or node.op_type != "Mul" or len(node.input) != 2:
            return None
        for one, other in (tuple(node.input), tuple(node.input)[::-1]):
            # A number may be written beside either of them, or be part of what is multiplied.
            for (first, x), (second, gate) in product(((1.0, one), self._scaled(one)), ((1.0, other), self._scaled(other))):
                found = self._gated(x, gate, factor * first * second)
                if found is not None:
                    return found
        return None

    def _gated(self, x: str, gate: str, factor: float) -> Activation | None:
        """X times a gate of it: SiLU, hard swish, Mish, GELU."""
        node = self._nodes.get(gate)
        kind = "" if node is None else node.op_type
        if _near(factor, 1) and kind == "Sigmoid" and node.input[0] == x:
            return Activation(F.silu, x)
        if _near(factor, 1) and kind == "HardSigmoid" and node.input[0] == x and _of_sixths(node):
            return Activation(F.hardswish, x)
        if _near(factor, 1 / 6) and self._shifted_relu6(gate) == x:
            return Activation(F.hardswish, x)
        if _near(factor, 1) and kind == "Tanh" and self._read_by("Softplus", node.input[0]) == x:
            return Activation(F.mish, x)
        if _near(factor, 0.5) and self._erf_gate(gate) == x:
            return Activation(F.gelu, x)
        if _near(factor, 0.5) and self._tanh_gate(gate) == x:
            return Activation(F.gelu, x, {"approximate": "tanh"})
        return None

    def _scaled(self, tensor: str) -> tuple[float, str]:
        """The number and the tensor that a tensor is the product of."""
        return self._scaled_by(self._nodes.get(tensor), tensor)

    def _scaled_by(self, node: Any, tensor: str) -> tuple[float, str]:
        if node is None or node.op_type not in ("Mul", "Div") or len(node.input) != 2:
            return 1.0, tensor
        left, right = node.input
        if node.op_type == "Mul" and left in self._numbers:
            left, right = right, left
        number = self._numbers.get(right)
        if number is None or (node.op_type == "Div" and not number):
            return 1.0, tensor
        factor, core = self._scaled(left)
        return (factor * number if node.op_type == "Mul" else factor / number), core

    def _sum(self, tensor: str) -> tuple[str, float] | None:
        """The tensor and the number whose sum a tensor is."""
        node = self._nodes.get(tensor)
        if node is None or node.op_type != "Add":
            return None
        for x, number in (tuple(node.input), tuple(node.input)[::-1]):
            if number in self._numbers and x not in self._numbers:
                return x, self._numbers[number]
        return None

    def _shifted_relu6(self, tensor: str) -> str | None:
        """X of min(max(x + 3, 0), 6)."""
        node = self._nodes.get(tensor)
        if node is None or node.op_type != "Clip" or self._bounds(node) != (0, 6):
            return None
        found = self._sum(node.input[0])
        return found[0] if found is not None and _near(found[1], 3) else None

    def _bounds(self, node: Any) -> tuple[float | None, float | None]:
        """Bounds of a Clip: inputs, or attributes before opset 11."""
        stated = {each.name: each.f for each in node.attribute}
        low, high = (
            self._numbers.get(node.input[i]) if i < len(node.input) and node.input[i] else stated.get(name)
            for i, name in ((1, "min"), (2, "max"))
        )
        return low, high

    def _read_by(self, kind: str, tensor: str) -> str | None:
        """What the node of this kind reads that writes a tensor."""
        node = self._nodes.get(tensor)
        return str(node.input[0]) if node is not None and node.op_type == kind else None

    def _one_less(self, tensor: str) -> str:
        """T of t + 1."""
        found = self._sum(tensor)
        return found[0] if found is not None and _near(found[1], 1) else ""

    def _erf_gate(self, tensor: str) -> str | None:
        """X of erf(x / √2) + 1 (Hendrycks and Gimpel, GELU, section 2)."""
        read = self._read_by("Erf", self._one_less(tensor))
        factor, x = self._scaled(read or "")
        return x if _near(factor, 1 / sqrt(2)) else None

    def _tanh_gate(self, tensor: str) -> str | None:
        """X of tanh(√(2 / π) · (x + 0.044715 · x³)) + 1 (Hendrycks and Gimpel, GELU, section 2)."""
        read = self._read_by("Tanh", self._one_less(tensor))
        factor, total = self._scaled(read or "")
        node = self._nodes.get(total)
        if not _near(factor, sqrt(2 / pi)) or node is None or node.op_type != "Add":
            return None
        for x, cube in (tuple(node.input), tuple(node.input)[::-1]):
            share, power = self._scaled(cube)
            raised = self._nodes.get(power)
            if _near(share, 0.044715) and raised is not None and raised.op_type == "Pow" and raised.input[0] == x:
                return str(x) if self._numbers.get(raised.input[1]) == 3 else None
        return None


def _near(number: float, wanted: float) -> bool:
    return abs(number - wanted) <= _CLOSE * abs(wanted)


def _of_sixths(node: Any) -> bool:
    """Whether a HardSigmoid has the slope that hard swish is made of."""
    stated = {each.name: each.f for each in node.attribute}
    return _near(stated.get("alpha", 0.2), 1 / 6) and _near(stated.get("beta", 0.5), 0.5)


def numbers(stored: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Stored tensors of one number."""
    return {name: float(x.ravel()[0]) for name, x in stored.items() if x.size == 1 and x.dtype.kind in "fi"}
