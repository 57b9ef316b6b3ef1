"""Small networks of well-known structures for tests that take about a second, and the ResNets for CIFAR."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from stretch.network.models.families import CIFAR_CLASSES, CIFAR_DEPTHS, families


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
        """Return the block's output, channels × height / stride × width / stride."""
        y: Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)) + self.downsample(x))
        return y


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
        """Return the block's output, 4 · channels × height / stride × width / stride."""
        y: Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.relu(self.bn3(self.conv3(y)) + self.downsample(x))
        return y


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
        """Return the class scores, batch × classes."""
        y: Tensor = self.stages(self.relu(self.bn1(self.conv1(x))))
        y = self.fc(torch.flatten(self.avgpool(y), 1))
        return y


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
        """Return the class scores, batch × 10."""
        scores: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return scores


def tiny_resnet() -> nn.Module:
    """Build a ResNet of three stages with three basic blocks each."""
    return SmallResNet(BasicBlock, (16, 32, 64), 3)


def tiny_bottleneck() -> nn.Module:
    """Build a ResNet of three stages with three bottleneck blocks each."""
    return SmallResNet(Bottleneck, (16, 24, 32), 3)


def tiny_vgg() -> nn.Module:
    """Build a network of three stages with two plain convolutions each."""
    return SmallVGG((16, 32, 64))


def tiny_mobilenet() -> nn.Module:
    """Build a small MobileNetV3: inverted bottlenecks, squeeze-and-excitation, hard-swish."""
    # imported here because torchvision takes longer to import than a small network takes to run
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
    network: nn.Module = MobileNetV3(settings, last_channel=128, num_classes=CLASSES)
    return network


def tiny_efficientnet() -> nn.Module:
    """Build a small EfficientNet: inverted bottlenecks, squeeze-and-excitation, SiLU, stochastic depth."""
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    conf = partial(MBConvConfig, width_mult=1.0, depth_mult=1.0)
    settings = [
        conf(1, 3, 1, 16, 16, 1),
        conf(4, 3, 2, 16, 24, 3),
        conf(4, 5, 2, 24, 40, 3),
    ]
    network: nn.Module = EfficientNet(settings, dropout=0.2, num_classes=CLASSES)
    return network


def tiny_regnet() -> nn.Module:
    """Build a small RegNetX: grouped convolutions, group width 8."""
    from torchvision.models.regnet import BlockParams, RegNet

    params = BlockParams(depths=[3, 3], widths=[32, 64], group_widths=[8, 8], bottleneck_multipliers=[1.0, 1.0], strides=[2, 2])
    network: nn.Module = RegNet(params, num_classes=CLASSES, stem_width=16)
    return network


#: A network: its factory, the side of its pictures in pixels, and their normalisation.
Model = tuple[Callable[[], nn.Module], int, Preprocessing]


@families.register("tiny")
class TinyFamily:
    """The small networks of this file, initialised from torch's global generator; none has trained weights."""

    prefix: ClassVar[str] = ""
    models: ClassVar[Mapping[str, Model]] = {
        "tiny_bottleneck": (tiny_bottleneck, 32, IMAGENET),
        "tiny_efficientnet": (tiny_efficientnet, 64, IMAGENET),
        "tiny_mobilenet": (tiny_mobilenet, 64, IMAGENET),
        "tiny_regnet": (tiny_regnet, 64, IMAGENET),
        "tiny_resnet": (tiny_resnet, 32, IMAGENET),
        "tiny_vgg": (tiny_vgg, 32, IMAGENET),
    }

    def names(self) -> list[str]:
        """Return the names of the small networks."""
        return sorted(self.models)

    def build(self, name: str) -> nn.Module:
        """Return one small network."""
        return self.models[name][0]()

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return 1 × 3 × size × size."""
        size = self.models[name][1]
        return (1, 3, size, size)

    def preprocessing(self, name: str) -> Preprocessing:
        """Return the preprocessing of the pictures that the network is made for."""
        return self.models[name][2]

    def default_weights(self, name: str) -> None:
        """Return None, because nobody published trained weights under these names."""
        return

    def checked(self) -> frozenset[str]:
        """Return the names of all models."""
        return frozenset(self.models)


#: Preprocessing of whole pictures, by the mean and deviation of the 50 000 training images' colours.
CIFAR_MOMENTS = {
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 1.0),
    "cifar100": Preprocessing((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 1.0),
}


@families.register("cifar")
class CifarFamily(TinyFamily):
    """ResNets for CIFAR of He et al. 2016, section 4.2: resnet20_cifar10, resnet56_cifar100, …; none has trained weights.

    A stage that changes the shape starts with a 1×1 projection (their option B), because the zero-padded identity of option A
    has no channels to scale.
    """

    models: ClassVar[Mapping[str, Model]] = {
        # networks of 6 · n + 2 layers have n blocks in each of three stages
        f"resnet{depth}_{data}": (partial(SmallResNet, BasicBlock, (16, 32, 64), (depth - 2) // 6, classes), 32, CIFAR_MOMENTS[data])
        for depth in CIFAR_DEPTHS
        for data, classes in CIFAR_CLASSES.items()
    }

    def checked(self) -> frozenset[str]:
        """Return the names of the two networks in recipes."""
        return frozenset({"resnet20_cifar10", "resnet56_cifar10"})
