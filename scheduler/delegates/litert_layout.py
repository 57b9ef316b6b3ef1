"""The border of a LiteRT subgraph: images from channels first (NCHW) to channels last (NHWC) and back."""

from math import prod

import numpy as np

from scheduler.delegates.base import Array

#: Channels that are turned at a time on the way in; few enough that their rows stay in the nearest cache.
_CHANNELS = 32
#: Elements that are turned at a time on the way back.
_ELEMENTS = 8192


def to_nhwc(source: Array, target: Array) -> None:
    """Copy an image batch with channels first into one with channels last; other arrays are copied as they are.

    Args:
        source: N×C×H×W, contiguous.
        target: N×H×W×C, contiguous.
    """
    if source.ndim != 4 or source.size in (source.shape[1] * source.shape[0], prod(source.shape[2:]) * source.shape[0]):
        np.copyto(target, source.reshape(target.shape))
        return
    n, channels, height, width = source.shape
    rows, columns = source.reshape(n, channels, height * width), target.reshape(n, height * width, channels)
    for image in range(n):
        for first in range(0, channels, _CHANNELS):
            columns[image, :, first : first + _CHANNELS] = rows[image, first : first + _CHANNELS].T


def to_nchw(source: Array, target: Array) -> None:
    """Copy an image batch with channels last into one with channels first; other arrays are copied as they are."""
    if target.ndim != 4 or target.size in (target.shape[1] * target.shape[0], prod(target.shape[2:]) * target.shape[0]):
        np.copyto(target, source.reshape(target.shape))
        return
    n, channels, height, width = target.shape
    rows, columns = target.reshape(n, channels, height * width), source.reshape(n, height * width, channels)
    step = max(8, _ELEMENTS // channels)
    for image in range(n):
        for first in range(0, height * width, step):
            rows[image, :, first : first + step] = columns[image, first : first + step].T
