"""Reductions over pixels and over channels in torch and ONNX."""

import torch

from predictors.graph import Op
from stretch.formats.onnx import OnnxWriter
from stretch.operators.lowerings import computed, no_tflite


def _norm_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("ReduceL2", op, [ins[0], w.indices(op, "axes", [2, 3])], keepdims=int(bool(op.attrs["keepdims"])))


def _mean_onnx(w: OnnxWriter, op: Op, ins: list[str]) -> None:
    w.node("ReduceMean", op, [ins[0], w.indices(op, "axes", [1])], keepdims=1)


computed("global_l2_norm", lambda a, x: torch.linalg.vector_norm(x, dim=(2, 3), keepdim=bool(a["keepdims"])), _norm_onnx, no_tflite)
computed("channel_mean", lambda a, x: x.mean(1, keepdim=True), _mean_onnx, no_tflite)
