"""Normalisations: by trained statistics, over the channels of a pixel, and softmax over them."""

from collections.abc import Sequence

from predictors.channels import Groups, Narrowed, OperatorView, Pieces, freeze_all, same_channels
from predictors.kinds import Kind, kinds
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape, integer
from predictors.slices import Additive, Channels, Slice, all_channels, same_slice


def _affine(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    c = (ins[0][1],)
    return {"weight": c, "bias": c} if attrs["affine"] else {}


def _with_statistics(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    c = (ins[0][1],)
    return _affine(ins, attrs) | {"running_mean": c, "running_var": c}


def _grouped_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    groups = integer(attrs, "groups")
    if groups < 1 or ins[0][1] % groups:
        raise ValueError(f"{groups} groups do not divide {ins[0][1]} channels")
    return ins[0]


def _grouped_channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Return the input's channels: free for one group; for several groups, each keeps its number of channels."""
    count = integer(view.attrs, "groups")
    if count > 1 and (len(ins[0]) != 1 or not groups.tie(ins[0], count)):
        return freeze_all(groups, view, ins)
    return ins[0]


def _grouped_scaled(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    count = integer(attrs, "groups")
    return attrs if count == 1 else {**attrs, "groups": narrowed.after * count // narrowed.before}


def _grouped_slices(view: OperatorView, requested: Channels) -> Slice:
    """Return the whole groups that contain the requested channels."""
    count = integer(view.attrs, "groups")
    if count == 1:
        return all_channels(view, requested)
    per = view.shape[1] // count
    first, stop = requested.start // per, -(-requested.stop // per)
    part = Channels(first * per, stop * per)
    return Slice((part,), part, {**view.attrs, "groups": stop - first})


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
# Every output channel of the kinds below depends on all channels of its pixel.
kinds.register("layer_norm")(Kind(weights=_affine, channels=same_channels, rows=same_rows))
kinds.register("group_norm")(
    Kind(_grouped_shape, weights=_affine, channels=_grouped_channels, slices=_grouped_slices, scaled=_grouped_scaled)
)
for name in ("softmax", "log_softmax"):
    kinds.register(name)(Kind(rows=same_rows))
