"""Shapes and attributes of operators: their types, reading them with a check, and windows that slide over an image."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, prod

Shape = tuple[int, ...]
#: The shape of one input of a network; or of several, in their order or by the names of the forward's arguments.
InputShapes = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
Attr = bool | int | float | str | tuple[int, ...]
Attrs = Mapping[str, Attr]


def ints(attrs: Attrs, key: str) -> tuple[int, ...]:
    """Return the tuple of ints `attrs[key]`; raises TypeError if it is something else."""
    value = attrs[key]
    if not isinstance(value, tuple):
        raise TypeError(f"`{key}` is {value!r}, not a list of numbers")
    return value


def integer(attrs: Attrs, key: str, default: int | None = None) -> int:
    """Return the int `attrs[key]`; raises TypeError if it is something else."""
    value = attrs.get(key, default) if default is not None else attrs[key]
    if not isinstance(value, int):
        raise TypeError(f"`{key}` is {value!r}, not a whole number")
    return value


def number(attrs: Attrs, key: str) -> float:
    """Return the float `attrs[key]`; raises TypeError if it is something else."""
    value = attrs[key]
    if not isinstance(value, int | float):
        raise TypeError(f"`{key}` is {value!r}, not a number")
    return float(value)


def rank4(shape: Shape) -> Shape:
    """Return `shape`, which must be N×C×H×W; raises ValueError if it is not."""
    if len(shape) != 4:
        raise ValueError(f"it needs an N×C×H×W tensor, it reads {shape}")
    return shape


def window_shape(image: Shape, attrs: Attrs, channels: int) -> Shape:
    """Return the shape of what a window gives that slides over an image.

    Args:
        image: N×C×H×W.
        attrs: ``kernel``, ``stride``, ``padding`` (top, left, bottom, right), maybe ``dilation`` and ``ceil_mode``.
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
        o = rounding((size + before + after - d * (k - 1) - 1) / s) + 1
        # A window that starts in the far padding is dropped, as torch and ONNX do.
        if attrs.get("ceil_mode") and (o - 1) * s >= size + before:
            o -= 1
        out.append(o)
    return (n, channels, out[0], out[1])


def same_padding(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], *, odd_first: bool = False
) -> tuple[int, ...]:
    """Return the padding before each axis, then behind each, with which as many windows fit as strides; an odd one is behind, or before."""
    totals = [max(0, (n - 1) // s * s + d * (k - 1) + 1 - n) for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (*large, *small) if odd_first else (*small, *large)


def width(shape: Shape) -> int:
    """Return the channels of a tensor; one without an axis for them has one."""
    return shape[1] if len(shape) > 1 else 1


def with_width(shape: Shape, channels: int) -> Shape:
    """Return the shape of a tensor with other channels; one without an axis for them as it is."""
    return (shape[0], channels, *shape[2:]) if len(shape) > 1 else shape


def pixels(shape: Shape) -> int:
    """Return the positions of a tensor, batch included."""
    return prod(shape) // width(shape)
