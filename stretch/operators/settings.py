"""Settings of torch's layers as attributes of operators, the same for modules and functions."""

from typing import Any

from predictors.shapes import Attr, Shape


class Refusal(Exception):
    """Why a node cannot be captured, as the end of the sentence about it."""


def pair(value: Any) -> tuple[int, int]:
    """`value` for height and width."""
    a, b = (value, value) if isinstance(value, int) else (value if len(value) == 2 else (value[0], value[0]))
    return (int(a), int(b))


def window_padding(value: Any) -> tuple[int, int, int, int]:
    """Symmetric torch padding as (top, left, bottom, right)."""
    h, w = pair(value)
    return (h, w, h, w)


def pooling_window(shape: Shape, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, dilation: Any = 1) -> dict[str, Attr]:
    """Attributes of a pooling window from torch's own settings.

    With `ceil_mode`, torch computes one window that is larger than its padded input, which ONNX refuses: it gets the size of what it covers.

    Args:
        stride: None or empty for the kernel's size.
    """
    kernel, steps, pads = pair(kernel_size), pair(dilation), window_padding(padding)
    rooms = [size + 2 * pad - 1 for size, pad in zip(shape[-2:], pads[:2], strict=True)]
    covered = tuple(min(k, room // d + 1) if ceil_mode else k for k, d, room in zip(kernel, steps, rooms, strict=True))
    if any(c < k and room % d for c, k, d, room in zip(covered, kernel, steps, rooms, strict=True)):
        raise Refusal("a dilated pooling window that is larger than its input is not supported")
    # torch takes an absent or empty stride to mean the kernel's size
    return {
        "kernel": covered,
        "stride": pair(stride) if stride else kernel,
        "padding": pads,
        "ceil_mode": bool(ceil_mode),
    }
