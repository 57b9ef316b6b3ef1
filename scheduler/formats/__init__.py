"""Third-party file formats, read without trust: ONNX, TFLite, NumPy."""
