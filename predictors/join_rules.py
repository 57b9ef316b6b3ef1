"""Rules of joins, by their names in designs, and of the operators that compute them from the branches' outputs.

Code that looks joins up imports `predictors.joins`, which adds the joins in operators' files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from predictors.registry import Registry
from predictors.shapes import Shape


@dataclass(frozen=True)
class Join:
    """A way to join the branches of a segment, as named in designs."""

    #: Name of the `Meeting` that computes it; None if nothing is joined: there is one branch, or branches pass tensors on.
    meets: str | None
    #: Whether each branch ends with a 1×1 convolution, so that the backbone keeps its width for any branch widths; else it
    #: has the channels of all branches.
    convolves: bool = False
    whole: bool = False  # Whether that convolution writes all channels of the backbone; else only the branch's part.
    adds: bool = False  # Whether the outputs of these convolutions are added, so that their weights are fitted together.
    #: Whether each branch computes a share of the original segment (`stretch.planning.divisions`), and all together the whole segment.
    exact: bool = False

    @property
    def hands_on(self) -> bool:
        """Whether branches pass tensors to each other instead of meeting: the last one writes the segment's output."""
        return self.exact and self.meets is None

    @property
    def divides(self) -> bool:
        """Whether each branch computes a part of the backbone's channels, which a design states."""
        return self.convolves and not self.whole

    @property
    def widens(self) -> bool:
        """Whether the backbone has the channels of all branches, so that widths decide the next segment's input."""
        return self.meets is not None and not self.convolves and not self.exact


@dataclass(frozen=True)
class Meeting:
    """Operator that joins several tensors when the network runs."""

    operator: str  # Kind of the operator in the graph of the whole network.
    kernel: str  # One of `predictors.devices.KERNEL_KINDS`.
    reads: Callable[[int], int]  # Elements read per element written, from the number of branches.
    #: Whether the tensors are slices of the joined tensor, so that a branch may write directly into its slice if that is
    #: contiguous.
    in_place: bool
    #: Returns the joined array, from the branches' arrays, the axis of the join, and the array to write or None for a new one.
    combine: Callable[[Sequence[Any], int, Any], Any]
    #: Reason why tensors of these shapes and this layout do not give one of that shape, as a continuation of "join `name`"; None if
    #: they do.
    problem: Callable[[Sequence[Shape], Shape, str], str | None]
    reason: str  # Description of the operation for people.
    #: Axis of the join by layout; tensors with other layouts cannot be joined this way.
    axes: Mapping[str, int] = field(default_factory=lambda: {"NCHW": 1, "NC": 1, "NHWC": -1})

    def axis(self, layout: str, rank: int) -> int:
        """Return the axis of the join for a layout, counted from the first."""
        return self.axes[layout] % rank

    def copies(self, layout: str) -> bool:
        """Return whether the parts of one image must be copied to become contiguous slices of the joined tensor."""
        return not self.in_place or self.axes.get(layout, 0) != 1


#: Joins and meetings by name; those of operators' files (`predictors.operators`) are added by importing `predictors.joins`.
joins: Registry[Join] = Registry("join")
meetings: Registry[Meeting] = Registry("join")

#: Default join, also where the requested join is impossible: it keeps segments independent.
DEFAULT = "project"

for _name, _join in {
    # one branch: nothing is joined
    "none": Join(None),
    # concatenated, unchanged or each after a 1×1 convolution
    "concat": Join("concat"),
    "project": Join("concat", convolves=True),
    # added, each after a 1×1 convolution to the full width
    "sum": Join("sum", convolves=True, whole=True, adds=True),
    # bands of rows: the branches compute parts of one image, and together the whole image, exactly
    "rows": Join("rows", exact=True),
    # channels of the segment's output, or hidden channels, whose projections are added
    "channels": Join("concat", exact=True),
    "partial_sums": Join("sum", exact=True),
    # the segment's parallel paths, which meet as in the original
    "paths": Join("concat", exact=True),
    "terms": Join("sum", exact=True),
    # portions of the segment pass tensors to each other, and the last one writes the segment's output
    "placed": Join(None, exact=True),
}.items():
    joins.register(_name)(_join)

#: Axis of the rows of an image, by layout.
ROWS = {"NCHW": 2, "NHWC": 1}


def combine(parts: Sequence[Any], axis: int, out: Any) -> Any:
    """Return the concatenation of arrays along an axis, for a `Meeting` that concatenates."""
    import numpy as np

    return np.concatenate(parts, axis=axis, out=out)


def misfit(inputs: Sequence[Shape], output: Shape, axis: int, noun: str) -> str | None:
    """Return why tensors do not concatenate to `output` along an axis, as a continuation of "join `name`"; None if they do.

    Args:
        noun: Noun for the counted things, such as ``rows``.
    """
    shapes = [list(shape) for shape in (*inputs, output)]
    sizes = [shape.pop(axis) for shape in shapes]
    if any(shape != shapes[-1] for shape in shapes) or sum(sizes[:-1]) != sizes[-1]:
        return f": {noun} {' + '.join(map(str, sizes[:-1]))} do not give a tensor of shape {list(output)}"
    return None


def _add(parts: Sequence[Any], axis: int, out: Any) -> Any:
    import numpy as np

    first, second, *others = parts
    total = np.add(first, second, out=out)
    for other in others:
        np.add(total, other, out=total)
    return total


def _sum_problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    return " adds tensors of different shapes" if any(shape != output for shape in inputs) else None


def _concat_problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    channel = meetings.get("concat").axes.get(layout)
    if channel is None:
        return f" has layout {layout}, in which tensors cannot be put side by side"
    if any(len(shape) < 2 for shape in (*inputs, output)):
        return " joins tensors without channels"
    return misfit(inputs, output, channel, "channels")


def _rows_problem(inputs: Sequence[Shape], output: Shape, layout: str) -> str | None:
    if layout not in ROWS:
        return f" has layout {layout}, in which bands cannot be put below each other"
    if any(len(shape) != 4 for shape in (*inputs, output)):
        return " joins tensors without rows"
    return misfit(inputs, output, ROWS[layout], "rows")


meetings.register("sum")(Meeting("add", "elementwise", lambda branches: branches, False, _add, _sum_problem, "branch outputs are added"))
meetings.register("concat")(
    Meeting("concat", "copy", lambda branches: 1, True, combine, _concat_problem, "branches write into their slice, nothing is copied")
)
meetings.register("rows")(
    Meeting(
        "concat_rows",
        "copy",
        lambda branches: 1,
        True,
        combine,
        _rows_problem,
        "branches compute bands of rows, which lie below each other",
        ROWS,
    )
)
