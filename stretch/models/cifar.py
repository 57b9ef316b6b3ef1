"""The CIFAR ResNets of He et al. 2016, section 4.2: resnet20_cifar10, resnet56_cifar100, ….

A stage that changes the shape starts with a 1×1 projection (their option B),
since the zero-padded identity of option A has no channels to scale.
"""

from typing import ClassVar

from torch import nn

from stretch.models.families import families
from stretch.models.names import CIFAR_CLASSES, cifar_names
from stretch.models.small_resnet import BasicBlock, SmallResNet


@families.register("cifar")
class CifarFamily:
    """ResNets for 32×32 images; none has trained weights."""

    prefix: ClassVar[str] = ""

    def names(self) -> list[str]:
        """``resnet<layers>_<dataset>``."""
        return cifar_names()

    def build(self, name: str) -> nn.Module:
        """One ResNet, initialised from torch's global generator."""
        depth, data = name.removeprefix("resnet").split("_")
        # 6 · n + 2 layers have n blocks in each of three stages
        return SmallResNet(BasicBlock, (16, 32, 64), (int(depth) - 2) // 6, CIFAR_CLASSES[data])

    def input_shape(self, name: str) -> tuple[int, ...]:
        """1 × 3 × 32 × 32."""
        return (1, 3, 32, 32)

    def default_weights(self, name: str) -> None:
        """None: nobody published trained ones under these names."""
        return

    def checked(self) -> frozenset[str]:
        """The two that recipes use."""
        return frozenset({"resnet20_cifar10", "resnet56_cifar10"})
