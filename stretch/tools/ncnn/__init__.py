"""Networks of ncnn, for predictions."""
