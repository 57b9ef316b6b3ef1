"""Outputs side by side: as they are, or each after a 1×1 convolution of its own."""

from collections.abc import Sequence

from predictors.join import Join, Meeting, combine, joins, meetings, misfit
from predictors.shapes import Shape


def _problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    channel = meetings.get("concat").axes.get(layout)
    if channel is None:
        return f" has layout {layout}, in which tensors cannot be put side by side"
    if any(len(shape) < 2 for shape in (*inputs, output)):
        return " joins tensors without channels"
    return misfit(inputs, output, channel, "channels")


meetings.register("concat")(
    Meeting(
        "concat",
        kernel="copy",
        reads=lambda branches: 1,
        in_place=True,
        combine=combine,
        problem=_problem,
        reason="branches write into their slice, nothing is copied",
    )
)
joins.register("concat")(Join("concat"))
joins.register("project")(Join("concat", convolves=True))
