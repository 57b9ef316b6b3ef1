"""Outputs side by side: as they are, or each after a 1×1 convolution of its own."""

from collections.abc import Sequence
from typing import Any

from predictors.join import Join, Meeting, joins, meetings
from predictors.shapes import Shape


def _problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    channel = meetings.get("concat").axes.get(layout)
    if channel is None:
        return f" has layout {layout}, in which tensors cannot be put side by side"
    shapes = [list(shape) for shape in (*inputs, output)]
    if any(len(shape) < 2 for shape in shapes):
        return " joins tensors without channels"
    widths = [shape.pop(channel) for shape in shapes]
    if any(shape != shapes[-1] for shape in shapes) or sum(widths[:-1]) != widths[-1]:
        return f": channels {' + '.join(map(str, widths[:-1]))} do not give a tensor of shape {list(output)}"
    return None


def _combine(parts: Sequence[Any], axis: int, out: Any) -> Any:
    import numpy as np

    return np.concatenate(parts, axis=axis, out=out)


meetings.register("concat")(
    Meeting(
        "concat",
        kernel="copy",
        reads=lambda branches: 1,
        in_place=True,
        combine=_combine,
        problem=_problem,
        reason="branches write into their slice, nothing is copied",
    )
)
joins.register("concat")(Join("concat"))
joins.register("project")(Join("concat", convolves=True))
