"""torchvision's networks for segmentation under their own names."""

import pytest
import torch
import torchvision

from stretch.models.segmentation import SegmentationFamily

pytestmark = pytest.mark.torch


@pytest.mark.representatives(3)
@pytest.mark.parametrize("name", SegmentationFamily().names())
def test_module_has_the_weights_that_are_published(name):
    with torch.device("meta"):
        own = SegmentationFamily().build(name).state_dict()
        published = torchvision.models.get_model(name, weights=None, weights_backbone=None, aux_loss=True if "lraspp" not in name else None)
    assert own.keys() == published.state_dict().keys()
    assert ("aux_classifier.0.weight" in own) == ("lraspp" not in name)


def test_input_and_preprocessing_are_those_of_the_default_weights():
    family = SegmentationFamily()
    assert family.input_shape("fcn_resnet50") == (1, 3, 520, 520)
    assert family.preprocessing("fcn_resnet50").mean == (0.485, 0.456, 0.406)
