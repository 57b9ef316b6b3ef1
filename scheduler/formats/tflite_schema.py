"""The part of the TFLite schema that nn-stretch writes and reads.

Source: `schema.fbs` of LiteRT, version 3 (https://github.com/google-ai-edge/LiteRT).
"""

from dataclasses import dataclass

from scheduler.formats.flatbuffer import Flatbuffer

VERSION = 3


@dataclass(frozen=True)
class OperatorKind:
    """What the schema and its runtime know of one operator."""

    number: int  # In the schema.
    options: str | None  # Table of its settings, or None.
    #: A letter for each tensor that it reads: ``x`` has the type of the result, ``w`` and ``b`` are the weight and the bias of such an
    #: operator, ``i`` is a constant of whole numbers such as a shape, and ``q`` has a type that the operator converts. ``*``: any number.
    reads: str


OPERATORS = {
    "ADD": OperatorKind(0, "AddOptions", "xx"),
    "AVERAGE_POOL_2D": OperatorKind(1, "Pool2DOptions", "x"),
    "CONCATENATION": OperatorKind(2, "ConcatenationOptions", "x*"),
    "CONV_2D": OperatorKind(3, "Conv2DOptions", "xwb"),
    "DEPTHWISE_CONV_2D": OperatorKind(4, "DepthwiseConv2DOptions", "xwb"),
    "DEQUANTIZE": OperatorKind(6, "DequantizeOptions", "q"),
    "FULLY_CONNECTED": OperatorKind(9, "FullyConnectedOptions", "xwb"),
    "LOGISTIC": OperatorKind(14, None, "x"),
    "MAX_POOL_2D": OperatorKind(17, "Pool2DOptions", "x"),
    "MUL": OperatorKind(18, "MulOptions", "xx"),
    "RELU": OperatorKind(19, None, "x"),
    "RELU6": OperatorKind(21, None, "x"),
    "RESHAPE": OperatorKind(22, "ReshapeOptions", "xi"),
    "SOFTMAX": OperatorKind(25, "SoftmaxOptions", "x"),
    "TANH": OperatorKind(28, None, "x"),
    "PAD": OperatorKind(34, "PadOptions", "xi"),
    "TRANSPOSE": OperatorKind(39, "TransposeOptions", "xi"),
    "MEAN": OperatorKind(40, "ReducerOptions", "xi"),
    "SUB": OperatorKind(41, "SubOptions", "xx"),
    "DIV": OperatorKind(42, "DivOptions", "xx"),
    "EXP": OperatorKind(47, None, "x"),
    "LOG_SOFTMAX": OperatorKind(50, "LogSoftmaxOptions", "x"),
    "PRELU": OperatorKind(54, None, "xx"),
    "MAXIMUM": OperatorKind(55, "MaximumMinimumOptions", "xx"),
    "MINIMUM": OperatorKind(57, "MaximumMinimumOptions", "xx"),
    "PADV2": OperatorKind(60, "PadV2Options", "xix"),
    "SLICE": OperatorKind(65, "SliceOptions", "xii"),
    "RSQRT": OperatorKind(76, None, "x"),
    "REDUCE_MAX": OperatorKind(82, "ReducerOptions", "xi"),
    "RESIZE_NEAREST_NEIGHBOR": OperatorKind(97, "ResizeNearestNeighborOptions", "xi"),
    "LEAKY_RELU": OperatorKind(98, "LeakyReluOptions", "x"),
    "ELU": OperatorKind(111, None, "x"),
    "QUANTIZE": OperatorKind(114, "QuantizeOptions", "q"),
    "HARD_SWISH": OperatorKind(117, None, "x"),
    "GELU": OperatorKind(150, "GeluOptions", "x"),
}

#: Number of each element type, by numpy's name.
TYPES = {"float32": 0, "float16": 1, "int32": 2, "int8": 9}

#: Number of each table of settings, by name.
OPTIONS = {
    **{"Conv2DOptions": 1, "DepthwiseConv2DOptions": 2, "Pool2DOptions": 5, "FullyConnectedOptions": 8, "SoftmaxOptions": 9},
    **{"ConcatenationOptions": 10, "AddOptions": 11, "ReshapeOptions": 17, "MulOptions": 21, "PadOptions": 22, "TransposeOptions": 26},
    **{"ReducerOptions": 27, "SubOptions": 28, "DivOptions": 29, "LogSoftmaxOptions": 36, "DequantizeOptions": 38},
    **{"MaximumMinimumOptions": 39, "PadV2Options": 43, "SliceOptions": 48, "ResizeNearestNeighborOptions": 74, "LeakyReluOptions": 75},
    **{"QuantizeOptions": 89, "GeluOptions": 116},
}

