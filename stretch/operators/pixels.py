"""Operators that put the pixels of every channel elsewhere, in torch and ONNX."""

import torch

from predictors.graph import Op
from predictors.shapes import Attrs, integer, ints
from stretch.formats.onnx import OnnxWriter
from stretch.operators.lowerings import computed, no_tflite


def _rearranged(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    """Height and width seen as several axes, put into another order, and seen as height and width again."""
    n, c = x.shape[:2]
    axes = x.reshape(n, c, *ints(a, "split")).permute(0, 1, *[axis + 2 for axis in ints(a, "order")])
    return axes.reshape(n, c, *ints(a, "pixels"))


def _subsampled(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    down, across = (slice(*bounds) for bounds in zip(ints(a, "start"), ints(a, "stop"), ints(a, "step"), strict=True))
    return x[:, :, down, across]


def _channels_first(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    """Tokens N·G×T×C as the pixels of a map N×C×G×T."""
    return x.unflatten(0, (-1, integer(a, "rows"))).permute(0, 3, 1, 2)


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


computed("channels_first", _channels_first, _channels_first_onnx, no_tflite)
computed("rearrange", _rearranged, _rearrange_onnx, no_tflite)
computed("roll", lambda a, x: torch.roll(x, ints(a, "shift"), (2, 3)), _roll_onnx, no_tflite)
computed("subsample", _subsampled, _subsample_onnx, no_tflite)
