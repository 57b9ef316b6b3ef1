"""File formats of others, read without trust: ONNX, TFLite, NumPy."""
