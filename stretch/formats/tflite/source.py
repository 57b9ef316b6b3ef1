"""What a subgraph is, ready to be written: operators, weights, scales."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from predictors.graph import OpGraph
from stretch.formats.tflite.writer import Quant

Array = NDArray[Any]


@dataclass(frozen=True)
class Rounded:
    """Weights in int8: real = scale of the output channel · integer.

    Args:
        values: int8, output channels first.
        scales: One for each output channel, or one for all.
    """

    values: Array
    scales: Array


@dataclass
class Source:
    """One subgraph.

    Args:
        graph: Its operators, batch-norms folded where something takes them up.
        weights: Float32 by operator and key.
        scales: Of tensors that are rounded, by the operator that writes them.
        integers: Weights as they were rounded, by operator.
    """

    graph: OpGraph
    weights: dict[str, dict[str, Array]]
    scales: dict[str, Quant] = field(default_factory=dict)
    integers: dict[str, Rounded] = field(default_factory=dict)
