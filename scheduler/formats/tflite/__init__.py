"""TFLite files of any converter: `open_tflite` reads one and checks that everything in it leads somewhere."""

from scheduler.formats.tflite.file import Network, Operator, Quantisation, Tensor, open_tflite

__all__ = ["Network", "Operator", "Quantisation", "Tensor", "open_tflite"]
