"""Activations: one input, element by element."""

from collections.abc import Sequence

from predictors.channels import same_channels
from predictors.kinds import POINTWISE, RECTIFIER, Kind, kinds
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape
from predictors.slices import same_slice


def _slopes(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {"weight": (ins[0][1],)}


def _register(name: str, *nodes: str, traits: frozenset[str] = frozenset({POINTWISE})) -> None:
    kinds.register(name)(Kind(channels=same_channels, rows=same_rows, slices=same_slice, elementwise=True, nodes=nodes, traits=traits))


_register("relu", "Relu", traits=frozenset({POINTWISE, RECTIFIER}))
_register("relu6", traits=frozenset({POINTWISE, RECTIFIER}))
_register("silu")
_register("clamp")
for name, node in (
    ("hard_swish", "HardSwish"),
    ("hard_sigmoid", "HardSigmoid"),
    ("sigmoid", "Sigmoid"),
    ("tanh", "Tanh"),
    ("gelu", "Gelu"),
    ("elu", "Elu"),
    ("leaky_relu", "LeakyRelu"),
    ("mish", "Mish"),
):
    _register(name, node)
kinds.register("prelu")(
    Kind(weights=_slopes, channels=same_channels, rows=same_rows, slices=same_slice, elementwise=True, traits=frozenset({POINTWISE}))
)
