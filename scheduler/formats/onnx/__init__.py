"""ONNX files, read without trust: `open_onnx` gives one with its shapes, weights, nodes and operators, and checks it."""

from scheduler.formats.onnx.file import OnnxFile, open_onnx
from scheduler.formats.onnx.operators import QUANTISERS, state, stated

__all__ = ["QUANTISERS", "OnnxFile", "open_onnx", "state", "stated"]
