"""Operators that no family describes, as calls of torch's own operators: how they are told, computed and written in ONNX."""
