"""Operators with weights in TFLite: convolutions, matrices, normalisations."""

from collections.abc import Mapping

import numpy as np

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import integer, ints, number
from stretch.export.tflite.builder import TOP, Array, Builder, Value, to_nhwc
from stretch.export.tflite.padding import window
from stretch.export.tflite.source import Rounded, Source
from stretch.export.tflite.writer import Quant

Own = Mapping[str, Array]


def conv(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """A convolution; depthwise where every channel is a group, grouped otherwise."""
    a = op.attrs
    image = source.graph.input_shapes(op)[0]
    groups, stride, dilation = integer(a, "groups"), ints(a, "stride"), ints(a, "dilation")
    place = window(a, image, op.shape)
    x = ins[0]
    if place.explicit:
        x = pad(b, op, x, place.before, place.after)
    settings = {
        "padding": place.padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
    }
    depthwise = groups == image[1] and groups > 1
    # OIHW to OHWI; depthwise O1HW to 1HWO, whose output channels stand in the same order.
    order = (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)
    inputs = _matrix(b, source, op, x, order, 3 if depthwise else 0)
    if depthwise:
        multiplier = op.shape[1] // groups
        return b.write("DEPTHWISE_CONV_2D", op.name, inputs, to_nhwc(op.shape), _scale(b, op), depth_multiplier=multiplier, **settings)
    version = 6 if groups > 1 else None
    return b.write("CONV_2D", op.name, inputs, to_nhwc(op.shape), _scale(b, op), version=version, **settings)


def linear(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """A matrix; the columns of one that reads a flattened image are put into the order NHWC."""
    x = ins[0]
    if len(x.shape) != 2:
        raise StretchError(f"operator `{op.name}` (linear) reads {len(x.shape)} axes, TFLite's is written for 2", "keep this model in ONNX")
    inputs = _matrix(b, source, op, x, (0, 1), 0, x.flattened)
    return b.write("FULLY_CONNECTED", op.name, inputs, op.shape, _scale(b, op))


def pad(b: Builder, op: Op, x: Value, before: tuple[int, int], after: tuple[int, int], value: float = 0.0) -> Value:
    """Rows and columns around an image, of zeros or of one other number."""
    n, h, w, c = x.shape
    shape = (n, before[0] + h + after[0], before[1] + w + after[1], c)
    name = f"{op.name}.padded"
    widths = b.indices(f"{name}.widths", [[0, 0], [before[0], after[0]], [before[1], after[1]], [0, 0]])
    if value == 0:
        return b.moved("PAD", name, x, shape, [widths])
    if b.rounded:
        assert x.quant is not None
        lowest = np.array([-128 if value < 0 else TOP], np.int8)
        filler = b.piece.constant(f"{name}.value", lowest, [x.quant.scale], zero_point=x.quant.zero_point)
    else:
        filler = b.piece.constant(f"{name}.value", np.array([value], np.float32))
    return b.moved("PADV2", name, x, shape, [widths, filler])


def batch_norm(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """A batch-norm that no convolution before it takes up: a factor and an offset a channel."""
    own = {key: value.astype(np.float64) for key, value in source.weights[op.name].items()}
    factor = own.get("weight", 1.0) / np.sqrt(own["running_var"] + number(op.attrs, "eps"))
    scaled = b.apply("MUL", f"{op.name}.scaled", [ins[0], factor], quant=_scale(b, op))
    return b.apply("ADD", op.name, [scaled, own.get("bias", 0.0) - factor * own["running_mean"]], quant=_scale(b, op))


def layer_norm(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Channels stand last, so their mean and their spread are those of the last axis."""
    name, own, shape = op.name, source.weights.get(op.name, {}), ins[0].shape
    axes = b.indices(f"{name}.axes", [len(shape) - 1])
    one = (*shape[:-1], 1)
    mean = b.apply("MEAN", f"{name}.mean", [ins[0]], one, extra=[axes], keep_dims=True)
    centred = b.apply("SUB", f"{name}.centred", [ins[0], mean])
    square = b.apply("MUL", f"{name}.square", [centred, centred])
    variance = b.apply("MEAN", f"{name}.variance", [square], one, extra=[axes], keep_dims=True)
    raised = b.apply("ADD", f"{name}.raised", [variance, np.array(number(op.attrs, "eps"))])
    rate = b.apply("RSQRT", f"{name}.rate", [raised])
    y = b.apply("MUL", f"{name}.normed", [centred, rate])
    if "weight" in own:
        y = b.apply("MUL", f"{name}.scaled", [y, own["weight"]])
        y = b.apply("ADD", name, [y, own["bias"]])
    return y


def per_channel(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """One factor or one offset a channel; channels stand last, where both broadcast."""
    code, key = ("MUL", "weight") if op.kind == "scale" else ("ADD", "bias")
    return b.apply(code, op.name, [ins[0], source.weights[op.name][key].reshape(-1)], quant=_scale(b, op))


def prelu(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """A slope a channel, whose shape is that of an image without its batch."""
    slope = source.weights[op.name]["weight"].reshape(-1)
    return b.apply("PRELU", op.name, [ins[0], slope.reshape(*[1] * (len(ins[0].shape) - 2), -1)])


def growth(source: Source, op: Op, x: Value, result: Quant | None) -> float:
    """How many times larger the integers of a convolution's or matrix's result are than the products they come from.

    It is below 1 but for a result that is nearly nothing everywhere, such as that of a dead activation.
    """
    assert x.quant is not None
    assert result is not None
    rounded = source.integers.get(op.name) or _symmetric(source.weights[op.name]["weight"])
    return float(rounded.scales.max()) * x.quant.scale / result.scale


def _scale(b: Builder, op: Op):
    return b.scales.get(op.name) if b.rounded else None


def _matrix(
    b: Builder, source: Source, op: Op, x: Value, order: tuple[int, ...], channels: int, image: tuple[int, ...] | None = None
) -> list[int]:
    """Tensor indices of the input, the weight in `order` and the bias.

    Args:
        b: The subgraph.
        source: Where the weights are.
        op: The operator.
        x: What it reads.
        order: Axes of the weight in TFLite's order.
        channels: Axis of the output channels after that.
        image: Height, width and channels of a flattened image that a matrix reads.
    """
    own = source.weights[op.name]
    weight = own["weight"]

    def arranged(value: Array) -> Array:
        if image is not None:
            h, w, c = image
            value = value.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(len(value), -1)
        return np.ascontiguousarray(value.transpose(order))

    bias = own.get("bias", np.zeros(len(weight), np.float32))
    if not b.rounded:
        return [b.real(x), b.weight(f"{op.name}.weight", arranged(weight)), b.piece.constant(f"{op.name}.bias", bias.astype(np.float32))]
    assert x.quant is not None
    rounded = source.integers.get(op.name) or _symmetric(weight)
    scales = np.broadcast_to(rounded.scales, (len(weight),)).astype(np.float64)
    weights = b.piece.constant(f"{op.name}.weight", arranged(rounded.values), scales.tolist(), channels)
    # A bias is added to products of integers, so it has their scale.
    unit = scales * x.quant.scale
    limit = np.iinfo(np.int32)
    whole = np.clip(np.rint(bias.astype(np.float64) / unit), limit.min, limit.max).astype(np.int32)
    return [b.integer(x), weights, b.piece.constant(f"{op.name}.bias", whole, unit.tolist())]


def _symmetric(weight: Array) -> Rounded:
    """A weight that was not rounded yet, with a scale for each output channel."""
    flat = weight.reshape(len(weight), -1).astype(np.float64)
    scales = np.maximum(np.abs(flat).max(axis=1), 1e-9) / TOP
    return Rounded(np.rint(flat / scales[:, None]).astype(np.int8).reshape(weight.shape), scales)
