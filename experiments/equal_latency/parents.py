"""Originals for images of 32×32 pixels: ResNets, and two networks of their size whose first layers keep the resolution."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Parent:
    """An original."""

    make: "Callable[[], nn.Module]"  # Function that builds the untrained network.
    depths: tuple[int, ...]  # Number of blocks of the stages between stem and head.
    widths: tuple[int, ...] = (16, 32, 64)  # Channels of these stages.
    stem: int = 16  # Channels of the stem, which shrinks with the first stage.
    step: int = 4  # Divisor of the channels of smaller networks.


def resnet(name: str) -> "nn.Module":
    """Build a ResNet for CIFAR-10 (He et al. 2016)."""
    from stretch.network.models.load import load_model

    return load_model(f"{name}_cifar10", weights="none").module


def mobilenetv2() -> "nn.Module":
    """Build a MobileNetV2 (Sandler et al. 2018, table 2) of 88 million multiply-accumulates, with ten classes."""
    from torchvision.models import MobileNetV2

    # expansion, channels, blocks and stride of the stages; the second keeps the resolution
    stages = [[1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]]
    return _at_full_resolution(MobileNetV2(num_classes=10, inverted_residual_setting=stages))


def regnetx() -> "nn.Module":
    """Build a RegNetX (Radosavovic et al. 2020) of three stages and 70 million multiply-accumulates, with ten classes."""
    from torchvision.models.regnet import BlockParams, RegNet

    stages = BlockParams(
        depths=(3, 5, 7), widths=(32, 64, 128), group_widths=(16,) * 3, bottleneck_multipliers=(1.0,) * 3, strides=(1, 2, 2)
    )
    return _at_full_resolution(RegNet(stages, num_classes=10, stem_width=32))


def _at_full_resolution(network: "nn.Module") -> "nn.Module":
    """Set the stride of the network's first convolution to 1, and return the network."""
    from torch import nn

    next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d)).stride = (1, 1)
    return network


RESNETS = {name: Parent(partial(resnet, name), (blocks,) * 3) for name, blocks in (("resnet20", 3), ("resnet32", 5), ("resnet56", 9))}
OTHERS = {
    "mobilenetv2": Parent(mobilenetv2, (2, 3, 4, 3, 3), (24, 32, 64, 96, 160), stem=32, step=8),
    "regnetx": Parent(regnetx, (3, 5, 7), (32, 64, 128), stem=32, step=16),
}
PARENTS = RESNETS | OTHERS
