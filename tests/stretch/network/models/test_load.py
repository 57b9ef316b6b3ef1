"""A model by name, family, factory or file, its weights, and the shapes of its inputs and outputs."""

import hashlib
import pickle
import subprocess
import sys
from math import inf
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torchvision
from PIL import Image as image
from safetensors.torch import save_file
from torch import nn

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.bundle.preprocessing import Preprocessing
from stretch.export.quantize.images import read_images
from stretch.network.models import model_names
from stretch.network.models.builder import Builder, End, Size, by_name, named_ends, resolve_input_shapes
from stretch.network.models.families import each_family, find_family
from stretch.network.models.load import load_model, stated_preprocessing
from stretch.network.models.onnx.moving import Window, nonnegative
from stretch.network.models.onnx.network import RULES, OnnxSite
from stretch.network.models.timm import TimmFamily
from stretch.network.models.tiny import TinyFamily
from stretch.network.models.torchvision import DetectionFamily, RawDetector, SegmentationFamily, TorchvisionFamily
from stretch.network.models.weights import check_host, read_weights, settle, trained_weights_file
from tests.stretch.network.models.onnx.oracle import net, random


def equal_weights(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_weights_follow_the_seed_and_an_untrained_model_warns_of_random_weights():
    one, two, other = (load_model("tiny_resnet", weights="none", seed=s).module for s in (3, 3, 4))
    assert (equal_weights(one, two), equal_weights(one, other)) == (True, False)
    for seed in (-1, 2**63):
        with pytest.raises(UsageError, match=f"the seed {seed}"):
            load_model("tiny_resnet", weights="none", seed=seed)
    model = load_model("tiny_resnet")
    assert (model.weights_source, ["random" in warning for warning in model.warnings]) == ("random", [True])


def test_file_of_weights_is_loaded(tmp_path):
    parent = load_model("tiny_resnet", weights="none", seed=7)
    save_file(parent.module.state_dict(), tmp_path / "w.safetensors")
    model = load_model("tiny_resnet", weights=str(tmp_path / "w.safetensors"))
    assert equal_weights(parent.module, model.module)
    assert (model.weights_source, model.weights_detail) == ("file", str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.pop("fc.bias"), r"it lacks `fc\.bias`"),
        (lambda w: w.update(extra=torch.ones(1)), "it has `extra`"),
        (lambda w: w.update({"fc.bias": torch.ones(3)}), r"`fc\.bias` is \(3,\), the model needs \(10,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_the_first_difference(tmp_path, change, reason):
    weights = load_model("tiny_resnet", weights="none").module.state_dict()
    change(weights)
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(StretchError, match=reason):
        load_model("tiny_resnet", weights=str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("stretch.network.models.tiny:tiny_resnt", UnknownNameError, r"unknown factory in stretch\.network\.models\.tiny `tiny_resnt`"),
        ("no_such_package:net", UnknownNameError, "unknown model"),
        ("not-a-module:net", UnknownNameError, "unknown model"),
        ("builtins:dict", StretchError, r"returned dict, not a torch\.nn\.Module"),
        ("builtins:open", StretchError, "cannot be built: "),
        ("absent.py:net", StretchError, r"there is no file .*absent\.py"),
    ],
)
def test_factory_that_returns_no_module_is_refused(name, kind, problem):
    with pytest.raises(kind, match=problem) as caught:
        load_model(name, trust_code=True)
    assert "tiny_resnt" not in name or caught.value.hint == "did you mean `tiny_resnet`?"


@pytest.mark.slow
def test_current_folder_is_not_searched_for_modules(tmp_path):
    (tmp_path / "sly.py").write_text("open('ran', 'w')\n")
    code = "from stretch.network.models import load_model\nload_model('sly:net')"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "UnknownNameError" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_file_of_code_is_executed_only_if_trusted(tmp_path):
    code = f"from pathlib import Path\nPath({str(tmp_path)!r}, 'ran').touch()\n" + CODE[0].replace("from {0} import width", "width = 8")
    (tmp_path / "mynet.py").write_text(code)
    with pytest.raises(UsageError) as caught:
        load_model(f"{tmp_path}/mynet.py:net")
    assert "--trust-code" in caught.value.hint
    assert not (tmp_path / "ran").exists()
    model = load_model(f"{tmp_path}/mynet.py:net", trust_code=True)
    assert (model.module.out_channels, model.weights_source) == (8, "given")


#: The other module is imported when the file is read, or when its function is called.
CODE = [
    f"from torch import nn\n{early}\n\n\ndef net():\n    {late}\n    return nn.Conv2d(3, width, 3)\n"
    for early, late in (("from {0} import width", ""), ("", "from {0} import width"))
]


@pytest.mark.parametrize("code", CODE, ids=["when it is read", "when it is called"])
@pytest.mark.parametrize("imported", ["near_by", "near_package.parts"])
def test_file_of_code_imports_modules_of_its_folder_and_of_no_other(tmp_path, code, imported):
    before = list(sys.path)
    for folder, width in (("one", 5), ("two", 7), ("three", 9)):
        path = tmp_path / folder / f"{imported.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"width = {width}\n")
        (tmp_path / folder / "net.py").write_text(code.format(imported))
        assert load_model(f"{tmp_path}/{folder}/net.py:net", trust_code=True).module.out_channels == width
        assert sys.path == before
    (tmp_path / "four").mkdir()
    (tmp_path / "four" / "net.py").write_text(code.format(imported))
    with pytest.raises(StretchError, match="near"):
        load_model(f"{tmp_path}/four/net.py:net", trust_code=True)
    assert sys.path == before


def test_onnx_file_takes_random_weights_or_weights_of_another_file(tmp_path):
    path, weight = tmp_path / "net.onnx", random((5, 3, 3, 3))
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    onnx.save(net(conv, stored={"w": weight}, shape=("batch", 3, 20, 16)), str(path))
    bare = load_model(str(path), weights="none")
    assert bare.weights_source == "random"
    assert not torch.equal(bare.module.conv.weight, torch.from_numpy(weight))
    save_file(bare.module.state_dict(), tmp_path / "w.safetensors")
    model = load_model(str(path), weights=str(tmp_path / "w.safetensors"))
    assert equal_weights(model.module, bare.module)


MANY = """
from pathlib import Path
Path({marker!r}).touch()
def small(width=8): ...
def _private(): ...
def needs(width): ...
def named(*, width): ...
class Net: ...
"""


@pytest.mark.parametrize(
    ("body", "reason", "hint"),
    [
        (MANY, "name the function or class", "mymodel.py:FUNCTION`; it has small, Net"),
        ("def make(): ...\n", "name the function or class", "mymodel.py:make`"),
        ("x = 1\n", "name the function or class", "mymodel.py:FUNCTION`; it has none"),
        *((body, "no Python code", "") for body in ("def :", "\0")),
        (None, "there is no file", ""),
    ],
)
def test_file_without_a_function_name_lists_its_functions_and_is_not_run(tmp_path, body, reason, hint):
    path = tmp_path / "mymodel.py"
    if body is not None:
        path.write_text(body.replace("{marker!r}", repr(str(tmp_path / "ran"))))
    with pytest.raises(StretchError, match=reason) as caught:
        load_model(str(path))
    assert not hint or hint in caught.value.hint.partition("write `")[2]
    assert not (tmp_path / "ran").exists()


def test_file_of_an_unknown_type_is_not_reported_as_an_unknown_name(tmp_path):
    (tmp_path / "net.h5").touch()
    with pytest.raises(UsageError, match=r"net\.h5` is no file"):
        load_model(f"{tmp_path}/net.h5")


CONTENT = b"weights" * 1000


def test_file_is_fetched_once_and_a_failed_download_leaves_nothing(tmp_path):
    """The file name has the hash of the content, as torchvision's names do; a file address needs no network."""
    file, hub = tmp_path / f"net-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth", tmp_path / "hub"
    file.write_bytes(CONTENT + b"!")
    for wrong, reason in ((file, "wrong hash"), (tmp_path / "absent.pth", "cannot be fetched")):
        with pytest.raises(OSError, match=reason):
            trained_weights_file(wrong.as_uri(), hub)
        assert list(hub.iterdir()) == []
    file.write_bytes(CONTENT)
    path = trained_weights_file(file.as_uri(), hub)
    assert path.read_bytes() == CONTENT
    file.unlink()
    assert trained_weights_file(file.as_uri(), hub) == path


def test_host_that_does_not_resolve_is_an_os_error(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match=r"weights\.invalid cannot be reached"):
        check_host("weights.invalid")


TENSORS = {"conv.weight": torch.arange(4.0), "bn.num_batches_tracked": torch.tensor(3)}


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"state_dict": t, "epoch": 3}, lambda t: {"model": {f"module.{k}": v for k, v in t.items()}}]
)
def test_plain_nested_or_data_parallel_checkpoint_is_read(tmp_path, wrap):
    torch.save(wrap(TENSORS), tmp_path / "net.pth")
    read = read_weights(tmp_path / "net.pth")
    assert read.keys() == TENSORS.keys()
    assert torch.equal(read["conv.weight"], TENSORS["conv.weight"])


