"""timm's models under ``timm:NAME``."""

import pytest
import timm

from stretch.models import load_model, model_names
from stretch.models.timm import TimmFamily

pytestmark = pytest.mark.torch


def test_prefixed_name_builds_timms_model_with_its_input_size():
    model = load_model("timm:test_resnet", weights="none")
    assert type(model.module).__module__.startswith("timm.")
    assert model.input_shape == (1, 3, 160, 160)
    assert model.weights_source == "random"


def test_model_without_published_weights_has_no_default_weights():
    name = next(name for name in TimmFamily().names() if not timm.is_model_pretrained(name))
    assert TimmFamily().default_weights(name) is None
    assert f"timm:{name}" in dict(model_names("timm:*"))
