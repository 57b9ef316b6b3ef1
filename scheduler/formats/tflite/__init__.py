"""TFLite files of any converter: `open_tflite` reads one and checks that everything in it leads somewhere."""

from scheduler.formats.tflite.file import Quantisation, TfliteNetwork, TfliteOperator, TfliteTensor, open_tflite

__all__ = ["Quantisation", "TfliteNetwork", "TfliteOperator", "TfliteTensor", "open_tflite"]
