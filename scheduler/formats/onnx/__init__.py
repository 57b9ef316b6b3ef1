"""ONNX files, read without trust: `open_onnx` gives one with its shapes, weights, nodes and operators, and checks it."""

from scheduler.formats.onnx.file import QUANTISERS, OnnxFile, open_onnx, state, stated

__all__ = ["QUANTISERS", "OnnxFile", "open_onnx", "state", "stated"]
