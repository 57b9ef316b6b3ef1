"""The input rows that an operator reads for a band of rows of its output.

Bands of one image can be computed separately by different processors, and the
results equal those of the whole image to the last bit. Rows that two bands
read are the *halo*; they are computed twice if an operator wrote them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from predictors.shapes import Attrs, Shape, ints


@dataclass(frozen=True)
class Rows:
    """Rows from `start` up to, but not including, `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Band:
    """Operators that compute a band of an operator's output."""

    reads: tuple[Rows, ...]  # Rows read of each input.
    attrs: Attrs = field(default_factory=dict)  # Attributes of the operator for these rows: it pads only at the borders of the image.
    skip: int = 0  # Number of computed rows before the band.


#: Rule that returns the band of input rows from input shapes, attributes and rows of the output.
RowRule = Callable[[Sequence[Shape], Attrs, Rows], Band]


def height(shape: Shape) -> int:
    """Return the number of rows of a tensor; 1 for a tensor without height."""
    return shape[2] if len(shape) == 4 else 1


def all_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return all rows of each input: the operator mixes rows, so everything is read and computed."""
    return Band(tuple(Rows(0, height(shape)) for shape in ins), attrs, rows.start)


def same_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the same rows of each input, or the only row of a broadcast input."""
    tallest = max(map(height, ins), default=1)
    return Band(tuple(rows if height(shape) == tallest else Rows(0, height(shape)) for shape in ins), attrs)


def window_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the rows read by windows of ``kernel`` rows that move by ``stride`` over an image with ``padding``.

    If `ceil_mode` cuts the windows of a band short at the last row, the band begins with earlier windows, which are skipped:
    runtimes refuse an input that is smaller than the window.
    """
    (size,) = map(height, ins)
    kernel, stride = ints(attrs, "kernel")[0], ints(attrs, "stride")[0]
    dilation = ints(attrs, "dilation")[0] if "dilation" in attrs else 1
    top, left, bottom, right = ints(attrs, "padding")
    span = dilation * (kernel - 1) + 1
    # padding that `ceil_mode` adds beyond the stated one is not a row
    end = min((rows.stop - 1) * stride - top + span, size + bottom)
    start = max(0, min(rows.start, (end + top - span) // stride))
    first = start * stride - top
    above, below = max(0, min(end, 0) - first), max(0, end - max(first, size))
    reads = Rows(min(max(first, 0), size), min(max(end, 0), size))
    return Band((reads,), {**attrs, "padding": (above, left, below, right)}, rows.start - start)


def padded_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the rows read by padding: row i reads row i − top, and rows of the padding read none."""
    alone = {**attrs, "kernel": (1, 1), "stride": (1, 1)}
    band = window_rows(ins, alone, rows)
    return Band(band.reads, {**attrs, "padding": band.attrs["padding"]})


def enlarged_rows(ins: Sequence[Shape], attrs: Attrs, rows: Rows) -> Band:
    """Return the rows read by enlarging: row i reads row ⌊i / scale⌋; all copies of the first row are computed."""
    scale = ints(attrs, "scale")[0]
    start = rows.start // scale
    return Band((Rows(start, -(-rows.stop // scale)),), attrs, rows.start - start * scale)
