"""Bands of rows below each other: the branches compute parts of one image, and together the whole, exactly."""

from collections.abc import Sequence
from typing import Any

from predictors.join import Join, Meeting, joins, meetings
from predictors.shapes import Shape


def _problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    if layout not in ("NCHW", "NHWC"):
        return f" has layout {layout}, in which bands cannot be put below each other"
    shapes = [list(shape) for shape in (*inputs, output)]
    if any(len(shape) != 4 for shape in shapes):
        return " joins tensors without rows"
    row = {"NCHW": 2, "NHWC": 1}[layout]
    heights = [shape.pop(row) for shape in shapes]
    if any(shape != shapes[-1] for shape in shapes) or sum(heights[:-1]) != heights[-1]:
        return f": rows {' + '.join(map(str, heights[:-1]))} do not give a tensor of shape {list(output)}"
    return None


def _combine(parts: Sequence[Any], axis: int, out: Any) -> Any:
    import numpy as np

    return np.concatenate(parts, axis=axis, out=out)


meetings.register("rows")(
    Meeting(
        "concat_rows",
        kernel="copy",
        reads=lambda branches: 1,
        in_place=True,
        combine=_combine,
        problem=_problem,
        reason="branches compute bands of rows, which lie below each other",
        axes={"NCHW": 2, "NHWC": 1},
    )
)
joins.register("rows")(Join("rows", bands=True))
