"""A model by name, factory or file, its weights, and the shapes of its ends."""

import hashlib
import http.server
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.torch import save_file

torch = pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")
timm = pytest.importorskip("timm")
pytest.importorskip("torchvision")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from predictors.errors import StretchError, UnknownNameError, UsageError  # noqa: E402
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing  # noqa: E402
from stretch.models.builder import End, Size, by_name, named_ends, settled  # noqa: E402
from stretch.models.families import find_family  # noqa: E402
from stretch.models.load import load_model, stated_preprocessing  # noqa: E402
from stretch.models.tiny import TinyFamily  # noqa: E402
from stretch.models.weights import check_host, read_weights, settle, trained_weights_file  # noqa: E402
from stretch.quantize.images import read_images  # noqa: E402
from tests.stretch.models.onnx.oracle import net, random  # noqa: E402


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


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("stretch.models.tiny:tiny_resnt", UnknownNameError, r"unknown factory in stretch\.models\.tiny `tiny_resnt`"),
        ("no_such_package:net", UnknownNameError, "unknown model"),
        ("not-a-module:net", UnknownNameError, "unknown model"),
        ("builtins:dict", StretchError, r"returned dict, not a torch\.nn\.Module"),
        ("builtins:open", StretchError, "cannot be built: "),
        ("absent.py:net", StretchError, r"there is no file .*absent\.py"),
    ],
)
def test_factory_that_gives_no_module_is_refused(name, kind, problem):
    with pytest.raises(kind, match=problem) as caught:
        load_model(name, trust_code=True)
    assert "tiny_resnt" not in name or caught.value.hint == "did you mean `tiny_resnet`?"


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


def test_onnx_file_may_have_random_weights_or_those_of_another_file(tmp_path):
    path, weight = tmp_path / "net.onnx", random((5, 3, 3, 3))
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    onnx.save(net(conv, stored={"w": weight}, shape=("batch", 3, 20, 16)), str(path))
    bare = load_model(str(path), weights="none")
    assert bare.weights_source == "random"
    assert not torch.equal(bare.module.conv.weight, torch.from_numpy(weight))
    save_file(bare.module.state_dict(), tmp_path / "w.safetensors")
    model = load_model(str(path), weights=str(tmp_path / "w.safetensors"))
    assert same(model.module, bare.module)


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


CONTENT = b"weights" * 1000


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Address of a local web server of one folder."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def named(content):
    """File name that carries the content's hash, as torchvision's do."""
    return f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"


def test_file_is_fetched_once_and_then_found(server, tmp_path):
    folder, address = server
    name = named(CONTENT)
    (folder / name).write_bytes(CONTENT)
    path = trained_weights_file(f"{address}/{name}", tmp_path / "hub")
    assert path.read_bytes() == CONTENT
    (folder / name).unlink()
    assert trained_weights_file(f"{address}/{name}", tmp_path / "hub") == path


def test_file_with_another_hash_is_refused_and_nothing_is_left(server, tmp_path):
    folder, address = server
    name = named(CONTENT)
    (folder / name).write_bytes(CONTENT + b"!")
    with pytest.raises(OSError, match="wrong hash"):
        trained_weights_file(f"{address}/{name}", tmp_path / "hub")
    assert list((tmp_path / "hub").iterdir()) == []


def test_file_that_the_server_lacks_is_an_os_error_and_nothing_is_left(server, tmp_path):
    with pytest.raises(OSError, match="cannot be fetched: File not found"):
        trained_weights_file(f"{server[1]}/absent.pth", tmp_path / "hub")
    assert list((tmp_path / "hub").iterdir()) == []


def test_host_that_does_not_resolve_is_an_os_error(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match=r"weights\.invalid cannot be reached"):
        check_host("weights.invalid")


TENSORS = {"conv.weight": torch.arange(4.0), "bn.num_batches_tracked": torch.tensor(3)}


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"state_dict": t, "epoch": 3}, lambda t: {"model": {f"module.{k}": v for k, v in t.items()}}]
)
def test_checkpoint_is_read_plain_nested_or_from_data_parallel_training(tmp_path, wrap):
    torch.save(wrap(TENSORS), tmp_path / "net.pth")
    read = read_weights(tmp_path / "net.pth")
    assert read.keys() == TENSORS.keys()
    assert torch.equal(read["conv.weight"], TENSORS["conv.weight"])


