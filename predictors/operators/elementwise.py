"""Sums, products and quotients: of tensors, with a number, and with a learned number per channel."""

from collections.abc import Sequence

from predictors.channels import same_channels, tied
from predictors.kinds import POINTWISE, Kind, kinds, no_weights
from predictors.rows import same_rows
from predictors.shapes import Attrs, Shape
from predictors.slices import Additive, same_slice


def _broadcast(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    if len({len(s) for s in ins}) != 1:
        raise ValueError(f"its inputs {ins[0]} and {ins[1]} have different ranks")
    out = []
    for sizes in zip(*ins, strict=True):
        wide = max(sizes)
        if any(s not in (1, wide) for s in sizes):
            raise ValueError(f"its inputs {' and '.join(map(str, ins))} differ")
        out.append(wide)
    return tuple(out)


def _factors(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {"weight": (ins[0][1],)}


def _offsets(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    return {"bias": (ins[0][1],)}


for name in ("add", "mul", "div"):
    kinds.register(name)(Kind(_broadcast, channels=tied, rows=same_rows, slices=same_slice, min_inputs=2))
for name, weights, shifts in (
    ("add_scalar", no_weights, True),
    ("mul_scalar", no_weights, False),
    ("scale", _factors, False),
    ("shift", _offsets, True),
):
    kinds.register(name)(
        Kind(
            weights=weights,
            channels=same_channels,
            rows=same_rows,
            slices=same_slice,
            additive=Additive(once=shifts),
            elementwise=True,
            traits=frozenset({POINTWISE}),
        )
    )
