"""Which rows of its inputs an operator reads for a band of rows of its output.

Bands of one image can be computed apart from each other, by different
processors, and the results are those of the whole image to the last bit. Rows
that two bands read are the *halo*, computed twice where an operator wrote them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from predictors.shapes import Attrs, Shape, ints


@dataclass(frozen=True)
class Rows:
    """Rows `start` up to `stop`, the last one left out."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return how many."""
        return self.stop - self.start


@dataclass(frozen=True)
class Band:
    """Operators that compute a band of an operator's output."""

    reads: tuple[Rows, ...]  # The rows that are needed of each input.
    attrs: Attrs = field(default_factory=dict)  # Attributes with which the operator reads them: it pads only where the image ends.
    skip: int = 0  # Computed rows that lie before the band.


#: Rule that gives the band of input rows from input shapes, attributes and rows of the output.
RowRule = Callable[[Sequence[Shape], Attrs, Rows], Band]


def height(shape: Shape) -> int:
    """Return the rows of a tensor; one without height has one."""
    return shape[2] if len(shape) == 4 else 1


def all_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the rows are mixed: everything is read and computed."""
    return Band(tuple(Rows(0, height(shape)) for shape in ins), attrs, rows.start)


def same_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the row i reads row i of each input, or the only row of one that is broadcast."""
    tallest = max(map(height, ins), default=1)
    return Band(tuple(rows if height(shape) == tallest else Rows(0, height(shape)) for shape in ins), attrs)


def window_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return a window of ``kernel`` rows that moves by ``stride``, over an image with ``padding``.

    A band of windows that `ceil_mode` cuts short at the last row begins with earlier windows, which are skipped:
    runtimes refuse an input that is smaller than the window.
    """
    (size,) = map(height, ins)
    kernel, stride = ints(attrs, "kernel")[0], ints(attrs, "stride")[0]
    dilation = ints(attrs, "dilation")[0] if "dilation" in attrs else 1
    top, left, bottom, right = ints(attrs, "padding")
    span = dilation * (kernel - 1) + 1
    # padding that `ceil_mode` adds beyond the stated one is no row
    end = min((rows.stop - 1) * stride - top + span, size + bottom)
    start = max(0, min(rows.start, (end + top - span) // stride))
    first = start * stride - top
    above, below = max(0, min(end, 0) - first), max(0, end - max(first, size))
    reads = Rows(min(max(first, 0), size), min(max(end, 0), size))
    return Band((reads,), {**attrs, "padding": (above, left, below, right)}, rows.start - start)


def padded_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the rows that each row reads: row i reads row i − top, and none inside the padding."""
    alone = {**attrs, "kernel": (1, 1), "stride": (1, 1)}
    band = window_rows(ins, alone, rows)
    return Band(band.reads, {**attrs, "padding": band.attrs["padding"]})


def enlarged_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the row i reads row ⌊i / scale⌋; of the first one all copies are made."""
    scale = ints(attrs, "scale")[0]
    start = rows.start // scale
    return Band((Rows(start, -(-rows.stop // scale)),), attrs, rows.start - start * scale)
