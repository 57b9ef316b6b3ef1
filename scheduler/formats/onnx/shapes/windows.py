"""Convolutions and pools: windows that move over one, two or three axes."""

import math
from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import BYTES, INT64, MAX_STEP, REALS, Cost, KnownTensor, Rule, Shape, ShapeNode, gives, need

#: Elements a convolution may lay out in rows for a matrix product: a gigabyte of reals.
MAX_COLUMNS = 1 << 28


def _image(node: ShapeNode, types: frozenset[int] = REALS) -> KnownTensor:
    """Input 0, which must have a batch, channels, and one to three further axes."""
    x = node.tensor(0, types)
    need(3 <= len(x.shape) <= 5, f"its input has the shape {list(x.shape)}")
    return x


def _pads(node: ShapeNode, axes: int) -> tuple[int, ...]:
    need(node.word("auto_pad", "NOTSET") == "NOTSET", "its padding is automatic")
    return node.ints("pads", (0,) * (2 * axes), 0)


def _windows(node: ShapeNode, kernel: tuple[int, ...], image: Shape) -> Shape:
    """Sizes of what a window that moves over an image gives."""
    axes = len(kernel)
    strides, dilations = node.ints("strides", (1,) * axes, 1), node.ints("dilations", (1,) * axes, 1)
    pads, whole = _pads(node, axes), not node.whole("ceil_mode", 0)
    sizes = []
    for i, size in enumerate(image):
        room = size + pads[i] + pads[i + axes] - dilations[i] * (kernel[i] - 1) - 1
        need(room >= 0, f"its window of {_times(kernel)} is larger than its input")
        steps = room // strides[i] if whole else -(-room // strides[i])
        # a window that would begin in the padding behind the input is left out
        sizes.append(steps if not whole and steps * strides[i] >= size + pads[i] else steps + 1)
    return tuple(sizes)


def _times(sizes: Shape) -> str:
    return " × ".join(map(str, sizes))


def _conv(node: ShapeNode) -> Cost:
    x, w = _image(node), node.shape(1)
    need(len(x.shape) == len(w), f"its input and weight have the shapes {list(x.shape)} and {list(w)}")
    groups, channels = node.whole("group", 1), x.shape[1]
    need(groups >= 1 and channels == w[1] * groups and w[0] % groups == 0, f"{groups} groups do not divide {channels} and {w[0]} channels")
    _check_kernel(node, w, w[0])
    size = _windows(node, w[2:], x.shape[2:])
    columns = math.prod(size) * math.prod(w[1:])
    _check_columns(columns, w, x.shape)
    return gives((x.shape[0], w[0], *size), x.shape[0] * w[0] * columns, x.type)


def _conv_transpose(node: ShapeNode) -> Cost:
    x, w = _image(node), node.shape(1)
    axes = len(w) - 2
    need(len(x.shape) == len(w), f"its input and weight have the shapes {list(x.shape)} and {list(w)}")
    groups = node.whole("group", 1)
    need(groups >= 1 and x.shape[1] == w[0] and w[0] % groups == 0, f"{groups} groups do not divide {x.shape[1]} channels")
    need("output_shape" not in node.attrs, "it states its output_shape")
    _check_kernel(node, w, w[1] * groups)
    strides, dilations = node.ints("strides", (1,) * axes, 1), node.ints("dilations", (1,) * axes, 1)
    pads, more = _pads(node, axes), node.ints("output_padding", (0,) * axes, 0)
    need(all(more[i] < strides[i] for i in range(axes)), f"its output_padding is {list(more)}")
    size = [
        strides[i] * (n - 1) + more[i] + dilations[i] * (w[i + 2] - 1) + 1 - pads[i] - pads[i + axes] for i, n in enumerate(x.shape[2:])
    ]
    columns = math.prod(x.shape[2:]) * math.prod(w[1:]) * groups
    _check_columns(columns, w, x.shape)
    return gives((x.shape[0], w[1] * groups, *size), math.prod(x.shape) * math.prod(w[1:]), x.type)


def _check_kernel(node: ShapeNode, weight: Shape, channels: int) -> None:
    need(all(n > 0 for n in weight), f"its weight has the shape {list(weight)}")
    need(node.attrs.get("kernel_shape", list(weight[2:])) == list(weight[2:]), "its kernel_shape is not that of its weight")
    bias = node.optional(2)
    need(bias is None or bias.shape == (channels,), "its bias is not one number a channel")


def _check_columns(columns: int, weight: Shape, x: Shape) -> None:
    need(columns <= MAX_COLUMNS, f"its kernel of {_times(weight[2:])} on {_times(x[2:])} pixels is too much")


def _pooled(node: ShapeNode, types: frozenset[int]) -> tuple[KnownTensor, int]:
    """What a pool makes, and the elements of its window."""
    x = _image(node, types)
    axes = len(x.shape) - 2
    kernel, pads = node.ints("kernel_shape", (0,) * axes, 1), _pads(node, axes)
    need(all(pad < kernel[i % axes] for i, pad in enumerate(pads)), "its padding is larger than its window")
    return KnownTensor((*x.shape[:2], *_windows(node, kernel, x.shape[2:])), x.type), math.prod(kernel)


def _average_pool(node: ShapeNode) -> Cost:
    pooled, taps = _pooled(node, REALS)
    return Cost((pooled,), pooled.size * taps)


def _max_pool(node: ShapeNode) -> Cost:
    """The largest element of each window, and where it lies where that is asked for."""
    pooled, taps = _pooled(node, REALS | BYTES)
    return Cost((pooled, KnownTensor(pooled.shape, INT64))[: node.results], pooled.size * taps)


def _global_pool(node: ShapeNode) -> Cost:
    x = _image(node)
    return gives((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.size, x.type)


def _columns_to_image(node: ShapeNode) -> Cost:
    """Windows that lie side by side, (n, channels · window, windows), added up where they overlap in an image."""
    x, image, kernel = node.tensor(0, REALS), tuple(node.numbers(1)), tuple(node.numbers(2))
    need(1 <= len(image) == len(kernel) <= 3 and min(*image, *kernel) > 0, f"it makes an image of {_times(image)} with {_times(kernel)}")
    shape = (math.prod(kernel), math.prod(_windows(node, kernel, image)))
    fits = len(x.shape) == 3 and x.shape[1] % shape[0] == 0 and x.shape[2] == shape[1]
    need(fits, f"its input has the shape {list(x.shape)} for {shape[1]} windows of {shape[0]} pixels")
    return gives((x.shape[0], x.shape[1] // shape[0], *image), x.size, x.type)


def _lp_pool(node: ShapeNode) -> Cost:
    need(1 <= node.whole("p", 2) <= MAX_STEP, "its p is no small number")
    return _average_pool(node)


RULES: Mapping[str, Rule] = {
    "AveragePool": _average_pool,
    "Col2Im": _columns_to_image,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
