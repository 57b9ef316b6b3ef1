"""Explicit padding where TFLite knows two rules: SAME and VALID."""

from dataclasses import dataclass

import numpy as np

from predictors.graph import Op
from predictors.shapes import Attrs, Shape, ints
from stretch.formats.tflite.builder import TOP, SubgraphBuilder, Value

_SAME, _VALID = 0, 1


@dataclass(frozen=True)
class PaddedWindow:
    """How a window of explicit padding slides in TFLite."""

    padding: int  # ``Padding`` of the schema: 0 is SAME, 1 is VALID.
    before: tuple[int, int]  # Rows and columns to add above and left beforehand; none for SAME.
    after: tuple[int, int]  # The same below and right.

    @property
    def explicit(self) -> bool:
        """Whether an operator of its own has to pad."""
        return any((*self.before, *self.after))


@dataclass(frozen=True)
class SameWindows:
    """Windows of one axis as some of those that SAME gives."""

    before: int  # Rows or columns to add before, which none of these windows reads.
    after: int  # The same behind.
    first: int  # Number of the first window among those of SAME.
    count: int  # Number of windows of SAME.


def within_same(attrs: Attrs, image: Shape, result: Shape, axis: int) -> SameWindows | None:
    """The windows of an axis as some of SAME's, which know what lies outside of the image; None if they are none of them.

    Args:
        attrs: ``kernel``, ``stride``, ``padding`` (top, left, bottom, right).
        image: N×C×H×W.
        axis: 0 for rows, 1 for columns.
    """
    size, wanted = image[axis + 2], result[axis + 2]
    kernel, stride, padding = (ints(attrs, key)[axis] for key in ("kernel", "stride", "padding"))
    # what is added where a window overhangs would count
    more = range(kernel + stride)
    ends_inside = (wanted - 1) * stride - padding + kernel <= size
    for before in more if padding == 0 else (0,):
        for after in more if ends_inside else (0,):
            whole = before + size + after
            count = -(-whole // stride)
            gap = max((count - 1) * stride + kernel - whole, 0) // 2 + before - padding
            if gap >= 0 and gap % stride == 0 and gap // stride + wanted <= count:
                return SameWindows(before, after, gap // stride, count)
    return None


def window(attrs: Attrs, image: Shape, result: Shape, *, same: bool = True) -> PaddedWindow:
    """The rule that gives the same windows as `attrs`, after explicit padding where neither does.

    SAME pads to ⌈size / stride⌉ windows, the odd row or column below and right:
    symmetric padding of an even stride is another one. What no window reads,
    or reads beyond the padding (``ceil_mode``), is left out or added.

    Args:
        attrs: ``kernel``, ``stride``, ``padding`` (top, left, bottom, right) and maybe ``dilation``.
        image: N×C×H×W.
    """
    kernel, stride, padding = ints(attrs, "kernel"), ints(attrs, "stride"), ints(attrs, "padding")
    dilation = ints(attrs, "dilation") if "dilation" in attrs else (1, 1)
    after = []
    for axis in (0, 1):
        size, count = image[axis + 2], result[axis + 2]
        reach = (count - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        total = max(reach - size, 0)
        same = same and count == -(-size // stride[axis]) and padding[axis] == total // 2
        after.append(max(0, reach - size - padding[axis]))
    if not any((*padding[:2], *after)):
        return PaddedWindow(_VALID, (0, 0), (0, 0))
    if same:
        return PaddedWindow(_SAME, (0, 0), (0, 0))
    return PaddedWindow(_VALID, (padding[0], padding[1]), (after[0], after[1]))


def pad(b: SubgraphBuilder, op: Op, x: Value, before: tuple[int, int], after: tuple[int, int], value: float = 0.0) -> Value:
    """Rows and columns around an image, of zeros or of one other number; a negative number of them cuts off."""
    if min(*before, *after) < 0:
        x = _cut(b, op, x, [max(0, -n) for n in before], [max(0, -n) for n in after])
        before, after = (max(0, before[0]), max(0, before[1])), (max(0, after[0]), max(0, after[1]))
        if not any((*before, *after)):
            return x
    n, h, w, c = x.shape
    shape = (n, before[0] + h + after[0], before[1] + w + after[1], c)
    name = f"{op.name}.padded"
    widths = b.indices(f"{name}.widths", [[0, 0], [before[0], after[0]], [before[1], after[1]], [0, 0]])
    if value == 0:
        return b.moved("PAD", name, x, shape, [widths])
    if b.rounded:
        assert x.quant is not None
        lowest = np.array([-128 if value < 0 else TOP], np.int8)
        filler = b.piece.constant(f"{name}.value", lowest, [x.quant.scale], zero_point=x.quant.zero_point)
    else:
        filler = b.piece.constant(f"{name}.value", np.array([value], np.float32))
    return b.moved("PADV2", name, x, shape, [widths, filler])


def _cut(b: SubgraphBuilder, op: Op, x: Value, before: list[int], after: list[int]) -> Value:
    """An image without some rows and columns at its borders."""
    n, h, w, c = x.shape
    shape = (n, h - before[0] - after[0], w - before[1] - after[1], c)
    name = f"{op.name}.cut"
    return b.moved("SLICE", name, x, shape, [b.indices(f"{name}.begin", [0, *before, 0]), b.indices(f"{name}.size", shape)])
