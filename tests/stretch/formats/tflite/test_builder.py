import numpy as np

from stretch.formats.tflite.builder import Builder
from stretch.formats.tflite.writer import Piece, Quant, Writer

FINE, COARSE = Quant(0.25, 0), Quant(0.5, -128)


def builder(**scales):
    return Builder(Piece(Writer("m"), "s"), scales)


def codes(b):
    return [list(b.piece.writer._opcodes)[op["opcode_index"]][0] for op in b.piece.operators]


def test_real_tensor_is_rounded_once_for_all_its_readers():
    b = builder(x=FINE)
    x = b.input("x", (1, 2))
    assert b.integer(x) == b.integer(x)
    assert codes(b) == ["QUANTIZE"]


def test_reader_with_another_scale_gets_the_tensor_re_quantised():
    b = builder(x=FINE)
    x = b.input("x", (1, 2))
    index = b.integer(x, COARSE)
    assert codes(b) == ["QUANTIZE", "QUANTIZE"]  # to its own scale first: that is what the file was compared with
    assert b.piece.tensors[index]["quantization"] == {"scale": [0.5], "zero_point": [-128], "quantized_dimension": 0}


def test_half_weights_that_would_overflow_stay_as_they_are():
    b = builder()
    b.half = True
    b.weight("w", np.array([1e6, 1.0], np.float32))
    assert codes(b) == []
    b.weight("w", np.array([1.0, 2.0], np.float32))
    assert codes(b) == ["DEQUANTIZE"]
