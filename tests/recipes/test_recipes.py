"""Every recipe trains; every design fits its model and device."""

import json
import re
import tomllib

import msgspec
import pytest

from predictors.devices import load_device
from predictors.errors import StretchError
from stretch.planning.design.branch_design import load_draft
from stretch.train.recipe import Recipe, find_recipe, load_recipe
from tests.contracts.repository import ROOT
from tests.stretch.cli.commands import succeed

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
DESIGNS = sorted((ROOT / "recipes/designs").glob("*.toml"))
#: Designs for one device; the other designs leave the device to the user.
FOR_A_DEVICE = [path for path in DESIGNS if load_draft(path).device]


def test_folder_has_only_recipes_and_designs_with_one_design_for_the_demo():
    texts = {path for path in (ROOT / "recipes").rglob("*") if path.is_file()}
    assert texts == {ROOT / "recipes/README.md", *RECIPES, *DESIGNS}
    named = {"resnet50_mi9", "resnet34_mi9", "regnet_x_1_6gf_mi9", "efficientnet_lite4_mi9", "efficientnet_b5_pixel6"}
    assert named | {"resnet56_cifar10", "resnet56_cifar10_supernet"} <= {path.stem for path in RECIPES}
    demo = dict(re.findall(r"^(MODEL|DEVICE) \?= (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert "{MODEL}_{DEVICE}".format(**demo) in [path.stem for path in FOR_A_DEVICE]


@pytest.mark.parametrize("path", DESIGNS, ids=lambda path: path.stem)
def test_design_is_named_after_model_and_device_uses_its_processors_and_is_not_a_recipe(path):
    draft = load_draft(path)
    assert path.stem == f"{draft.model}_{draft.device}" if draft.device else path.stem.startswith(f"{draft.model}_")
    assert draft.segments
    for branch in [branch for segment in draft.segments for branch in segment.branches] if draft.device else ():
        assert load_device(draft.device).processor(branch.processor).name == branch.processor
    with pytest.raises(StretchError, match="not a recipe"):
        load_recipe(path)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("path", FOR_A_DEVICE, ids=lambda path: path.stem)
def test_design_applied_to_its_model_keeps_the_amount_of_computation(path):
    from stretch.network.capture import capture
    from stretch.network.models import load_model
    from stretch.planning.design.scale import aligns, resolve_design, scaled_graph

    draft = load_draft(path)
    device, loaded = load_device(draft.device), load_model(draft.model, weights="none")
    graph = capture(loaded.module, loaded.input_shape, loaded.name).graph
    scaled = scaled_graph(graph, resolve_design(draft, graph, device.id, aligns(device, device.variants), "cpu"))
    assert 0.97 <= scaled.macs / graph.macs <= 1.03


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_states_only_values_other_than_the_defaults_and_is_not_a_design(path):
    recipe = load_recipe(path)
    assert recipe.model
    with pytest.raises(StretchError, match="not a design"):
        load_draft(path)
    assert path.stem.removesuffix("_supernet") in (f"{recipe.model.removeprefix('timm:')}_{recipe.device}", recipe.model)
    plain = msgspec.to_builtins(Recipe(model="", device=""))
    for key, value in tomllib.loads(path.read_text()).items():
        if isinstance(value, dict) and key != "supernet":
            for name, current in value.items():
                assert plain[key][name] != current, f"{key}.{name}"
        else:
            assert plain[key] != value, key


@pytest.mark.parametrize(
    ("name", "rate", "decay"), [("resnet50_mi9", 0.2, 5e-5), ("resnet34_mi9", 0.2, 5e-5), ("efficientnet_b5_pixel6", 0.4, 1e-5)]
)
def test_imagenet_recipe_has_the_settings_of_the_paper(name, rate, decay):
    train = load_recipe(find_recipe(name)).train
    assert (train.epochs, train.batch, train.momentum, train.optimizer) == (100, 256, 0.9, "sgd")
    assert (train.learning_rate, train.weight_decay) == (rate, decay)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_dry_runs_on_synthetic_images(path, capsys, tmp_path):
    data = succeed(capsys, "train", path, "--dry-run", "--json", "--quiet", "--set", "weights=none", "--out", tmp_path / "run").data
    assert data["run"] is None
    assert data["metrics"]["loss"] > 0
    assert all(0.97 <= ratio <= 1.03 for ratio in data["metrics"]["macs_ratio"])
    assert not (tmp_path / "run").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_resnet56_recipe_trains_to_eighty_percent_on_synthetic_images(capsys, tmp_path):
    pytest.importorskip("torch")
    images = ("data.name=synthetic", "data.count=768")
    short = ("train.epochs=3", "train.batch=32", "train.warmup_epochs=0", "train.learning_rate=0.02", "keep.tensorboard=false")
    options = [word for change in (*images, *short) for word in ("--set", change)]
    result = succeed(capsys, "train", "resnet56_cifar10", *options, "--out", tmp_path / "run", "--json", "--quiet")
    metrics = json.loads(result.out)["metrics"]
    assert metrics["accuracy"] >= 0.8  # ten classes, 192 test images
    assert metrics["macs_ratio"] == pytest.approx([0.988], abs=0.001)
