"""torchvision's detectors, from the picture to the raw results of their heads."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torchvision.models as tv
from torch import Tensor, nn

from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from stretch.models.download import read_weights, trained_weights_file
from stretch.models.families import families

#: Side of the pictures where the name does not tell it: the shorter side that torchvision resizes to.
USUAL_SIZE = 800

#: Sides that names tell.
_SIZES = {"ssd300": 300, "320": 320}

#: Mean and deviation of each channel where they are not ImageNet's (`torchvision.models.detection.ssd` and `ssdlite`).
_COLOURS = {
    "ssd300": ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)),
    "ssdlite320": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

#: As good as none beside any variance; torch trains with no batch norm that has none at all.
LEAST_EPSILON = 1e-12

#: Networks whose published weights were trained with batch norms without epsilon.
_WITHOUT_EPSILON = frozenset({"fasterrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"})

CHECKED = frozenset(
    {
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "fcos_resnet50_fpn",
        "retinanet_resnet50_fpn",
        "ssdlite320_mobilenet_v3_large",
    }
)


class RawDetector(nn.Module):
    """A detector of one stage without what comes before its backbone and behind its heads.

    Args:
        detector: SSD, RetinaNet or FCOS of torchvision; its modules are taken over.
    """

    def __init__(self, detector: Any, name: str) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head
        self.warnings = [
            f"`{name}` is taken from the picture to the results of its heads, one for each anchor: boxes are decoded and chosen by "
            "whoever reads them, as torchvision's `postprocess_detections` does"
        ]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Scores and boxes of every anchor, (batch, anchors, …), of pictures (batch, 3, height, width)."""
        results: dict[str, Tensor] = self.head(_maps(self.backbone(x)))
        return results


class RawProposals(nn.Module):
    """The first stage of a detector of two: a pyramid of maps, and what the head of proposals makes of each.

    Args:
        detector: Faster R-CNN or a relative of it of torchvision; its modules are taken over.
    """

    def __init__(self, detector: Any, name: str) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.rpn.head
        self.warnings = [
            f"`{name}` is taken from the picture to its maps and the results of its proposal head: proposals are chosen, and the "
            "heads of single regions are run, by whoever reads them, since how many regions there are depends on the picture"
        ]

    def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
        """Maps, and of each the objectness and the boxes of its anchors, of pictures (batch, 3, height, width)."""
        maps = _maps(self.backbone(x))
        objectness, boxes = self.head(maps)
        return {"maps": maps, "objectness": objectness, "boxes": boxes}


def _maps(tensor: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
    """The maps of a backbone, largest first."""
    return list(tensor.values()) if isinstance(tensor, Mapping) else [tensor]


@families.register("detection")
class DetectionFamily:
    """Networks of `torchvision.models.detection`, called by their names there, up to the raw results of their heads."""

    prefix: ClassVar[str] = ""

    def names(self) -> list[str]:
        """Names of torchvision's detectors."""
        return tv.list_models(module=tv.detection)

    def build(self, name: str) -> nn.Module:
        """One detector, initialised from torch's global generator."""
        detector = tv.get_model(name, weights=None, weights_backbone=None)
        if name in _WITHOUT_EPSILON:
            for module in detector.backbone.body.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eps = LEAST_EPSILON
        return RawDetector(detector, name) if hasattr(detector, "head") else RawProposals(detector, name)

    def input_shape(self, name: str) -> tuple[int, ...]:
        """A square picture of the size that the name tells, or of the shorter side that torchvision resizes to."""
        size = next((size for part, size in _SIZES.items() if part in name), USUAL_SIZE)
        return (1, 3, size, size)

    def preprocessing(self, name: str) -> Preprocessing:
        """What torchvision's own transform within the detector does to a picture, but for its size."""
        mean, std = next((current for part, current in _COLOURS.items() if name.startswith(part)), (IMAGENET.mean, IMAGENET.std))
        return Preprocessing(mean, std, 1.0)

    def default_weights(self, name: str) -> tuple[dict[str, Tensor], str]:
        """Of the weights torchvision calls default those of the backbone and the heads, from the local hub folder or the network."""
        weights = tv.get_model_weights(name).DEFAULT
        result = read_weights(trained_weights_file(weights.url))
        renamed = {key.replace("rpn.head.", "head.", 1) if key.startswith("rpn.head.") else key: value for key, value in result.items()}
        kept = {key: value for key, value in renamed.items() if key.startswith(("backbone.", "head."))}
        return kept, f"torchvision {weights}"

    def checked(self) -> frozenset[str]:
        """The detectors branched in the project's tests."""
        return CHECKED
