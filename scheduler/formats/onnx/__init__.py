"""ONNX files, read without trust: `open_onnx` reads a file and checks its shapes, weights, nodes and operators."""

from scheduler.formats.onnx.file import OnnxFile, is_quantiser, open_onnx, state_operator, stated_operator

__all__ = ["OnnxFile", "is_quantiser", "open_onnx", "state_operator", "stated_operator"]
