"""torchvision's networks that give each pixel a class."""

from typing import ClassVar

import torchvision.models as tv
from torch import Tensor, nn

from scheduler.bundle.preprocessing import Preprocessing
from stretch.models.download import read_weights, trained_weights_file
from stretch.models.families import families

#: Networks whose published weights have an auxiliary head.
_AUXILIARY = ("fcn_", "deeplabv3_")

CHECKED = frozenset({"deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"})


@families.register("segmentation")
class SegmentationFamily:
    """Networks of `torchvision.models.segmentation`, called by their names there; they return ``out``, and ``aux`` where they have it."""

    prefix: ClassVar[str] = ""

    def names(self) -> list[str]:
        """Names of torchvision's networks for segmentation."""
        return tv.list_models(module=tv.segmentation)

    def build(self, name: str) -> nn.Module:
        """One network, initialised from torch's global generator."""
        options = {"aux_loss": True} if name.startswith(_AUXILIARY) else {}
        return tv.get_model(name, weights=None, weights_backbone=None, **options)

    def input_shape(self, name: str) -> tuple[int, ...]:
        """1 × 3 × the size of the default weights' pictures, twice."""
        size = tv.get_model_weights(name).DEFAULT.transforms.keywords["resize_size"]
        return (1, 3, size, size)

    def preprocessing(self, name: str) -> Preprocessing:
        """The transforms of the default weights."""
        preset = tv.get_model_weights(name).DEFAULT.transforms()
        return Preprocessing(tuple(preset.mean), tuple(preset.std), 1.0, interpolation=preset.interpolation.value)

    def default_weights(self, name: str) -> tuple[dict[str, Tensor], str]:
        """The weights torchvision calls default, from the local hub folder or the network."""
        weights = tv.get_model_weights(name).DEFAULT
        return read_weights(trained_weights_file(weights.url)), f"torchvision {weights}"

    def checked(self) -> frozenset[str]:
        """The networks branched in the project's tests."""
        return CHECKED
