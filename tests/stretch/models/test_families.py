"""The families of networks: names, weights that are published, what is built without them, and networks that are built of calls."""

import subprocess
import sys
from math import inf

import numpy as np
import pytest
import timm
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from stretch.capture import capture
from stretch.models import load_model, model_names
from stretch.models.builder import MAX_SIDE, Builder, between
from stretch.models.families import each_family, find_family
from stretch.models.onnx.moving import Window, nonnegative
from stretch.models.onnx.network import RULES, OnnxSite
from stretch.models.timm import TimmFamily
from stretch.models.tiny import TinyFamily
from stretch.models.torchvision import DetectionFamily, RawDetector, SegmentationFamily, TorchvisionFamily


def test_every_family_lists_each_name_once_and_is_found_by_it():
    listed = {key: (family, family.names()) for key, family in each_family()}
    assert {"torchvision", "timm", "tiny"} <= set(listed)
    for family, names in listed.values():
        assert len(set(names)) == len(names) > 0
        assert family.checked() <= set(names)
        result, name = find_family(family.prefix + names[0])
        assert (type(result), name) == (type(family), names[0])
    assert find_family("timm:no_such_net") is None


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("tiny_resnet", ["torchvision", "timm", "torch._dynamo"]),
        pytest.param("resnet20_cifar10", ["torchvision", "timm", "torch._dynamo"], marks=pytest.mark.slow),
        pytest.param("resnet18", ["timm"], marks=pytest.mark.slow),
        pytest.param("stretch.models.tiny:tiny_vgg", ["torchvision", "timm", "torch._dynamo"], marks=pytest.mark.slow),
    ],
)
def test_model_brings_no_library_that_it_is_not_made_of(name, absent):
    code = (
        "import sys; from stretch.stages.network import read_network\n"
        f"read_network({name!r}, weights='none')\n"
        f"print(sorted(set(sys.modules) & set({absent!r})))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


NAMES = DetectionFamily().names()


def test_names_are_those_of_torchvision():
    assert torchvision.models.list_models(module=torchvision.models.detection) == NAMES


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_detector_is_built_and_says_what_is_left_out(name):
    with torch.device("meta"):
        module = DetectionFamily().build(name)
    assert isinstance(module, RawDetector)
    assert "is taken from the picture to" in module.warnings[0]
    assert DetectionFamily().input_shape(name)[:2] == (1, 3)


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_results_are_those_of_the_detectors_own_parts(name):
    torch.manual_seed(0)
    detector = torchvision.models.get_model(name, weights=None, weights_backbone=None).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps, got = list(detector.backbone(x).values()), RawDetector(detector, name)(x)
        if hasattr(detector, "head"):
            want = detector.head(maps)
            assert got.keys() == want.keys()
            assert all(torch.equal(got[key], want[key]) for key in want)
        else:
            objectness, boxes = detector.rpn.head(maps)
            assert all(torch.equal(a, b) for a, b in zip(got["objectness"] + got["boxes"], objectness + boxes, strict=True))
            assert all(torch.equal(a, b) for a, b in zip(got["maps"], maps, strict=True))


@pytest.mark.slow
def test_detector_is_captured_with_the_names_of_its_results():
    module = DetectionFamily().build("ssdlite320_mobilenet_v3_large").eval()
    captured = capture(module, (1, 3, 64, 64), "net")
    assert {result.key for result in captured.returned.results} == {"bbox_regression", "cls_logits"}


@pytest.mark.representatives(3)
@pytest.mark.parametrize("name", SegmentationFamily().names())
def test_module_has_the_weights_that_are_published(name):
    with torch.device("meta"):
        state_dict = SegmentationFamily().build(name).state_dict()
        published = torchvision.models.get_model(name, weights=None, weights_backbone=None, aux_loss=True if "lraspp" not in name else None)
    assert state_dict.keys() == published.state_dict().keys()
    assert ("aux_classifier.0.weight" in state_dict) == ("lraspp" not in name)


def test_input_and_preprocessing_are_those_of_the_default_weights():
    family = SegmentationFamily()
    assert family.input_shape("fcn_resnet50") == (1, 3, 520, 520)
    assert family.preprocessing("fcn_resnet50").mean == (0.485, 0.456, 0.406)


def test_prefixed_name_builds_timms_model_with_its_input_size():
    model = load_model("timm:test_resnet", weights="none")
    assert type(model.module).__module__.startswith("timm.")
    assert model.input_shape == (1, 3, 160, 160)
    assert model.weights_source == "random"


def test_model_without_published_weights_has_no_default_weights():
    name = next(name for name in TimmFamily().names() if not timm.is_model_pretrained(name))
    assert TimmFamily().default_weights(name) is None
    assert f"timm:{name}" in dict(model_names("timm:*"))


TINY_NAMES = TinyFamily().names()


@pytest.mark.parametrize("name", TINY_NAMES)
def test_network_is_small_and_gives_ten_finite_scores(name):
    model = load_model(name, weights="none")
    assert sum(p.numel() for p in model.module.parameters()) <= 500_000
    assert max(model.input_shape) <= 64
    with torch.no_grad():
        scores = model.module(torch.randn(2, *model.input_shape[1:]))
    assert scores.shape == (2, 10)
    assert torch.isfinite(scores).all()


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


def test_nothing_heavy_is_imported():
    code = "import sys\nfrom stretch.models.families import quick_names\nquick_names('timm:')\nprint('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_tensor_that_is_too_large_is_refused_without_being_made():
    b = Builder((1, 64, 64, 64))
    with pytest.raises(StretchError, match="elements, 1 to"):
        b.method("repeat", b.input, 1, 64, 64, 64)


@pytest.mark.parametrize("name", ["graph", "train", "forward", ".", "0.0", "x." * 99 + "y", "offset", 'a").b', "a\n.b", "-"])
def test_names_never_hide_what_torch_needs(name):
    b = Builder((1, 3))
    x = b.call(torch.add, b.input, b.stored(np.ones(3, np.float32), "offset"))
    finish = b.finish(b.module(nn.Linear(3, 2), x, name), "Net")
    assert finish(torch.zeros(1, 3)).shape == (1, 2)
    assert finish.train().eval().graph is not None


SHAPE = (1, 3, 7, 6)


def test_groups_that_do_not_fit_are_refused():
    b = Builder(SHAPE)
    with pytest.raises(StretchError, match="its 2 groups of weights"):
        RULES["Conv"](OnnxSite([b.input, np.zeros((4, 3, 1, 1), np.float32)], "Conv", "c", {"group": 2}, 1, 22, b))


def window(x, before=(0, 0), behind=(0, 0)):
    return Window(x, (3, 3), (1, 1), (1, 1), before, behind)


def test_padding_by_another_number_stays():
    b = Builder(SHAPE)
    x = window(b.input, (1, 1), (1, 1)).padded(b, 2.0)
    assert window(x).unpadded(0.0) == window(x)
    low = window(b.input, (1, 0), (0, 2)).padded(b, -3.4e38)
    assert window(low, behind=(1, 0)).unpadded(-inf) == window(b.input, (1, 0), (1, 2))


def test_input_is_not_below_zero_only_where_that_is_said():
    b = Builder(SHAPE)
    assert nonnegative(b.input, b, of_input=True)
    assert not nonnegative(b.input, b, of_input=False)
    assert nonnegative(b.call(torch.relu, b.input), b, of_input=False)
    assert not nonnegative(b.call(torch.cat, [b.input, b.call(torch.relu, b.input)], 1), b, of_input=False)
    assert not nonnegative(b.stored(np.ones(3, np.float32), "one"), b, of_input=True)


PLACES = st.lists(st.floats(-2, 8, width=32), min_size=1, max_size=9)


@given(PLACES, st.integers(1, 6))
def test_pixels_between_others_are_those_of_numpy(places, old):
    built = between(np.array(places), old)
    values = np.random.default_rng(0).normal(size=old)
    np.testing.assert_allclose(built @ values, np.interp(places, np.arange(old), values), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(built.sum(1), 1, rtol=1e-5)


def test_matrix_that_would_be_too_large_is_refused():
    with pytest.raises(StretchError, match="coordinates that torch has not"):
        between(np.zeros(MAX_SIDE + 1), 2)