class Evil:
    """Would create a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("save", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))])
def test_checkpoint_that_carries_code_is_refused_and_not_run(tmp_path, save):
    save({"w": Evil(tmp_path / "ran")}, tmp_path / "net.pth")
    with pytest.raises(StretchError, match="is no weights file: it is damaged, or holds more than tensors"):
        read_weights(tmp_path / "net.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
def test_truncated_or_missing_file_is_refused(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(StretchError, match=rf"there is no weights file .*{name}"):
        read_weights(path)
    (save_file if name.endswith("safetensors") else torch.save)(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StretchError, match="is no weights file"):
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
def test_file_that_holds_something_else_than_weights_is_refused(tmp_path, content, problem):
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(StretchError, match=problem):
        read_weights(tmp_path / "net.pth")


PATH = Path("net.onnx")


def stating(*stated):
    """The inputs of a file that states these names and axes."""
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
        settled(PATH, stating(*TWO), requested)
    assert caught.value.hint


def test_shapes_are_asked_for_by_the_names_of_the_file_or_of_the_arguments():
    ends = stating(*TWO)
    for name in ("a:0", "a_0"):
        assert settled(PATH, ends, {name: (5, 3, 9)}) == {"a_0": (5, 3, 9), "b": (5, 4)}
    assert settled(PATH, ends[1:], {"b": (2, 4)}) == settled(PATH, ends[1:], (2, 4)) == {"b": (2, 4)}
    assert settled(PATH, stating(("x", None)), (2, 4)) == {"x": (2, 4)}


def test_results_have_their_names_and_one_has_none():
    assert by_name([("y", 1)]) == 1
    assert by_name([("y", 1), ("z:0", 2), ("y", 3)]) == {"y": 1, "z:0": 2, "y_1": 3}


def module_of(name, seed=0):
    """A small network with settled statistics."""
    torch.manual_seed(seed)
    family = TinyFamily()
    module = family.build(name)
    settle(module, family.input_shape(name), torch.Generator().manual_seed(seed))
    return module


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", TinyFamily().names())
@pytest.mark.parametrize("kind", ["noise", "grey", "photograph-like"])
def test_activations_neither_explode_nor_vanish(name, kind):
    module = module_of(name)
    shape = (4, *TinyFamily().input_shape(name)[1:])
    torch.manual_seed(1)
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


def test_layer_that_begins_as_zeros_shows_what_it_reads():
    module = nn.Sequential(nn.Linear(64, 3), nn.Linear(3, 3))
    nn.init.zeros_(module[0].weight)
    kept = module[1].weight.clone()
    settle(module, (1, 64), torch.Generator().manual_seed(0))
    assert module[0].weight.std().item() == pytest.approx(1 / 8, rel=0.2)
    assert torch.equal(module[1].weight, kept)


@pytest.fixture(scope="module", params=[(500, 375), (330, 640)], ids=str)
def picture(request, tmp_path_factory):
    """A picture with smooth and sharp parts."""
    width, height = request.param
    rng = np.random.default_rng(0)
    small = image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)).resize((width, height))
    pixels = np.clip(np.asarray(small, np.float64) + rng.normal(0, 10, (height, width, 3)), 0, 255).astype(np.uint8)
    file = tmp_path_factory.mktemp("picture") / "a.png"
    image.fromarray(pixels).save(file)
    return file


def read(name, file):
    """What the project makes of a picture for a model."""
    family, current = find_family(name)
    [result] = read_images(file, family.input_shape(current), family.preprocessing(current))
    return result


def test_squashed_pictures_are_timms(picture):
    from timm.data import create_transform, resolve_data_config

    name = next(n for n in timm.list_models() if (c := timm.get_pretrained_cfg(n)) and c.crop_mode == "squash" and c.input_size[1] < 300)
    config = timm.get_pretrained_cfg(name).to_dict()
    expected = create_transform(**resolve_data_config(pretrained_cfg=config))(image.open(picture)).numpy()[None]
    assert np.abs(read(f"timm:{name}", picture) - expected).max() < 1e-5


def test_cifar_networks_read_whole_pictures():
    assert load_model("resnet20_cifar10", weights="none").preprocessing.crop == 1.0
    assert load_model("tiny_resnet", weights="none").preprocessing == IMAGENET


class Own(torch.nn.Module):
    def __init__(self, preprocessing):
        super().__init__()
        self.preprocessing = preprocessing


@pytest.mark.parametrize("stated", [{"mean": (0.5, 0.5, 0.5), "crop": 1}, Preprocessing((0.5, 0.5, 0.5), crop=1.0)])
def test_own_module_states_its_own(stated):
    assert stated_preprocessing(Own(stated), "mine") == Preprocessing((0.5, 0.5, 0.5), crop=1.0)


@pytest.mark.parametrize("stated", ["imagenet", {"mean": 0.5}, {"deviation": (1, 1, 1)}, {"std": (1, 0, 1)}])
def test_what_cannot_be_used_is_one_sentence(stated):
    with pytest.raises(StretchError, match="the `preprocessing` of `mine` cannot be used"):
        stated_preprocessing(Own(stated), "mine")
