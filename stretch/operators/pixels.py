"""Operators that put the pixels of every channel elsewhere, in torch and ONNX."""

import torch
from torch import nn

from predictors.graph import Op
from predictors.shapes import Shape, integer, ints
from stretch.formats.onnx import OnnxWriter
from stretch.operators.capturing import modules
from stretch.operators.lowerings import Lowering, lowerings, no_tflite


class Rearrange(nn.Module):
    """Pixels in another order.

    Args:
        split: Sizes of the axes that height and width are seen as.
    """

    def __init__(self, split: Shape, order: Shape, pixels: Shape) -> None:
        super().__init__()
        self.split, self.order, self.pixels = split, order, pixels

    def extra_repr(self) -> str:
        """The axes, their order and the result."""
        return f"{self.split}, order={self.order}, pixels={self.pixels}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the pixels as several axes, order these, and put them together."""
        n, c = x.shape[:2]
        axes = x.reshape(n, c, *self.split).permute(0, 1, *[axis + 2 for axis in self.order])
        return axes.reshape(n, c, *self.pixels)


class Roll(nn.Module):
    """Pixels moved down and to the right, those that leave the image at one border entering at the other."""

    def __init__(self, shift: Shape) -> None:
        super().__init__()
        self.shift = shift

    def extra_repr(self) -> str:
        """Rows and columns."""
        return str(self.shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Roll height and width."""
        return torch.roll(x, self.shift, (2, 3))


class Subsample(nn.Module):
    """Some rows and columns."""

    def __init__(self, start: Shape, stop: Shape, step: Shape) -> None:
        super().__init__()
        self.start, self.stop, self.step = start, stop, step

    def extra_repr(self) -> str:
        """The ranges."""
        return f"{self.start}:{self.stop}:{self.step}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the rows and columns."""
        down, across = (slice(*bounds) for bounds in zip(self.start, self.stop, self.step, strict=True))
        return x[:, :, down, across]


class ChannelsFirst(nn.Module):
    """Tokens as the pixels of a map."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def extra_repr(self) -> str:
        """Rows of tokens."""
        return f"rows={self.rows}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """N·G×T×C to N×C×G×T."""
        return x.unflatten(0, (-1, self.rows)).permute(0, 3, 1, 2)


modules("ChannelsFirst")(lambda m, shape: [("", "channels_first", {"rows": m.rows}, {})])
modules("Rearrange")(lambda m, shape: [("", "rearrange", {"split": m.split, "order": m.order, "pixels": m.pixels}, {})])
modules("Roll")(lambda m, shape: [("", "roll", {"shift": m.shift}, {})])
modules("Subsample")(lambda m, shape: [("", "subsample", {"start": m.start, "stop": m.stop, "step": m.step}, {})])


def _rearrange_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    split, order = ints(op.attrs, "split"), ints(op.attrs, "order")
    sizes = w.indices(op, "sizes", op.shape)
    if order == tuple(range(len(order))):
        w.node("Reshape", op, [ins[0], sizes])
        return
    axes = w.indices(op, "split", [*op.shape[:2], *split])
    w.node("Reshape", op, [ins[0], axes], output=f"{op.name}.split_up")
    w.node("Transpose", op, [f"{op.name}.split_up"], output=f"{op.name}.ordered", perm=[0, 1, *[axis + 2 for axis in order]])
    w.node("Reshape", op, [f"{op.name}.ordered", sizes])


def _roll_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    """What comes first in the result is cut off at the end, for each axis that is shifted."""
    read = ins[0]
    moved = [(axis, shift) for axis, shift in zip((2, 3), ints(op.attrs, "shift"), strict=True) if shift]
    if not moved:
        w.node("Identity", op, ins)
    for axis, shift in moved:
        size = op.shape[axis]
        parts = []
        for key, start, stop in ((f"end{axis}", size - shift, size), (f"begin{axis}", 0, size - shift)):
            bounds = [w.indices(op, f"{key}.{name}", [value]) for name, value in (("start", start), ("stop", stop), ("axis", axis))]
            parts.append(f"{op.name}.{key}")
            w.node("Slice", op, [read, *bounds], output=parts[-1])
        last = axis == moved[-1][0]
        w.node("Concat", op, parts, output=None if last else f"{op.name}.rolled{axis}", axis=axis)
        read = f"{op.name}.rolled{axis}"


def _subsample_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    bounds = [w.indices(op, key, ints(op.attrs, key)) for key in ("start", "stop")]
    w.node("Slice", op, [ins[0], *bounds, w.indices(op, "axes", [2, 3]), w.indices(op, "step", ints(op.attrs, "step"))])


def _channels_first_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    n, c, rows, tokens = op.shape
    w.node("Reshape", op, [ins[0], w.indices(op, "rows", [n, rows, tokens, c])], output=f"{op.name}.rows_of_tokens")
    w.node("Transpose", op, [f"{op.name}.rows_of_tokens"], perm=[0, 3, 1, 2])


lowerings.register("channels_first")(Lowering(lambda ins, a: ChannelsFirst(integer(a, "rows")), _channels_first_onnx, no_tflite))
lowerings.register("rearrange")(
    Lowering(lambda ins, a: Rearrange(ints(a, "split"), ints(a, "order"), ints(a, "pixels")), _rearrange_onnx, no_tflite)
)
lowerings.register("roll")(Lowering(lambda ins, a: Roll(ints(a, "shift")), _roll_onnx, no_tflite))
lowerings.register("subsample")(
    Lowering(lambda ins, a: Subsample(ints(a, "start"), ints(a, "stop"), ints(a, "step")), _subsample_onnx, no_tflite)
)
