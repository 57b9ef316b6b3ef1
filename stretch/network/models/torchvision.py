"""torchvision's networks: classifiers, segmentation networks, and detectors up to the raw results of their heads."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torchvision.models as tv
from torch import Tensor, nn

from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from stretch.network.models.families import families
from stretch.network.models.weights import read_weights, trained_weights_file

#: Side of a classifier's pictures if the weights state no crop size, and the shorter side to which torchvision resizes for detectors.
USUAL_SIZE, DETECTOR_SIZE = 224, 800

#: Segmentation networks whose published weights have an auxiliary head.
_AUXILIARY = ("fcn_", "deeplabv3_")

#: Sides of a detector's pictures, in pixels, by the part of its name that states them.
_SIZES = {"ssd300": 300, "320": 320}

#: Mean and deviation of each channel if they are not ImageNet's (`torchvision.models.detection.ssd` and `ssdlite`).
_COLOURS = {
    "ssd300": ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)),
    "ssdlite320": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

#: Negligible compared with any variance; torch cannot train a batch norm with epsilon 0.
LEAST_EPSILON = 1e-12

#: Networks whose published weights were trained with batch norms without epsilon.
_WITHOUT_EPSILON = frozenset({"fasterrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"})


@families.register("torchvision")
class TorchvisionFamily:
    """Classifiers of `torchvision.models`, under the same names."""

    prefix: ClassVar[str] = ""
    listed: ClassVar[Any] = tv
    tested: ClassVar[frozenset[str]] = frozenset(
        {
            *("efficientnet_b0", "efficientnet_b5", "mobilenet_v2", "mobilenet_v3_large", "regnet_x_1_6gf", "regnet_x_400mf"),
            *("resnet18", "resnet34", "resnet50"),
        }
    )

    def names(self) -> list[str]:
        """Return the names of torchvision's networks of this kind."""
        return list(tv.list_models(module=self.listed))

    def build(self, name: str) -> nn.Module:
        """Build one classifier, initialised from torch's global generator."""
        options: dict[str, Any] = {}
        if name in ("googlenet", "inception_v3"):
            # these two warn if the caller leaves their initialisation open
            options["init_weights"] = True
        elif name.startswith("vit_"):
            # their table of positions has the input's size, which the default weights state
            options["image_size"] = self.input_shape(name)[-1]
        network: nn.Module = tv.get_model(name, weights=None, **options)
        return network

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return 1 × 3 × size × size, with the crop size of the default weights."""
        size = tv.get_model_weights(name).DEFAULT.transforms.keywords.get("crop_size", USUAL_SIZE)
        return (1, 3, size, size)

    def preprocessing(self, name: str) -> Preprocessing:
        """Return the preprocessing in the transforms of the default weights."""
        preset = tv.get_model_weights(name).DEFAULT.transforms()
        crop = preset.crop_size[0] / preset.resize_size[0] if hasattr(preset, "crop_size") else 1.0
        return Preprocessing(tuple(preset.mean), tuple(preset.std), crop, interpolation=preset.interpolation.value)

    def default_weights(self, name: str) -> tuple[dict[str, Tensor], str]:
        """Return the weights that torchvision calls default, from the local hub folder or the internet."""
        weights = tv.get_model_weights(name).DEFAULT
        return read_weights(trained_weights_file(weights.url)), f"torchvision {weights}"

    def checked(self) -> frozenset[str]:
        """Return the names of the networks that the project's tests branch."""
        return self.tested


@families.register("segmentation")
class SegmentationFamily(TorchvisionFamily):
    """Networks of `torchvision.models.segmentation`, under the same names; they return ``out``, and ``aux`` if they have that head."""

    listed = tv.segmentation
    tested = frozenset({"deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"})

    def build(self, name: str) -> nn.Module:
        """Build one network, initialised from torch's global generator."""
        options = {"aux_loss": True} if name.startswith(_AUXILIARY) else {}
        network: nn.Module = tv.get_model(name, weights=None, weights_backbone=None, **options)
        return network

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return 1 × 3 × size × size, with the picture size of the default weights."""
        size = tv.get_model_weights(name).DEFAULT.transforms.keywords["resize_size"]
        return (1, 3, size, size)


class RawDetector(nn.Module):
    """A detector without the steps before its backbone and after its heads; a two-stage detector ends with the proposal head.

    Args:
        detector: A detector of torchvision; its modules are reused.
    """

    def __init__(self, detector: Any, name: str) -> None:
        super().__init__()
        self.proposes = not hasattr(detector, "head")
        self.backbone, self.head = detector.backbone, detector.rpn.head if self.proposes else detector.head
        remainder = (
            "its maps and the results of its proposal head: proposals are chosen, and the heads of single regions are run, by the program that "
            "reads them, since how many regions there are depends on the picture"
            if self.proposes
            else "the results of its heads, one for each anchor: boxes are decoded and chosen by the program that reads them, as torchvision's "
            "`postprocess_detections` does"
        )
        self.warnings = [f"`{name}` is taken from the picture to {remainder}"]

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Return the heads' results for pictures (batch, 3, height, width); a two-stage detector adds its feature maps."""
        features = self.backbone(x)
        maps = list(features.values()) if isinstance(features, Mapping) else [features]
        results = self.head(maps)
        return {"maps": maps, "objectness": results[0], "boxes": results[1]} if self.proposes else results


@families.register("detection")
class DetectionFamily(TorchvisionFamily):
    """Networks of `torchvision.models.detection`, under the same names, up to the raw results of their heads."""

    listed = tv.detection
    tested = frozenset(
        {
            *("fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn", "retinanet_resnet50_fpn"),
            "ssdlite320_mobilenet_v3_large",
        }
    )

    def build(self, name: str) -> nn.Module:
        """Build one detector, initialised from torch's global generator."""
        detector = tv.get_model(name, weights=None, weights_backbone=None)
        if name in _WITHOUT_EPSILON:
            for module in detector.backbone.body.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eps = LEAST_EPSILON
        return RawDetector(detector, name)

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return 1 × 3 × size × size, with the size in the name or the shorter side to which torchvision resizes."""
        size = next((size for part, size in _SIZES.items() if part in name), DETECTOR_SIZE)
        return (1, 3, size, size)

    def preprocessing(self, name: str) -> Preprocessing:
        """Return the preprocessing of the transform within torchvision's detector, without its resizing."""
        mean, std = next((current for part, current in _COLOURS.items() if name.startswith(part)), (IMAGENET.mean, IMAGENET.std))
        return Preprocessing(mean, std, 1.0)

    def default_weights(self, name: str) -> tuple[dict[str, Tensor], str]:
        """Return torchvision's default weights of the backbone and the heads, from the local hub folder or the internet."""
        tensors, origin = super().default_weights(name)
        renamed = {key.replace("rpn.head.", "head.", 1) if key.startswith("rpn.head.") else key: value for key, value in tensors.items()}
        return {key: value for key, value in renamed.items() if key.startswith(("backbone.", "head."))}, origin