class Evil:
    """Create a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_half_precision_model_of_a_factory_becomes_single_precision(tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef make(): return nn.Conv2d(3, 4, 1).half()\n")
    assert load_model(f"{tmp_path}/net.py:make", trust_code=True).module.weight.dtype == torch.float32


@pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_checkpoint_that_carries_code_is_refused_and_not_run(tmp_path, save):
    save({"w": Evil(tmp_path / "ran")}, tmp_path / "net.pth")
    with pytest.raises(StretchError, match="is no weights file: it is damaged, or holds more than tensors"):
        read_weights(tmp_path / "net.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("name", "save"), [("net.pth", torch.save), ("net.safetensors", save_file)])
def test_truncated_or_missing_file_is_refused(tmp_path, name, save):
    path = tmp_path / name
    with pytest.raises(StretchError, match=rf"there is no weights file .*{name}"):
        read_weights(path)
    save(TENSORS, path)
    for damaged in (path.read_bytes()[:-40], b"hello"):
        path.write_bytes(damaged)
        with pytest.raises(StretchError, match=r"is no weights file: (it is damaged|Error while deserializing)"):
            read_weights(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"w": torch.tensor([1.0, float("nan")])}, "weight `w` .* not finite"),
        ({"w": torch.eye(3).to_sparse()}, "weight `w` .* is sparse_coo, weights are dense"),
        ({"w": torch.ones(3, dtype=torch.complex64)}, "weight `w` .* holds complex64"),
        ({"w": torch.ones(3, dtype=torch.bool)}, "weight `w` .* holds bool"),
        ({"w": torch.ones(1).expand(1 << 40)}, "weight `w` .* fewer numbers than its shape"),
        ({"bn.running_var": torch.tensor([1.0, -1e-3])}, "weight `bn.running_var` .* is a variance and has negative numbers"),
        *[(content, "holds no tensors by name") for content in ({}, [1, 2], {"a": "text"})],
    ],
)
def test_file_without_weights_is_refused(tmp_path, content, problem):
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(StretchError, match=problem):
        read_weights(tmp_path / "net.pth")


PATH = Path("net.onnx")


def inputs_of_file(*stated):
    """Return the inputs of a file with these names and axes."""
    return named_ends(PATH, [End(name, sizes) for name, sizes in stated])


TWO = [("a:0", [Size(1, "n"), Size(3, fixed=True), Size(8)]), ("b", [Size(1, "n"), Size(4)])]


@pytest.mark.parametrize(
    ("requested", "problem"),
    [
        ((1, 3, 8), "one shape is given, net.onnx has 2 inputs, `a:0`, `b`"),
        ([(1, 3, 8)] * 3, "3 shapes are given, net.onnx has 2 inputs"),
        ({"c": (1, 4)}, "net.onnx has no input `c`"),
        ({"b": (1, 4, 4)}, "the input `b` of net.onnx has 2 axes, a shape of 3 is given"),
        ({"a_0": (1, 4, 8)}, "the input `a:0` of net.onnx has 3 along axis 1, 4 is given"),
        ({"a_0": (2, 3, 8), "b": (3, 4)}, "the size `n` of net.onnx is 2 in its input `a:0` and 3 in `b`"),
        ({"a_0": (2, 3, 8), "a:0": (2, 3, 8)}, "the input `a:0` of net.onnx has two shapes"),
        ({"b": (0, 4)}, "the input `b` has"),
        ({"b": "1x4"}, "the input `b` has"),
    ],
)
def test_shape_that_does_not_fit_the_file_is_refused_in_one_sentence(requested, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        resolve_input_shapes(PATH, inputs_of_file(*TWO), requested)
    assert caught.value.hint


def test_shapes_are_given_by_the_names_of_the_file_or_of_the_arguments():
    ends = inputs_of_file(*TWO)
    for name in ("a:0", "a_0"):
        assert resolve_input_shapes(PATH, ends, {name: (5, 3, 9)}) == {"a_0": (5, 3, 9), "b": (5, 4)}
    assert resolve_input_shapes(PATH, ends[1:], {"b": (2, 4)}) == resolve_input_shapes(PATH, ends[1:], (2, 4)) == {"b": (2, 4)}
    assert resolve_input_shapes(PATH, inputs_of_file(("x", None)), (2, 4)) == {"x": (2, 4)}


def test_only_several_results_are_named():
    builder = Builder((1,))
    assert by_name(builder, [("y", 1)]) == 1
    assert by_name(builder, [("y", 1), ("z:0", 2), ("y", 3)]) == {"y": 1, "z:0": 2, "y_1": 3}


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", TinyFamily().names())
@pytest.mark.parametrize("kind", ["noise", "grey", "photograph-like"])
def test_activations_neither_explode_nor_vanish(name, kind):
    torch.manual_seed(0)
    module = TinyFamily().build(name)
    settle(module, TinyFamily().input_shape(name), torch.Generator().manual_seed(0))
    shape = (4, *TinyFamily().input_shape(name)[1:])
    images = {
        "noise": torch.randn(shape),
        "grey": torch.rand(shape[0], 1, 1, 1).expand(shape),
        "photograph-like": nn.functional.interpolate(torch.randn(*shape[:2], 4, 4), size=shape[2:], mode="bilinear"),
    }[kind]
    largest = []
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(lambda _, __, out: largest.append(out.abs().max().item()))
    with torch.no_grad():
        module(images)
    assert all(0.01 < value < 100 for value in largest), largest


def test_layer_initialised_to_zeros_gets_random_weights():
    module = nn.Sequential(nn.Linear(64, 3), nn.Linear(3, 3))
    nn.init.zeros_(module[0].weight)
    kept = module[1].weight.clone()
    settle(module, (1, 64), torch.Generator().manual_seed(0))
    assert module[0].weight.std().item() == pytest.approx(1 / 8, rel=0.2)
    assert torch.equal(module[1].weight, kept)


@pytest.mark.parametrize("size", [(500, 375), (330, 640)])
def test_squashed_images_are_those_of_timm(tmp_path, size):
    import timm
    from timm.data import create_transform, resolve_data_config

    name = next(n for n in timm.list_models() if (c := timm.get_pretrained_cfg(n)) and c.crop_mode == "squash" and c.input_size[1] < 300)
    config = timm.get_pretrained_cfg(name).to_dict()
    picture = image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    picture.save(tmp_path / "a.png")
    expected = create_transform(**resolve_data_config(pretrained_cfg=config))(picture).numpy()[None]
    [result] = read_images(tmp_path / "a.png", TimmFamily().input_shape(name), TimmFamily().preprocessing(name))
    assert np.abs(result - expected).max() < 1e-5


def module_with(preprocessing):
    module = nn.Identity()
    module.preprocessing = preprocessing
    return module


@pytest.mark.parametrize("stated", [{"mean": (0.5, 0.5, 0.5), "crop": 1}, Preprocessing((0.5, 0.5, 0.5), crop=1.0)])
def test_preprocessing_stated_by_a_module_is_used(stated):
    assert stated_preprocessing(module_with(stated), "mine") == Preprocessing((0.5, 0.5, 0.5), crop=1.0)


@pytest.mark.parametrize("stated", ["imagenet", {"mean": 0.5}, {"deviation": (1, 1, 1)}, {"std": (1, 0, 1)}])
def test_invalid_preprocessing_of_a_module_is_refused(stated):
    with pytest.raises(StretchError, match="the `preprocessing` of `mine` cannot be used"):
        stated_preprocessing(module_with(stated), "mine")


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
        ("resnet20_cifar10", ["torchvision", "timm", "torch._dynamo"]),
        ("resnet18", ["timm"]),
        ("stretch.network.models.tiny:tiny_vgg", ["torchvision", "timm", "torch._dynamo"]),
    ],
)
@pytest.mark.slow
def test_model_imports_no_library_that_it_does_not_need(name, absent):
    code = (
        "import sys; from stretch.stages.network import read_network\n"
        f"read_network({name!r}, weights='none')\n"
        f"print(sorted(set(sys.modules) & set({absent!r})))"
    )
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert process.stdout.strip() == "[]", process.stdout + process.stderr


NAMES = DetectionFamily().names()


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_detector_is_built_and_warns_what_is_left_out(name):
    with torch.device("meta"):
        module = DetectionFamily().build(name)
    assert isinstance(module, RawDetector)
    assert "is taken from the picture to" in module.warnings[0]
    assert DetectionFamily().input_shape(name)[:2] == (1, 3)


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_raw_results_are_those_of_the_backbone_and_heads_of_the_detector(name):
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


@pytest.mark.representatives(3)
@pytest.mark.parametrize("name", SegmentationFamily().names())
def test_module_has_the_names_of_the_published_weights(name):
    with torch.device("meta"):
        state_dict = SegmentationFamily().build(name).state_dict()
        published = torchvision.models.get_model(name, weights=None, weights_backbone=None, aux_loss=True if "lraspp" not in name else None)
    assert state_dict.keys() == published.state_dict().keys()
    assert ("aux_classifier.0.weight" in state_dict) == ("lraspp" not in name)


def test_input_and_preprocessing_are_those_of_the_default_weights():
    family, name = SegmentationFamily(), "fcn_resnet50"
    assert (family.input_shape(name), family.preprocessing(name).mean) == ((1, 3, 520, 520), (0.485, 0.456, 0.406))


def test_model_without_published_weights_has_no_default_weights():
    import timm

    name = next(name for name in TimmFamily().names() if not timm.is_model_pretrained(name))
    assert TimmFamily().default_weights(name) is None
    assert f"timm:{name}" in dict(model_names("timm:*"))


@pytest.mark.parametrize("name", ["vit_b_16", "vit_h_14"])
def test_position_table_has_the_size_of_the_default_weights(name):
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


@pytest.mark.parametrize("name", ["graph", "train", "forward", ".", "0.0", "x." * 99 + "y", "offset", 'a").b', "a\n.b", "-"])
def test_node_names_never_shadow_attributes_that_torch_needs(name):
    b = Builder((1, 3))
    x = b.call(torch.add, b.inputs["x"], b.add_tensor(np.ones(3, np.float32), "offset"))
    finish = b.finish(b.module(nn.Linear(3, 2), x, name), "Net")
    assert finish(torch.zeros(1, 3)).shape == (1, 2)
    assert finish.train().eval().graph is not None


SHAPE = (1, 3, 7, 6)


def test_padding_with_another_value_is_not_merged():
    b, window = Builder(SHAPE), lambda x, before=(0, 0), behind=(0, 0): Window(x, (3, 3), (1, 1), (1, 1), before, behind)
    x = window(b.inputs["x"], (1, 1), (1, 1)).pad(b, 2.0)
    assert window(x).merge_padding(0.0) == window(x)
    low = window(b.inputs["x"], (1, 0), (0, 2)).pad(b, -3.4e38)
    assert window(low, behind=(1, 0)).merge_padding(-inf) == window(b.inputs["x"], (1, 0), (1, 2))


def test_input_counts_as_nonnegative_only_if_declared():
    b = Builder(SHAPE)
    relu, one = b.call(torch.relu, b.inputs["x"]), b.add_tensor(np.ones(3, np.float32), "one")
    cases = [
        (b.inputs["x"], True),
        (b.inputs["x"], False),
        (relu, False),
        (b.call(torch.cat, [b.inputs["x"], relu], 1), False),
        (one, True),
    ]
    assert [nonnegative(x, b, of_input=of_input) for x, of_input in cases] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda b: b.method("repeat", b.inputs["x"], 1 << 10, 1 << 10, 1 << 10, 1), "elements, 1 to"),
        (
            lambda b: RULES["Conv"](OnnxSite([b.inputs["x"], np.zeros((4, 3, 1, 1), np.float32)], "Conv", "c", {"group": 2}, 1, b, 22)),
            "its 2 groups of weights",
        ),
    ],
)
def test_tensor_too_large_or_wrong_groups_are_refused_before_they_are_built(make, reason):
    with pytest.raises(StretchError, match=reason):
        make(Builder(SHAPE))
