"""torchvision's classifiers."""

from typing import Any, ClassVar

import torchvision.models as tv
from torch import Tensor, nn

from scheduler.bundle.preprocessing import Preprocessing
from stretch.models.download import read_weights, trained_weights_file
from stretch.models.families import families

#: Inputs of models whose weights do not tell a crop size.
USUAL_SIZE = 224

CHECKED = frozenset(
    {
        "efficientnet_b0",
        "efficientnet_b5",
        "mobilenet_v2",
        "mobilenet_v3_large",
        "regnet_x_1_6gf",
        "regnet_x_400mf",
        "resnet18",
        "resnet34",
        "resnet50",
    }
)


@families.register("torchvision")
class TorchvisionFamily:
    """Classifiers of `torchvision.models`, called by their names there."""

    prefix: ClassVar[str] = ""

    def names(self) -> list[str]:
        """Names of torchvision's classifiers."""
        return tv.list_models(module=tv)

    def build(self, name: str) -> nn.Module:
        """One classifier, initialised from torch's global generator."""
        options: dict[str, Any] = {}
        if name in ("googlenet", "inception_v3"):
            # these two warn where the caller leaves their initialisation open
            options["init_weights"] = True
        elif name.startswith("vit_"):
            # their table of positions has the input's size, which the default weights state
            options["image_size"] = self.input_shape(name)[-1]
        return tv.get_model(name, weights=None, **options)

    def input_shape(self, name: str) -> tuple[int, ...]:
        """1 × 3 × the crop size of the default weights, twice."""
        weights = tv.get_model_weights(name).DEFAULT
        size = weights.transforms.keywords.get("crop_size", USUAL_SIZE)
        return (1, 3, size, size)

    def preprocessing(self, name: str) -> Preprocessing:
        """The transforms of the default weights."""
        preset = tv.get_model_weights(name).DEFAULT.transforms()
        crop = preset.crop_size[0] / preset.resize_size[0]
        return Preprocessing(tuple(preset.mean), tuple(preset.std), crop, interpolation=preset.interpolation.value)

    def default_weights(self, name: str) -> tuple[dict[str, Tensor], str]:
        """The weights torchvision calls default, from the local hub folder or the network."""
        weights = tv.get_model_weights(name).DEFAULT
        return read_weights(trained_weights_file(weights.url)), f"torchvision {weights}"

    def checked(self) -> frozenset[str]:
        """The classifiers branched in the project's tests."""
        return CHECKED
