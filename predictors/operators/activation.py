"""Activations: one input, element by element."""

from collections.abc import Sequence

from predictors.channels import same_channels
from predictors.kinds import POINTWISE, RECTIFIER, Kind, kinds
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape


def _slopes(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {"weight": (ins[0][1],)}


for name in ("relu", "relu6"):
    kinds.register(name)(Kind(channels=same_channels, rows=same_rows, elementwise=True, traits=frozenset({POINTWISE, RECTIFIER})))
for name in ("hard_swish", "hard_sigmoid", "silu", "sigmoid", "tanh", "gelu", "elu", "leaky_relu", "mish", "clamp"):
    kinds.register(name)(Kind(channels=same_channels, rows=same_rows, elementwise=True, traits=frozenset({POINTWISE})))
kinds.register("prelu")(Kind(weights=_slopes, channels=same_channels, rows=same_rows, elementwise=True, traits=frozenset({POINTWISE})))
