"""Models by name, by factory and by file, with weights whose origin is told."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from predictors.errors import StretchError, UnknownNameError, UsageError
from stretch.models import load_model

pytestmark = pytest.mark.torch


def same(one, other):
    """Whether two modules have equal weights."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_equal_seeds_give_equal_weights_and_others_do_not():
    one, two, other = (load_model("tiny_resnet", weights="none", seed=s).module for s in (3, 3, 4))
    assert same(one, two)
    assert not same(one, other)


def test_default_weights_of_an_untrained_model_are_random_with_a_warning():
    model = load_model("tiny_resnet")
    assert model.weights_source == "random"
    assert model.warnings == ["`tiny_resnet` has random weights: nobody published trained ones"]


def test_file_of_weights_is_loaded(tmp_path):
    parent = load_model("tiny_resnet", weights="none", seed=7)
    save_file(parent.module.state_dict(), tmp_path / "w.safetensors")
    model = load_model("tiny_resnet", weights=str(tmp_path / "w.safetensors"))
    assert same(parent.module, model.module)
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


def test_factory_that_its_module_lacks_gives_the_closest():
    with pytest.raises(UnknownNameError, match=r"unknown factory in stretch\.models\.tiny `tiny_resnt`") as caught:
        load_model("stretch.models.tiny:tiny_resnt")
    assert caught.value.hint == "did you mean `tiny_resnet`?"


@pytest.mark.parametrize("name", ["no_such_package:net", "not-a-module:net"])
def test_module_that_is_not_there_is_an_unknown_model(name):
    with pytest.raises(UnknownNameError, match="unknown model"):
        load_model(name)


def test_factory_that_returns_no_module_is_refused():
    with pytest.raises(StretchError, match=r"returned dict, not a torch\.nn\.Module"):
        load_model("builtins:dict")


def test_factory_that_fails_is_one_sentence():
    with pytest.raises(StretchError, match="cannot be built: "):
        load_model("builtins:open")


@pytest.mark.slow
def test_current_folder_is_not_searched_for_modules(tmp_path):
    (tmp_path / "sly.py").write_text("open('ran', 'w')\n")
    code = "from stretch.models import load_model\nload_model('sly:net')"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "UnknownNameError" in result.stderr
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def code_file(tmp_path):
    """A file with a factory, which leaves a trace when it is executed."""
    path = tmp_path / "mynet.py"
    path.write_text(
        f"from pathlib import Path\nfrom torch import nn\nPath({str(tmp_path)!r}, 'ran').touch()\n\n\ndef net():\n    return nn.Conv2d(3, 8, 3)\n"
    )
    return path


def test_file_of_code_is_not_executed_without_trust(code_file):
    with pytest.raises(UsageError) as caught:
        load_model(f"{code_file}:net")
    assert "--trust-code" in caught.value.hint
    assert not (code_file.parent / "ran").exists()


def test_file_of_code_is_executed_with_trust(code_file):
    model = load_model(f"{code_file}:net", trust_code=True)
    assert model.module.out_channels == 8
    assert model.weights_source == "given"


def test_missing_file_of_code_is_named(tmp_path):
    with pytest.raises(StretchError, match=r"there is no file .*absent\.py"):
        load_model(f"{tmp_path}/absent.py:net", trust_code=True)


@pytest.fixture
def onnx_file(tmp_path):
    """A file with weights and an input of its own."""
    import onnx

    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])]
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(5, 3, 3, 3)).astype(np.float32), "w")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3, 20, 16])
    graph = onnx.helper.make_graph(nodes, "net", [value], [onnx.ValueInfoProto(name="y")], [weight])
    path = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path, onnx.numpy_helper.to_array(weight).copy()


def test_onnx_file_may_have_random_weights_or_those_of_another_file(onnx_file, tmp_path):
    path, weight = onnx_file
    bare = load_model(str(path), weights="none")
    assert bare.weights_source == "random"
    assert not torch.equal(bare.module.conv.weight, torch.from_numpy(weight))
    save_file(bare.module.state_dict(), tmp_path / "w.safetensors")
    own = load_model(str(path), weights=str(tmp_path / "w.safetensors"))
    assert same(own.module, bare.module)


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_seed_that_is_none_is_a_usage_error(seed):
    with pytest.raises(UsageError, match=f"the seed {seed} is none"):
        load_model("tiny_resnet", weights="none", seed=seed)


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
    ("body", "hint"),
    [
        (MANY, "mymodel.py:FUNCTION`; it has small, Net"),
        ("def make(): ...\n", "mymodel.py:make`"),
        ("x = 1\n", "mymodel.py:FUNCTION`; it has none"),
    ],
)
def test_file_alone_suggests_its_functions_without_running_it(tmp_path, body, hint):
    path = tmp_path / "mymodel.py"
    path.write_text(body.replace("{marker!r}", repr(str(tmp_path / "ran"))))
    with pytest.raises(UsageError, match="name the function or class") as caught:
        load_model(str(path))
    assert hint in caught.value.hint
    assert "write `" in caught.value.hint
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("content", "reason"), [(None, "there is no file"), (b"def :", "no Python code"), (b"\0", "no Python code")])
def test_file_that_is_none_or_no_code_is_refused(tmp_path, content, reason):
    path = tmp_path / "mymodel.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StretchError, match=reason):
        load_model(str(path))
