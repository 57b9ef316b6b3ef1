"""U-Net (Ronneberger and others, 2015) with padded convolutions and batch norm: `stretch branch experiments/real_processors/unet.py:unet`.

Levels expand by repeated pixels and a 3×3 convolution, because none of our kernels computes transposed convolutions.
"""

from itertools import pairwise

import torch
from torch import nn


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3×3 convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Contracts level by level, then expands and adds the maps before each contraction."""

    def __init__(self, classes: int = 21, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.first, self.last = twice(3, widths[0]), nn.Conv2d(widths[0], classes, 1)
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), twice(upper, lower)) for upper, lower in pairs)
        self.up = nn.ModuleList(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(lower, upper, 3, padding=1)) for upper, lower in pairs)
        self.merge = nn.ModuleList(twice(2 * upper, upper) for upper in widths[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of each pixel."""
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([levels.pop(), up(x)], 1))
        return self.last(x)


#: The network as published, for 21 classes.
unet = UNet
