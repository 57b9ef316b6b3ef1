"""What computes nothing at inference: the input, and operators that return what they read."""

from collections.abc import Sequence

from predictors.channels import fresh, same_channels
from predictors.kinds import UNLAUNCHED, Kind, kinds
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape, ints
from predictors.slices import Additive, same_slice


def _given(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    return ints(attrs, "shape")


kinds.register("input")(Kind(_given, channels=fresh, min_inputs=0, traits=frozenset({UNLAUNCHED})))
for name in ("dropout", "stochastic_depth", "identity"):
    kinds.register(name)(
        Kind(
            channels=same_channels,
            rows=same_rows,
            slices=same_slice,
            additive=Additive(),
            elementwise=True,
            identity=True,
            traits=frozenset({UNLAUNCHED}),
        )
    )
