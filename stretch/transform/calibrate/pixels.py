"""The pixels that regressions look at, and what a convolution reads for each of them."""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from stretch.operators.products import PaddedConv2d

#: Rows of a regression, where images have so many pixels: a hundred and more for each input of a small network's layers.
ROWS = 2**16
#: Multiplications of inputs with inputs that a regression may cost, and numbers it may hold: wide layers get fewer rows …
PRODUCTS = 2 * 10**10
NUMBERS = 2**26
#: … but so many for each input.
ROWS_PER_INPUT = 4
#: Pixels of one image, beyond which its others say next to nothing new: neighbours read much the same.
PIXELS = 256


def pixels_for(images: int, inputs: int, groups: int = 1) -> int:
    """Pixels of every image that make up the rows of a regression."""
    rows = min(ROWS, PIXELS * images, PRODUCTS // (groups * inputs**2), NUMBERS // (groups * inputs))
    return math.ceil(max(rows, ROWS_PER_INPUT * inputs) / images)


@lru_cache(maxsize=256)
def chosen_pixels(height: int, width: int, count: int) -> torch.Tensor:
    """Numbers of `count` pixels of a map, ascending; all of them where it has no more.

    They depend on the size of the map alone: every image gives the same ones, so
    that results do not depend on how images are divided into batches.
    """
    if count >= height * width:
        return torch.arange(height * width)
    generator = torch.Generator().manual_seed(height * width)
    return torch.randperm(height * width, generator=generator)[:count].sort().values


def rows_of(x: torch.Tensor, count: int) -> torch.Tensor:
    """Channels of the chosen pixels, (images · pixels, channels); a vector is one pixel."""
    if x.dim() == 2:
        return x
    chosen = chosen_pixels(x.shape[2], x.shape[3], count).to(x.device)
    return x.flatten(2).mT.index_select(1, chosen).flatten(0, 1)


def patches(layer: nn.Conv2d | nn.Linear, x: torch.Tensor, out: tuple[int, ...], count: int) -> torch.Tensor:
    """What `layer` reads for each chosen pixel of its output.

    Returns:
        (images · pixels, channels · kernel height · kernel width), the order of its weights.
    """
    if isinstance(layer, nn.Linear):
        return x
    height, width = out[2:]
    chosen = chosen_pixels(height, width, count).to(x.device)
    (tall, wide), (down, across), (dy, dx) = layer.kernel_size, layer.stride, layer.dilation
    top, left, bottom, right = layer.pads if isinstance(layer, PaddedConv2d) else (*_pair(layer), *_pair(layer))
    padded = F.pad(x, (left, right, top, bottom))
    rows = (chosen // width * down)[:, None] + torch.arange(tall, device=x.device) * dy
    columns = (chosen % width * across)[:, None] + torch.arange(wide, device=x.device) * dx
    places = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).flatten(1)
    # Gathered pixel by pixel: whole pixels lie together where images are stored channels last.
    read = padded.flatten(2).mT.index_select(1, places.flatten()).reshape(len(x), len(chosen), tall * wide, x.shape[1])
    return read.mT.reshape(-1, x.shape[1] * tall * wide)


def _pair(layer: nn.Conv2d) -> tuple[int, int]:
    padding = layer.padding
    assert isinstance(padding, tuple)
    return padding[0], padding[1]
