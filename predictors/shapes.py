"""Shapes and attributes of operators: their types, checked access, and windows that slide over an image."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, prod

Shape = tuple[int, ...]
#: Shape of one input of a network, or shapes of several, by order or by the names of the forward's arguments.
InputShapes = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
Attr = bool | int | float | str | tuple[int, ...]
Attrs = Mapping[str, Attr]


def ints(attrs: Attrs, key: str) -> tuple[int, ...]:
    """Return the tuple of ints `attrs[key]`; raise TypeError for any other value."""
    value = attrs[key]
    if not isinstance(value, tuple):
        raise TypeError(f"`{key}` is {value!r}, not a list of numbers")
    return value


def integer(attrs: Attrs, key: str, default: int | None = None) -> int:
    """Return the int `attrs[key]`; raise TypeError for any other value."""
    value = attrs.get(key, default) if default is not None else attrs[key]
    if not isinstance(value, int):
        raise TypeError(f"`{key}` is {value!r}, not a whole number")
    return value


def number(attrs: Attrs, key: str) -> float:
    """Return the float `attrs[key]`; raise TypeError for any other value."""
    value = attrs[key]
    if not isinstance(value, int | float):
        raise TypeError(f"`{key}` is {value!r}, not a number")
    return float(value)


def rank4(shape: Shape) -> Shape:
    """Return `shape`, which must be N×C×H×W; raise ValueError if it is not."""
    if len(shape) != 4:
        raise ValueError(f"it needs an N×C×H×W tensor, it reads {shape}")
    return shape


def window_shape(image: Shape, attrs: Attrs, channels: int) -> Shape:
    """Return the output shape of a window that slides over an image.

    Args:
        image: N×C×H×W.
        attrs: ``kernel``, ``stride``, ``padding`` (top, left, bottom, right), optionally ``dilation`` and ``ceil_mode``.
    """
    n, _, h, w = rank4(image)
    kernel, stride = ints(attrs, "kernel"), ints(attrs, "stride")
    top, left, bottom, right = ints(attrs, "padding")
    dilation = ints(attrs, "dilation") if "dilation" in attrs else (1, 1)
    rounding = ceil if attrs.get("ceil_mode") else floor
    out = []
    for size, k, s, d, before, after in (
        (h, kernel[0], stride[0], dilation[0], top, bottom),
        (w, kernel[1], stride[1], dilation[1], left, right),
    ):
        count = rounding((size + before + after - d * (k - 1) - 1) / s) + 1
        # A window that starts in the far padding is dropped, as in torch and ONNX.
        if attrs.get("ceil_mode") and (count - 1) * s >= size + before:
            count -= 1
        out.append(count)
    return (n, channels, out[0], out[1])


def same_padding(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], *, odd_first: bool = False
) -> tuple[int, ...]:
    """Return the padding before, then after each axis, that gives as many windows as strides; an odd padding has more after, or before."""
    totals = [max(0, (n - 1) // s * s + d * (k - 1) + 1 - n) for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (*large, *small) if odd_first else (*small, *large)


def width(shape: Shape) -> int:
    """Return the number of channels of a tensor; 1 for a tensor without an axis for them."""
    return shape[1] if len(shape) > 1 else 1


def with_width(shape: Shape, channels: int) -> Shape:
    """Return the shape with another number of channels; unchanged without an axis for them."""
    return (shape[0], channels, *shape[2:]) if len(shape) > 1 else shape


def pixels(shape: Shape) -> int:
    """Return the number of positions of a tensor, including the batch."""
    return prod(shape) // width(shape)
