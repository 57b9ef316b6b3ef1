"""ResNets with the stem for small images (He et al. 2016, section 4.2)."""

from typing import ClassVar

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a skip (He et al. 2016, figure 5 left).

    Args:
        stride: Stride of the first convolution.
    """

    expansion: ClassVar[int] = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, channels × height / stride × width / stride."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 and a skip (He et al. 2016, figure 5 right), with the stride on the 3×3.

    Args:
        stride: Stride of the 3×3 convolution.
    """

    expansion: ClassVar[int] = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        out = channels * self.expansion
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels_in, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, 4 · channels × height / stride × width / stride."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _shortcut(channels_in: int, channels: int, stride: int) -> nn.Module:
    if stride == 1 and channels_in == channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))


class SmallResNet(nn.Module):
    """A ResNet with the CIFAR stem.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        widths: Block channels of each stage; every stage but the first halves the resolution.
    """

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], widths: tuple[int, ...], depth: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        stages = []
        channels = widths[0]
        for index, width in enumerate(widths):
            blocks = []
            for position in range(depth):
                blocks.append(block(channels, width, 2 if index and not position else 1))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, batch × classes."""
        y = self.stages(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(y), 1))
