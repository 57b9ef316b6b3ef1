"""Originals for images of 32×32 pixels other than ResNets: their first layers keep the resolution, as is usual for CIFAR-10."""

from torch import nn
from torchvision.models import MobileNetV2
from torchvision.models.regnet import BlockParams, RegNet

#: Expansion, channels, blocks and stride of the stages (Sandler et al. 2018, table 2), with stride 1 in the second.
STAGES = [[1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]]


def mobilenetv2() -> nn.Module:
    """MobileNetV2 of 88 million multiply-accumulates, with ten classes."""
    network: nn.Module = MobileNetV2(num_classes=10, inverted_residual_setting=STAGES)
    next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d)).stride = (1, 1)
    return network


def regnetx() -> nn.Module:
    """RegNetX (Radosavovic et al. 2020) of three stages and 70 million multiply-accumulates, with ten classes."""
    stages = BlockParams(
        depths=(3, 5, 7), widths=(32, 64, 128), group_widths=(16,) * 3, bottleneck_multipliers=(1.0,) * 3, strides=(1, 2, 2)
    )
    network: nn.Module = RegNet(stages, num_classes=10, stem_width=32)
    next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d)).stride = (1, 1)
    return network
