"""Operators on bands of rows: cutting one out, and putting several together again.

They are what exact row branches consist of beside the operators of the network.
"""

from collections.abc import Sequence

from predictors.channels import same_channels
from predictors.kinds import Kind, kinds, per_channel
from predictors.rows import Band, Rows
from predictors.shapes import Attrs, Shape, integer, rank4
from predictors.slices import same_slice


def _slice(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = rank4(ins[0])
    start, stop = integer(attrs, "start"), integer(attrs, "stop")
    if not 0 <= start < stop <= h:
        raise ValueError(f"rows {start} to {stop} are not in {ins[0]}")
    return (n, c, stop - start, w)


def _concat(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, _, w = rank4(ins[0])
    for other in ins[1:]:
        if rank4(other)[:2] != (n, c) or other[3] != w:
            raise ValueError(f"its inputs {ins[0]} and {other} differ in more than rows")
    return (n, c, sum(shape[2] for shape in ins), w)


def _sliced_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """The band of the band: cut out of what is read, so that nothing is cut any more."""
    start = integer(attrs, "start")
    return Band((Rows(start + rows.start, start + rows.stop),), {**attrs, "start": 0, "stop": len(rows)})


_COPY = per_channel("copy")

kinds.register("slice_rows")(Kind(_slice, channels=same_channels, rows=_sliced_rows, slices=same_slice, work=_COPY))
# Which of its inputs a band lies in decides what is read: bands of joined bands are cut from the whole.
kinds.register("concat_rows")(Kind(_concat, channels=same_channels, slices=same_slice, work=_COPY, min_inputs=2))
