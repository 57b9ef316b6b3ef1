"""Small networks of the well-known structures: a test with one of them takes a second."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from stretch.models.families import families
from stretch.models.small_resnet import BasicBlock, Bottleneck, SmallResNet

CLASSES = 10


class SmallVGG(nn.Module):
    """Convolutions and max-pooling without skips: no unit can be removed."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, batch × 10."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def tiny_resnet() -> nn.Module:
    """Three stages of three basic blocks."""
    return SmallResNet(BasicBlock, (16, 32, 64), 3)


def tiny_bottleneck() -> nn.Module:
    """Three stages of three bottleneck blocks."""
    return SmallResNet(Bottleneck, (16, 24, 32), 3)


def tiny_vgg() -> nn.Module:
    """Three stages of two plain convolutions."""
    return SmallVGG((16, 32, 64))


def tiny_mobilenet() -> nn.Module:
    """MobileNetV3 in small: inverted bottlenecks, squeeze-and-excitation, hard-swish."""
    # importing torchvision takes longer than all the rest of a small network's way
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    conf = partial(InvertedResidualConfig, dilation=1, width_mult=1.0)
    settings = [
        conf(16, 3, 16, 16, False, "RE", stride=1),
        conf(16, 3, 48, 24, False, "RE", stride=2),
        conf(24, 3, 64, 24, False, "RE", stride=1),
        conf(24, 3, 64, 24, False, "RE", stride=1),
        conf(24, 5, 72, 40, True, "HS", stride=2),
        conf(40, 5, 96, 40, True, "HS", stride=1),
        conf(40, 5, 96, 40, True, "HS", stride=1),
    ]
    return MobileNetV3(settings, last_channel=128, num_classes=CLASSES)


def tiny_efficientnet() -> nn.Module:
    """EfficientNet in small: inverted bottlenecks, squeeze-and-excitation, SiLU, stochastic depth."""
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    conf = partial(MBConvConfig, width_mult=1.0, depth_mult=1.0)
    settings = [
        conf(1, 3, 1, 16, 16, 1),
        conf(4, 3, 2, 16, 24, 3),
        conf(4, 5, 2, 24, 40, 3),
    ]
    return EfficientNet(settings, dropout=0.2, num_classes=CLASSES)


def tiny_regnet() -> nn.Module:
    """RegNetX in small: grouped convolutions, group width 8."""
    from torchvision.models.regnet import BlockParams, RegNet

    params = BlockParams(depths=[3, 3], widths=[32, 64], group_widths=[8, 8], bottleneck_multipliers=[1.0, 1.0], strides=[2, 2])
    return RegNet(params, num_classes=CLASSES, stem_width=16)


_MODELS = {
    "tiny_bottleneck": (tiny_bottleneck, 32),
    "tiny_efficientnet": (tiny_efficientnet, 64),
    "tiny_mobilenet": (tiny_mobilenet, 64),
    "tiny_regnet": (tiny_regnet, 64),
    "tiny_resnet": (tiny_resnet, 32),
    "tiny_vgg": (tiny_vgg, 32),
}


@families.register("tiny")
class TinyFamily:
    """The small networks of this file; none has trained weights."""

    prefix: ClassVar[str] = ""

    def names(self) -> list[str]:
        """Names of the small networks."""
        return sorted(_MODELS)

    def build(self, name: str) -> nn.Module:
        """One small network, initialised from torch's global generator."""
        return _MODELS[name][0]()

    def input_shape(self, name: str) -> tuple[int, ...]:
        """1 × 3 × size × size."""
        size = _MODELS[name][1]
        return (1, 3, size, size)

    def default_weights(self, name: str) -> None:
        """None: nobody trained them."""
        return

    def checked(self) -> frozenset[str]:
        """All of them."""
        return frozenset(_MODELS)
