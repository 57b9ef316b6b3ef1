"""Normalisations: by trained statistics, over the channels of a pixel, and softmax over them."""

from collections.abc import Sequence

from predictors.channels import same_channels
from predictors.kinds import Kind, kinds
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape
from predictors.slices import Additive, same_slice


def _affine(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    c = (ins[0][1],)
    return {"weight": c, "bias": c} if attrs["affine"] else {}


def _with_statistics(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    c = (ins[0][1],)
    return _affine(ins, attrs) | {"running_mean": c, "running_var": c}


kinds.register("batch_norm")(
    Kind(
        weights=_with_statistics,
        channels=same_channels,
        rows=same_rows,
        slices=same_slice,
        additive=Additive(offsets=("bias", "running_mean")),
        elementwise=True,
        folds=True,
    )
)
# Every output channel of those below depends on all channels of its pixel.
kinds.register("layer_norm")(Kind(weights=_affine, channels=same_channels, rows=same_rows))
for name in ("softmax", "log_softmax"):
    kinds.register(name)(Kind(rows=same_rows))
