"""Writers of ONNX and TFLite files, node by node; `stretch.operators` has the lowering of each operator."""
