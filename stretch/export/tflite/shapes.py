"""Operators in TFLite that pool, move or select elements."""

from math import prod

import numpy as np

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.shapes import integer, ints
from stretch.export.tflite.builder import Array, Builder, Value, to_nhwc
from stretch.export.tflite.elementwise import Lower
from stretch.export.tflite.padding import Window, window
from stretch.export.tflite.source import Source
from stretch.export.tflite.weights import pad

#: Below every finite number: padding that never wins a maximum.
LOWEST = float(np.finfo(np.float32).min)


def max_pool(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Padding never wins; where no element is below 0, zeros do not either, and they are padded faster."""
    if tuple(ints(op.attrs, "dilation")) != (1, 1):
        raise StretchError(f"operator `{op.name}` (max_pool) is dilated, which TFLite does not have", "keep this model in ONNX")
    place = window(op.attrs, source.graph.input_shapes(op)[0], op.shape)
    x = ins[0]
    if place.explicit:
        x = pad(b, op, x, place.before, place.after, 0.0 if x.nonnegative else LOWEST)
    return _pool(b, "MAX_POOL_2D", op.name, x, op, place)


def avg_pool(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """TFLite divides by what lies inside the image; any other count is a factor for each window."""
    image = source.graph.input_shapes(op)[0]
    place = window(op.attrs, image, op.shape)
    factor = _count_factor(op, image, place)
    x = pad(b, op, ins[0], place.before, place.after) if place.explicit else ins[0]
    if (factor == 1).all():
        return _pool(b, "AVERAGE_POOL_2D", op.name, x, op, place)
    pooled = _pool(b, "AVERAGE_POOL_2D", f"{op.name}.pooled", x, op, place)
    made = b.apply("MUL", op.name, [pooled, factor[None, :, :, None]], quant=b.scales.get(op.name))
    made.nonnegative = ins[0].nonnegative
    return made


def _pool(b: Builder, code: str, name: str, x: Value, op: Op, place: Window) -> Value:
    kernel, stride = ints(op.attrs, "kernel"), ints(op.attrs, "stride")
    settings = {
        "filter_height": kernel[0],
        "filter_width": kernel[1],
        "stride_h": stride[0],
        "stride_w": stride[1],
        "padding": place.padding,
    }
    return b.moved(code, name, x, to_nhwc(op.shape), **settings)


def _count_factor(op: Op, image: tuple[int, ...], place: Window) -> Array:
    """What TFLite divides by over what `op` divides by, for each window: height × width."""
    kernel, stride, padding = (ints(op.attrs, key) for key in ("kernel", "stride", "padding"))
    counts = bool(op.attrs["count_include_pad"])
    ratio = []
    for axis in (0, 1):
        size, starts = image[axis + 2], np.arange(op.shape[axis + 2]) * stride[axis] - padding[axis]
        inside = np.minimum(starts + kernel[axis], size) - np.maximum(starts, 0)
        # what `ceil_mode` adds beyond the padding never counts
        counted = np.minimum(starts + kernel[axis], size + padding[axis + 2]) - starts if counts else inside
        ratio.append((inside if place.padding == 0 else kernel[axis]) / counted)
    return np.outer(ratio[0], ratio[1])


def global_pool(code: str) -> Lower:
    """Over all pixels."""

    def lower(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
        keep = bool(op.attrs["keepdims"])
        x = ins[0]
        shape = (x.shape[0], 1, 1, x.shape[3]) if keep else (x.shape[0], x.shape[3])
        axes = b.indices(f"{op.name}.axes", [1, 2])
        if code == "REDUCE_MAX":
            return b.moved(code, op.name, x, shape, [axes], keep_dims=keep)
        made = b.apply(code, op.name, [x], shape, b.scales.get(op.name), [axes], keep_dims=keep)
        made.nonnegative = x.nonnegative
        return made

    return lower


def flatten(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """One row an image, channels outermost as in NCHW, unless only matrices read it: they take the order into their weights."""
    x = ins[0]
    if len(x.shape) == 4 and x.shape[1] * x.shape[2] > 1 and x.shape[3] > 1:
        n, h, w, c = x.shape
        readers = [source.graph.by_name[name] for name in source.graph.consumers[op.name]]
        if op.name != source.graph.output and readers and all(reader.kind == "linear" for reader in readers):
            row = _reshape(b, op.name, x, (n, h * w * c))
            row.flattened = (h, w, c)
            return row
        x = b.moved("TRANSPOSE", f"{op.name}.nchw", x, (n, c, h, w), [b.indices(f"{op.name}.order", [0, 3, 1, 2])])
    return _reshape(b, op.name, x, (x.shape[0], prod(x.shape[1:])))


def unflatten(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """One pixel for each row."""
    return _reshape(b, op.name, ins[0], to_nhwc(op.shape))


def _reshape(b: Builder, name: str, x: Value, shape: tuple[int, ...]) -> Value:
    return b.moved("RESHAPE", name, x, shape, [b.indices(f"{name}.shape", shape)], new_shape=list(shape))


def pad_op(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Zeros around an image."""
    top, left, bottom, right = ints(op.attrs, "padding")
    return pad(b, op, ins[0], (top, left), (bottom, right))


def channel_slice(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Channels stand last."""
    x, start = ins[0], integer(op.attrs, "start")
    shape = to_nhwc(op.shape)
    begin = [0] * (len(shape) - 1) + [start]
    return b.moved("SLICE", op.name, x, shape, [b.indices(f"{op.name}.begin", begin), b.indices(f"{op.name}.size", shape)])


def channel_shuffle(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Groups and the channels in them change places."""
    x, groups = ins[0], integer(op.attrs, "groups")
    n, h, w, c = x.shape
    split = _reshape(b, f"{op.name}.groups", x, (n * h * w, groups, c // groups))
    order = b.indices(f"{op.name}.order", [0, 2, 1])
    turned = b.moved("TRANSPOSE", f"{op.name}.turned", split, (n * h * w, c // groups, groups), [order])
    return _reshape(b, op.name, turned, x.shape)


def upsample(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Nearest neighbour: pixel i reads pixel ⌊i / scale⌋."""
    shape = to_nhwc(op.shape)
    size = b.indices(f"{op.name}.size", shape[1:3])
    return b.moved("RESIZE_NEAREST_NEIGHBOR", op.name, ins[0], shape, [size])


def concat(b: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    """Side by side along the channels; int8 inputs are re-quantised to the scale of the result."""
    shape, quant = to_nhwc(op.shape), b.scales.get(op.name)
    indices = [b.integer(value, quant) if b.rounded else b.real(value) for value in ins]
    made = b.write("CONCATENATION", op.name, indices, shape, quant, axis=len(shape) - 1)
    made.nonnegative = all(value.nonnegative for value in ins)
    return made


LOWER: dict[str, Lower] = {
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "global_avg_pool": global_pool("MEAN"),
    "global_max_pool": global_pool("REDUCE_MAX"),
    "flatten": flatten,
    "unflatten": unflatten,
    "pad": pad_op,
    "slice": channel_slice,
    "channel_shuffle": channel_shuffle,
    "upsample": upsample,
    "concat": concat,
}
