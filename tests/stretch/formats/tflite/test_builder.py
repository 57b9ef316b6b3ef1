import numpy as np

from stretch.formats.tflite.builder import Builder, Value, to_nhwc
from stretch.formats.tflite.writer import Piece, Quant, Writer

FINE, COARSE = Quant(0.25, 0), Quant(0.5, -128)


def builder(**scales):
    return Builder(Piece(Writer("m"), "s"), scales)


def codes(b):
    return [list(b.piece.writer._opcodes)[op["opcode_index"]][0] for op in b.piece.operators]


def test_images_are_turned_and_rows_are_not():
    assert to_nhwc((2, 3, 4, 5)) == (2, 4, 5, 3)
    assert to_nhwc((2, 3)) == (2, 3)


def test_real_tensor_is_rounded_once_for_all_its_readers():
    b = builder(x=FINE)
    x = b.input("x", (1, 2))
    assert b.integer(x) == b.integer(x)
    assert codes(b) == ["QUANTIZE"]


def test_rounded_tensor_is_made_real_once_for_all_its_readers():
    b = builder()
    value = Value("t", (1, 2), FINE, integer=b.piece.tensor("t", (1, 2), "int8", FINE))
    assert b.real(value) == b.real(value)
    assert codes(b) == ["DEQUANTIZE"]


def test_reader_with_another_scale_gets_the_tensor_re_quantised():
    b = builder(x=FINE)
    x = b.input("x", (1, 2))
    index = b.integer(x, COARSE)
    assert codes(b) == ["QUANTIZE", "QUANTIZE"]  # to its own scale first: that is what the file was compared with
    assert b.piece.tensors[index]["quantization"] == {"scale": [0.5], "zero_point": [-128], "quantized_dimension": 0}


def test_constants_are_rounded_where_the_operator_is():
    b = builder(x=FINE, y=FINE)
    x = b.input("x", (1, 2))
    b.rounded = True
    b.apply("MUL", "y", [x, np.array([0.5, -1.0])], quant=FINE)
    constant = next(t for t in b.piece.tensors if t["name"] == "y.constant1")
    assert constant["quantization"]["scale"] == [1 / 127]
    assert b.piece.writer._buffers[constant["buffer"]]["data"].view(np.int8).tolist() == [64, -127]


def test_half_weights_that_would_overflow_stay_as_they_are():
    b = builder()
    b.half = True
    b.weight("w", np.array([1e6, 1.0], np.float32))
    assert codes(b) == []
    b.weight("w", np.array([1.0, 2.0], np.float32))
    assert codes(b) == ["DEQUANTIZE"]
