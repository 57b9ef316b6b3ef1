"""Reductions over pixels and over channels in torch and ONNX."""

import torch
from torch import nn

from predictors.graph import Op
from stretch.formats.onnx import OnnxWriter
from stretch.operators.capturing import modules, plain_module
from stretch.operators.lowerings import Lowering, lowerings, no_tflite


class GlobalNorm(nn.Module):
    """Length of each channel over all pixels."""

    def __init__(self, keepdims: bool) -> None:
        super().__init__()
        self.keepdims = keepdims

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The root of the sum of squares."""
        return torch.linalg.vector_norm(x, dim=(2, 3), keepdim=self.keepdims)


class ChannelMean(nn.Module):
    """Mean over the channels of each pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """N×C×H×W to N×1×H×W."""
        return x.mean(1, keepdim=True)


modules("GlobalNorm")(lambda m, shape: [("", "global_l2_norm", {"keepdims": m.keepdims}, {})])
modules("ChannelMean")(plain_module("channel_mean"))


def _norm_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("ReduceL2", op, [ins[0], w.indices(op, "axes", [2, 3])], keepdims=int(bool(op.attrs["keepdims"])))


def _mean_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("ReduceMean", op, [ins[0], w.indices(op, "axes", [1])], keepdims=1)


lowerings.register("global_l2_norm")(Lowering(lambda ins, a: GlobalNorm(bool(a["keepdims"])), _norm_onnx, no_tflite))
lowerings.register("channel_mean")(Lowering(lambda ins, a: ChannelMean(), _mean_onnx, no_tflite))
