"""torchvision's classifiers under their own names."""

import pytest
import torch
import torchvision

from stretch.models import load_model
from stretch.models.torchvision import TorchvisionFamily

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["vit_b_16", "vit_h_14"])
def test_table_of_positions_has_the_size_of_the_default_weights(name):
    size = TorchvisionFamily().input_shape(name)[-1]
    with torch.device("meta"):
        assert TorchvisionFamily().build(name).image_size == size


def test_default_weights_in_the_hub_folder_are_used_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    weights = torchvision.models.get_model_weights("mobilenet_v3_small").DEFAULT
    parent = load_model("mobilenet_v3_small", weights="none", seed=5).module
    (tmp_path / "checkpoints").mkdir()
    torch.save(parent.state_dict(), tmp_path / "checkpoints" / weights.url.rpartition("/")[2])
    model = load_model("mobilenet_v3_small")
    assert (model.weights_source, model.warnings) == ("default", [])
    assert model.weights_detail == f"torchvision {weights}"
    assert torch.equal(model.module.classifier[0].weight, parent.classifier[0].weight)
