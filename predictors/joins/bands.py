"""Bands of rows below each other: the branches compute parts of one image, and together the whole, exactly."""

from collections.abc import Sequence

from predictors.join import Join, Meeting, combine, joins, meetings, misfit
from predictors.shapes import Shape

#: Where the rows of an image are, by layout.
ROWS = {"NCHW": 2, "NHWC": 1}


def _problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    if layout not in ROWS:
        return f" has layout {layout}, in which bands cannot be put below each other"
    if any(len(shape) != 4 for shape in (*inputs, output)):
        return " joins tensors without rows"
    return misfit(inputs, output, ROWS[layout], "rows")


meetings.register("rows")(
    Meeting(
        "concat_rows",
        kernel="copy",
        reads=lambda branches: 1,
        in_place=True,
        combine=combine,
        problem=_problem,
        reason="branches compute bands of rows, which lie below each other",
        axes=ROWS,
    )
)
joins.register("rows")(Join("rows", exact=True))
