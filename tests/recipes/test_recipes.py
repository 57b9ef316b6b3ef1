"""Every recipe is a design that fits its model and device."""

import pytest

from predictors.devices import load_device
from stretch.planning.design import load_draft
from tests.contracts.repository import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_named_after_its_model_and_device(path):
    draft = load_draft(path)
    assert path.stem == f"{draft.model}_{draft.device}"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_uses_processors_of_its_device(path):
    draft = load_draft(path)
    device = load_device(draft.device)
    for segment in draft.segments:
        for branch in segment.branches:
            assert device.processor(branch.processor).name == branch.processor


@pytest.mark.torch
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_applied_to_its_model_keeps_the_amount_of_computation(path):
    from stretch.capture import capture
    from stretch.models import load_model
    from stretch.planning.resolve import resolve_design
    from stretch.planning.scale import scaled_graph

    draft = load_draft(path)
    device = load_device(draft.device)
    loaded = load_model(draft.model, weights="none")
    graph = capture(loaded.module, loaded.input_shape, loaded.name).graph
    align = {name: device.processor(name).width_slice for name in device.variants}
    scaled = scaled_graph(graph, resolve_design(draft, graph, device.id, align, "cpu"))
    assert 0.97 <= scaled.macs / graph.macs <= 1.03


def test_there_is_a_recipe_for_the_demo():
    makefile = (ROOT / "Makefile").read_text()
    assert "MODEL ?= resnet50" in makefile
    assert "DEVICE ?= pixel6" in makefile
    assert "resnet50_pixel6" in [path.stem for path in RECIPES]
