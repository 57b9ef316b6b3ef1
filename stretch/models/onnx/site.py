"""Nodes of an ONNX file on their way into a torch network: what a rule reads, and how it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from predictors.errors import StretchError
from predictors.registry import RuleTable
from stretch.models.builder import Builder, shape_of
from stretch.models.inputs import OperatorInputs
from stretch.models.onnx.steps import Rounded, Steps

#: What a node reads: a tensor of the running network, a stored one, or nothing.
Value = fx.Node | np.ndarray | None


@dataclass(frozen=True)
class OnnxSite(OperatorInputs[fx.Node]):
    """One node with what it reads."""

    op: str  # Its operator.
    name: str  # Its own, or that of what it writes.
    attrs: Mapping[str, Any]  # Its attributes; words are strings.
    results: int  # How many tensors it writes.
    opset: int  # Of its file.
    builder: Builder  # What its rule writes into.
    steps: Sequence[Steps | None] = ()  # For each input that is rounded to bytes in the file, what they stand for.

    @property
    def x(self) -> fx.Node:
        """Its first input as a tensor of the network."""
        return self.tensor(0)

    def tensor(self, i: int) -> fx.Node:
        """Input `i` as a tensor of the network, a stored one among its parameters."""
        value = self.value(i)
        if value is None:
            raise StretchError(f"it has no input {i}")
        return value if isinstance(value, fx.Node) else self.builder.stored(value, f"{self.name}_{i}")

    def steps_of(self, i: int) -> Steps | None:
        """What the bytes of input `i` stand for; None if it is none of bytes that the network computes."""
        return self.steps[i] if i < len(self.steps) else None

    def numbers(self, name: str, i: int) -> list[int] | None:
        """Whole numbers that are an attribute, or a stored input in later opsets; None where both are left out."""
        if self.value(i) is not None:
            return [int(n) for n in self.known(i, name).ravel()]
        return None if name not in self.attrs else [int(n) for n in self.attrs[name]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its first input."""
        return shape_of(self.x)

    def pair(self, name: str, usual: int = 1) -> list[int]:
        """A number for each axis of a window."""
        axes = len(self.shape) - 2
        numbers = [int(n) for n in self.attrs.get(name, [usual] * axes)]
        if len(numbers) != axes:
            raise StretchError(f"its {name} is {numbers} for {axes} axes")
        return numbers


#: One result of a node: computed, rounded in the file besides, or known already.
Result = fx.Node | Rounded | np.ndarray

#: Writes what a node computes, and gives its results.
Rule = Callable[[OnnxSite], Result | Sequence[Result]]

#: Rules by the name of the operator, which has its domain before it where that is not ONNX's own (`com.microsoft.QGemm`);
#: every file of this package adds its own.
RULES: RuleTable[Rule] = RuleTable()

#: Operators whose rules say what the bytes stand for that they make; of all others `steps.MOVING` names those that may read any.
ROUNDING: set[str] = set()


def rule(*names: str, rounding: bool = False) -> Callable[[Rule], Rule]:
    """Decorator for the rule of operators of these names; `rounding` if it says what bytes stand for."""
    if rounding:
        ROUNDING.update(names)
    return RULES.add(*names)
