"""Operators on bands of rows, in torch, ONNX and TFLite."""

import torch
from torch import nn

from predictors.graph import Op
from predictors.shapes import integer
from stretch.formats.onnx import OnnxWriter
from stretch.formats.tflite.builder import Builder, Value, to_nhwc
from stretch.formats.tflite.source import Source
from stretch.operators.capturing import modules, plain_module
from stretch.operators.forms import Form, forms, onnx_node


class ConcatRows(nn.Module):
    """Bands below each other, the first one on top."""

    def forward(self, *bands: torch.Tensor) -> torch.Tensor:
        """Concatenate the bands."""
        return torch.cat(bands, dim=2)


class RowSlice(nn.Module):
    """Rows `start` up to `stop` of its input."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop

    def extra_repr(self) -> str:
        """The range."""
        return f"{self.start}:{self.stop}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cut the rows out."""
        return x[:, :, self.start : self.stop]


modules("ConcatRows")(plain_module("concat_rows"))
modules("RowSlice")(lambda m, shape: [("", "slice_rows", {"start": m.start, "stop": m.stop}, {})])


def _slice_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    bounds = (("start", integer(op.attrs, "start")), ("stop", integer(op.attrs, "stop")), ("axis", 2))
    w.node("Slice", op, [ins[0], *[w.indices(op, key, [value]) for key, value in bounds]])


def _slice_tflite(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Rows come right after the images: of one image they are one piece."""
    shape = to_nhwc(op.shape)
    begin = [0, integer(op.attrs, "start"), 0, 0]
    return b.moved("SLICE", op.name, ins[0], shape, [b.indices(f"{op.name}.begin", begin), b.indices(f"{op.name}.size", shape)])


def _concat_tflite(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Int8 bands are re-quantised to the scale of the result, which is theirs where they are bands of one tensor."""
    shape, quant = to_nhwc(op.shape), b.scale(op)
    indices = [b.integer(value, quant) if b.rounded else b.real(value) for value in ins]
    made = b.write("CONCATENATION", op.name, indices, shape, quant, axis=1)
    made.nonnegative = all(value.nonnegative for value in ins)
    return made


forms.register("slice_rows")(Form(lambda ins, a: RowSlice(integer(a, "start"), integer(a, "stop")), _slice_onnx, _slice_tflite))
forms.register("concat_rows")(Form(lambda ins, a: ConcatRows(), onnx_node("Concat", axis=2), _concat_tflite))
