"""Outputs added up, each after a 1×1 convolution to the full width."""

from collections.abc import Sequence
from typing import Any

from predictors.join import Join, Meeting, joins, meetings
from predictors.shapes import Shape


def _problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    return " adds tensors of different shapes" if any(shape != output for shape in inputs) else None


def _combine(parts: Sequence[Any], axis: int, out: Any) -> Any:
    import numpy as np

    first, second, *others = parts
    total = np.add(first, second, out=out)
    for other in others:
        np.add(total, other, out=total)
    return total


meetings.register("sum")(
    Meeting(
        "add",
        kernel="elementwise",
        reads=lambda branches: branches,
        in_place=False,
        combine=_combine,
        problem=_problem,
        reason="branch outputs are added",
    )
)
joins.register("sum")(Join("sum", convolves=True, whole=True, adds=True))
