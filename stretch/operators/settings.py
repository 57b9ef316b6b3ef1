"""Settings of torch's layers as attributes of operators, the same for modules and functions."""

from typing import Any

from predictors.shapes import Attr


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


def pooling_window(kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Attr]:
    """Attributes of a pooling window from torch's own settings."""
    kernel = pair(kernel_size)
    # torch takes an absent or empty stride to mean the kernel's size
    return {
        "kernel": kernel,
        "stride": pair(stride) if stride else kernel,
        "padding": window_padding(padding),
        "ceil_mode": bool(ceil_mode),
    }
