"""The CIFAR ResNets of He et al. 2016, section 4.2: resnet20_cifar10, resnet56_cifar100, ….

A stage that changes the shape starts with a 1×1 projection (their option B),
since the zero-padded identity of option A has no channels to scale.
"""

from typing import ClassVar

from torch import nn

from scheduler.bundle.preprocessing import Preprocessing
from stretch.models.families import families
from stretch.models.names import CIFAR_CLASSES, cifar_names
from stretch.models.small_resnet import BasicBlock, SmallResNet

#: Mean and deviation of the 50 000 training images' colours.
MOMENTS = {
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 1.0),
    "cifar100": Preprocessing((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 1.0),
}


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

    def preprocessing(self, name: str) -> Preprocessing:
        """Whole pictures, normalised by the moments of the training images."""
        return MOMENTS[name.partition("_")[2]]

    def default_weights(self, name: str) -> None:
        """None: nobody published trained ones under these names."""
        return

    def checked(self) -> frozenset[str]:
        """The two that recipes use."""
        return frozenset({"resnet20_cifar10", "resnet56_cifar10"})
