"""Outputs added up, each after a 1×1 convolution to the full width."""

from collections.abc import Sequence
from typing import Any

from predictors.join import Join, Meeting, joins, meetings
from predictors.shapes import Shape


def _problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    return " adds tensors of different shapes" if any(shape != output for shape in inputs) else None


def _combine(parts: Sequence[Any], axis: int) -> Any:
    import numpy as np

    return np.sum(np.stack(parts), axis=0)


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
joins.register("sum")(Join("sum", convolves=True, whole=True))
