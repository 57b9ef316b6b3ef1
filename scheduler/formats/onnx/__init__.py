"""ONNX files, read without trust: `open_onnx` gives one with its shapes, weights, nodes and operators, and checks it."""

from scheduler.formats.onnx.file import OnnxFile, is_quantiser, open_onnx, state_operator, stated_operator

__all__ = ["OnnxFile", "is_quantiser", "open_onnx", "state_operator", "stated_operator"]
