"""What a subgraph is, ready to be written: operators, weights, scales."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from predictors.graph import OpGraph
from stretch.formats.tflite.writer import Quant

Array = NDArray[Any]


@dataclass(frozen=True)
class RoundedWeights:
    """Weights in int8: real = scale of the output channel · integer."""

    values: Array  # int8, output channels first.
    scales: Array  # One for each output channel, or one for all.


@dataclass
class SubgraphSource:
    """One subgraph."""

    graph: OpGraph  # Its operators, batch-norms folded where something takes them up.
    weights: dict[str, dict[str, Array]]  # Float32 by operator and key.
    scales: dict[str, Quant] = field(default_factory=dict)  # Of tensors that are rounded, by the operator that writes them.
    integers: dict[str, RoundedWeights] = field(default_factory=dict)  # Weights as they were rounded, by operator.
