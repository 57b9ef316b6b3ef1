"""Writers of ONNX and TFLite files, node by node; the lowering of each operator is in `stretch.operators`."""