_ACTIVATION = {"fused_activation_function": (0, "i8")}

#: Fields by table: slot and type, see `scheduler.formats.flatbuffer`.
TABLES: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {
        "version": (0, "u32"),
        "operator_codes": (1, "[OperatorCode]"),
        "subgraphs": (2, "[SubGraph]"),
        "description": (3, "string"),
        "buffers": (4, "[Buffer]"),
        "metadata": (6, "[Metadata]"),
        "signature_defs": (7, "[SignatureDef]"),
    },
    "OperatorCode": {"deprecated_builtin_code": (0, "i8"), "version": (2, "i32"), "builtin_code": (3, "i32")},
    "SubGraph": {
        "tensors": (0, "[Tensor]"),
        "inputs": (1, "[i32]"),
        "outputs": (2, "[i32]"),
        "operators": (3, "[Operator]"),
        "name": (4, "string"),
    },
    "Tensor": {
        "shape": (0, "[i32]"),
        "type": (1, "i8"),
        "buffer": (2, "u32"),
        "name": (3, "string"),
        "quantization": (4, "QuantizationParameters"),
    },
    "QuantizationParameters": {"scale": (2, "[f32]"), "zero_point": (3, "[i64]"), "quantized_dimension": (6, "i32")},
    "Operator": {
        "opcode_index": (0, "u32"),
        "inputs": (1, "[i32]"),
        "outputs": (2, "[i32]"),
        "builtin_options_type": (3, "u8"),
        "builtin_options": (4, "builtin_options_type?BuiltinOptions"),
    },
    "Buffer": {"data": (0, "[u8]")},
    "Metadata": {"name": (0, "string"), "buffer": (1, "u32")},
    "SignatureDef": {
        "inputs": (0, "[TensorMap]"),
        "outputs": (1, "[TensorMap]"),
        "signature_key": (2, "string"),
        "subgraph_index": (4, "u32"),
    },
    "TensorMap": {"name": (0, "string"), "tensor_index": (1, "u32")},
    "Conv2DOptions": {
        "padding": (0, "i8"),
        "stride_w": (1, "i32"),
        "stride_h": (2, "i32"),
        "fused_activation_function": (3, "i8"),
        "dilation_w_factor": (4, "i32"),
        "dilation_h_factor": (5, "i32"),
    },
    "DepthwiseConv2DOptions": {
        "padding": (0, "i8"),
        "stride_w": (1, "i32"),
        "stride_h": (2, "i32"),
        "depth_multiplier": (3, "i32"),
        "fused_activation_function": (4, "i8"),
        "dilation_w_factor": (5, "i32"),
        "dilation_h_factor": (6, "i32"),
    },
    "Pool2DOptions": {
        "padding": (0, "i8"),
        "stride_w": (1, "i32"),
        "stride_h": (2, "i32"),
        "filter_width": (3, "i32"),
        "filter_height": (4, "i32"),
        "fused_activation_function": (5, "i8"),
    },
    "FullyConnectedOptions": _ACTIVATION,
    "SoftmaxOptions": {"beta": (0, "f32")},
    "ConcatenationOptions": {"axis": (0, "i32"), "fused_activation_function": (1, "i8")},
    "AddOptions": _ACTIVATION,
    "ReshapeOptions": {"new_shape": (0, "[i32]")},
    "MulOptions": _ACTIVATION,
    "PadOptions": {},
    "TransposeOptions": {},
    "ReducerOptions": {"keep_dims": (0, "bool")},
    "SubOptions": _ACTIVATION,
    "DivOptions": _ACTIVATION,
    "LogSoftmaxOptions": {},
    "DequantizeOptions": {},
    "MaximumMinimumOptions": {},
    "PadV2Options": {},
    "SliceOptions": {},
    "ResizeNearestNeighborOptions": {"align_corners": (0, "bool"), "half_pixel_centers": (1, "bool")},
    "LeakyReluOptions": {"alpha": (0, "f32")},
    "QuantizeOptions": {},
    "GeluOptions": {"approximate": (0, "bool")},
}

TFLITE = Flatbuffer(TABLES, {"BuiltinOptions": {number: name for name, number in OPTIONS.items()}}, "Model", b"TFL3")
