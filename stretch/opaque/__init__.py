"""Operators without a family, as calls of torch's operators: their representation, execution and export to ONNX."""
