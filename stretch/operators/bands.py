"""Operators on bands of rows, in torch, ONNX and TFLite."""

import torch

from predictors.shapes import integer
from stretch.operators.lowerings import computed, onnx_node
from stretch.operators.pieces import concat_tflite, slice_onnx, slice_tflite

computed("slice_rows", lambda a, x: x[:, :, integer(a, "start") : integer(a, "stop")], slice_onnx(2), slice_tflite(1))
computed("concat_rows", lambda a, *bands: torch.cat(bands, dim=2), onnx_node("Concat", axis=2), concat_tflite(1))
