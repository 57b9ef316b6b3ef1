"""torchvision's detectors up to the raw results of their heads, against torchvision's own detectors."""

import pytest
import torch
import torchvision

from stretch.capture import capture
from stretch.models.detection import DetectionFamily, RawDetector, RawProposals

pytestmark = pytest.mark.torch

NAMES = DetectionFamily().names()


def test_names_are_those_of_torchvision():
    assert torchvision.models.list_models(module=torchvision.models.detection) == NAMES


@pytest.mark.representatives(11)
@pytest.mark.parametrize("name", NAMES)
def test_every_detector_is_built_and_says_what_is_left_out(name):
    with torch.device("meta"):
        module = DetectionFamily().build(name)
    assert isinstance(module, RawDetector | RawProposals)
    assert "is taken from the picture to" in module.warnings[0]
    assert DetectionFamily().input_shape(name)[:2] == (1, 3)


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_results_are_those_of_the_detectors_own_parts(name):
    torch.manual_seed(0)
    detector = torchvision.models.get_model(name, weights=None, weights_backbone=None).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps = list(detector.backbone(x).values())
        if hasattr(detector, "head"):
            want, got = detector.head(maps), RawDetector(detector, name)(x)
            assert got.keys() == want.keys()
            assert all(torch.equal(got[key], want[key]) for key in want)
        else:
            (objectness, boxes), got = detector.rpn.head(maps), RawProposals(detector, name)(x)
            assert all(torch.equal(a, b) for a, b in zip(got["objectness"] + got["boxes"], objectness + boxes, strict=True))
            assert all(torch.equal(a, b) for a, b in zip(got["maps"], maps, strict=True))


def test_detector_is_captured_with_the_names_of_its_results():
    module = DetectionFamily().build("ssdlite320_mobilenet_v3_large").eval()
    captured = capture(module, (1, 3, 64, 64), "net")
    assert {result.key for result in captured.returned.results} == {"bbox_regression", "cls_logits"}
