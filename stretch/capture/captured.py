"""A captured network."""

from dataclasses import dataclass, field

import torch
from torch import nn

from predictors.graph import OpGraph
from stretch.capture.structure import Result, Returned

Weights = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Captured:
    """A network as data."""

    graph: OpGraph  # Its operators.
    #: Per operator, its weights and statistics by name (shapes are those of `OpGraph.op_weights`); the tensors are the module's own.
    weights: Weights
    module: nn.Module  # The network itself.
    refusal: str = ""  # Why tracing could not capture it, so that some of its operators may be opaque; empty where it could.
    #: What it returns; one tensor, or several as a tuple, where nothing else is known.
    returned: Returned = field(default=None)  # type: ignore[assignment]
    warnings: tuple[str, ...] = ()  # What a person should know of how it was captured.

    def __post_init__(self) -> None:
        """Say what is returned where nobody did."""
        if self.returned is None:
            object.__setattr__(self, "returned", returned_by(self.graph))

    @property
    def opaque(self) -> tuple[str, ...]:
        """Names of the operators that no family describes: nothing scales or divides them."""
        return tuple(op.name for op in self.graph.ops if op.kind == "opaque")


def returned_by(graph: OpGraph) -> Returned:
    """What a graph's network returns where nothing else is known: its output, or a tuple of several."""
    results = tuple(Result(name, f"output_{i}") for i, name in enumerate(graph.outputs))
    return Returned(results if len(results) > 1 else Result(results[0].name, "output"))
