"""Operators that slide a window over the image: convolution and pooling, NCHW.

ONNX pads are (top, left, bottom, right).
"""

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from scheduler.delegates.base import Array


def conv(node: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Convolution with groups, strides, dilations and pads.

    Args:
        x: Images, N×C×H×W.
        weight: M×(C/groups)×kH×kW.
        bias: M, or None.
    """
    groups = node.attrs.get("group", 1)
    n, channels = x.shape[:2]
    outputs, _, kh, kw = weight.shape
    windows = _windows(node, x.astype(np.float64), (kh, kw), 0.0, ceil=False)
    oh, ow = windows.shape[2:4]
    # N, group, (channel, kernel), pixel: one matrix product per group.
    columns = windows.reshape(n, groups, channels // groups, oh * ow, kh * kw).swapaxes(3, 4)
    columns = columns.reshape(n, groups, channels // groups * kh * kw, oh * ow)
    kernel = weight.astype(np.float64).reshape(groups, outputs // groups, -1)
    y = (kernel @ columns).reshape(n, outputs, oh, ow)
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    return np.asarray(y.astype(x.dtype))


def max_pool(node: Any, x: Array) -> Array:
    """Largest element of each window; padding never wins."""
    kernel = tuple(node.attrs["kernel_shape"])
    windows = _windows(node, x, kernel, -np.inf, ceil=bool(node.attrs.get("ceil_mode", 0)))
    return np.asarray(windows.max(axis=(4, 5)))


def average_pool(node: Any, x: Array) -> Array:
    """Mean of each window.

    With ``count_include_pad`` the padding counts as zeros; what ``ceil_mode``
    adds beyond the padding never counts.
    """
    kernel = tuple(node.attrs["kernel_shape"])
    ceil = bool(node.attrs.get("ceil_mode", 0))
    total = _windows(node, x.astype(np.float64), kernel, 0.0, ceil).sum(axis=(4, 5))
    inside = np.ones((1, 1, *x.shape[2:]))
    if node.attrs.get("count_include_pad", 0):
        top, left, bottom, right = _pads(node)
        inside = np.ones((1, 1, x.shape[2] + top + bottom, x.shape[3] + left + right))
        count = _windows(node, inside, kernel, 0.0, ceil, padded=True).sum(axis=(4, 5))
    else:
        count = _windows(node, inside, kernel, 0.0, ceil).sum(axis=(4, 5))
    return np.asarray((total / count).astype(x.dtype))


def _pads(node: Any) -> tuple[int, int, int, int]:
    if node.attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ValueError("auto_pad is not defined here, write the pads out")
    top, left, bottom, right = node.attrs.get("pads", (0, 0, 0, 0))
    return top, left, bottom, right


def _windows(node: Any, x: Array, kernel: tuple[int, ...], fill: float, ceil: bool, padded: bool = False) -> Array:
    """Windows of `x` as N×C×oH×oW×kH×kW; `padded` says that `x` has its pads already."""
    strides = node.attrs.get("strides", (1, 1))
    dilations = node.attrs.get("dilations", (1, 1))
    pads = _pads(node)
    widths = [(0, 0), (0, 0)]
    counts = []
    for axis in (0, 1):
        before, after = pads[axis], pads[axis + 2]
        size = x.shape[axis + 2] + (0 if padded else before + after)
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        exact = (size - reach) / strides[axis]
        count = (math.ceil(exact) if ceil else math.floor(exact)) + 1
        # A window that starts in the far padding is dropped.
        if ceil and (count - 1) * strides[axis] >= size - after:
            count -= 1
        extra = max(0, (count - 1) * strides[axis] + reach - size)
        widths.append((0, extra) if padded else (before, after + extra))
        counts.append(count)
    if min(counts) < 1:
        raise ValueError(f"a window of {kernel} does not fit into {x.shape[2:]} with pads {pads}")
    full = np.pad(x, widths, constant_values=fill)
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    view = sliding_window_view(full, reach, axis=(2, 3))
    view = view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    return np.asarray(view[:, :, : counts[0], : counts[1]])
