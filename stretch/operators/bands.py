"""Operators on bands of rows, in torch, ONNX and TFLite."""

import torch
from torch import nn

from predictors.shapes import integer
from stretch.operators.capturing import modules, plain_module
from stretch.operators.lowerings import Lowering, lowerings, onnx_node
from stretch.operators.pieces import concat_tflite, slice_onnx, slice_tflite


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


lowerings.register("slice_rows")(Lowering(lambda ins, a: RowSlice(integer(a, "start"), integer(a, "stop")), slice_onnx(2), slice_tflite(1)))
lowerings.register("concat_rows")(Lowering(lambda ins, a: ConcatRows(), onnx_node("Concat", axis=2), concat_tflite(1)))
