"""ONNX files, read without trust: `open_onnx` gives one with its shapes, weights, nodes and operators, and checks it."""

from scheduler.formats.onnx.file import OnnxFile, open_onnx, quantises, state, stated

__all__ = ["OnnxFile", "open_onnx", "quantises", "state", "stated"]
