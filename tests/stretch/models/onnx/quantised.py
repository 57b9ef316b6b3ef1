"""Networks as ONNX Runtime's quantisers write them."""

import logging
import warnings

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from tests.stretch.models.onnx.oracle import random

KINDS = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}


class Reader(CalibrationDataReader):
    """A few inputs of noise."""

    def __init__(self, name, shape):
        self.left = [{name: random(shape, seed)} for seed in range(4)]

    def get_next(self):
        """The next one."""
        return self.left.pop() if self.left else None


def static(path, out, shape, kind="uint8", each=True, form=QuantFormat.QOperator):
    """Write what `quantize_static` makes of a file; `each`: with a scale for each channel."""
    name = onnx.load(str(path)).graph.input[0].name
    logging.getLogger().setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(
            str(path), str(out), Reader(name, shape), form, per_channel=each, activation_type=KINDS[kind], weight_type=KINDS["int8"]
        )
    return out


def dynamic(path, out, kind="uint8"):
    """Write what `quantize_dynamic` makes of a file, convolutions among it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(str(path), str(out), ["MatMul", "Conv", "Gemm"], weight_type=KINDS[kind])
    return out
