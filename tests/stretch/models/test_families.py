"""The families of networks: names, weights that are published, and what is built without them."""

import subprocess
import sys

import pytest
import timm
import torchvision

from stretch.capture import capture
from stretch.models import load_model, model_names
from stretch.models.families import each_family, find_family
from stretch.models.timm import TimmFamily
from stretch.models.tiny import TinyFamily
from stretch.models.torchvision import DetectionFamily, RawDetector, SegmentationFamily, TorchvisionFamily

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


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
