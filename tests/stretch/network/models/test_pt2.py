"""Archives of torch.export: network, numbers and names are those of the module, and only trusted files are read."""

import collections
import dataclasses
import warnings
import zipfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.network.capture import capture
from stretch.network.models.load import load_model
from stretch.network.models.pt2 import read_module
from tests.stretch.network.capture.patterns import Calling
from tests.stretch.network.models.onnx import oracle
from tests.stretch.several import assert_equal


def save(path, module, shape, decomposed=False, dtype=torch.float32, **options):
    """Export a module and save it; return the path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (torch.zeros(shape, dtype=dtype),), **options)
        torch.export.save(program.run_decompositions() if decomposed else program, path)
    return path


def check_numbers(result, module, shape):
    """Assert that a network computes what the module does."""
    oracle.check_numbers(result, module, torch.from_numpy(oracle.random(shape)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["densenet121", "googlenet", "shufflenet_v2_x0_5", "convnext_tiny", "timm:vit_tiny_patch16_224", "timm:mobilevit_xxs"]
)
def test_network_computes_what_the_module_does_and_has_the_same_graph(tmp_path, name):
    loaded = load_model(name, weights="none")
    shape = loaded.input_shape if "vit" in name else (1, 3, 64, 64)
    module = read_module(save(tmp_path / "m.pt2", loaded.module, shape))
    check_numbers(module, loaded.module, shape)
    kinds = [collections.Counter(op.kind for op in capture(item, shape).graph.ops) for item in (loaded.module, module)]
    # layers of training are left out of an exported network in evaluation mode
    for kind in ("identity", "stochastic_depth"):
        del kinds[0][kind]
    assert kinds[0] == kinds[1]


class Calls(nn.Module):
    """Functions, methods and stored tensors of many kinds."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding="same", dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, groups=2)
        self.norm = nn.LayerNorm(4)
        self.group = nn.GroupNorm(2, 8)
        self.slopes = nn.PReLU(8)
        self.register_buffer("offset", torch.arange(4.0), persistent=False)
        self.gamma = nn.Parameter(torch.full((4, 1, 1), 0.5))

    def forward(self, x):
        x = self.slopes(self.group(self.conv(x)))
        left, right = x.chunk(2, 1)
        x = torch.cat([right, left, x[:, 2:6]], 1)[:, :8]
        x = F.interpolate(F.pad(x, (1, 2, 0, 1)), scale_factor=2)
        x = F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 2)
        x = F.hardswish(x) * F.silu(x) - F.gelu(x, approximate="tanh") / 2
        x = self.up(x).clamp(-3, 3) * self.gamma
        x = self.norm(x.permute(0, 2, 3, 1)) + self.offset + torch.tensor([1.5])
        n, h, w, c = x.shape
        x = x.reshape(n, h * w, c).transpose(1, 2)
        x = F.scaled_dot_product_attention(x, x, x)
        return torch.softmax(x.sum(-1), -1) * torch.arange(4, dtype=torch.float32)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("decomposed", [False, True])
def test_calls_of_every_kind_keep_their_results_and_are_captured(tmp_path, decomposed):
    module, shape = Calls().eval(), (1, 3, 8, 7)
    result = read_module(save(tmp_path / "m.pt2", module, shape, decomposed))
    check_numbers(result, module, shape)
    assert capture(result, shape).graph.by_name["conv"].kind == "conv"
    assert {key for key in result.state_dict() if "lifted" not in key} == {*module.state_dict(), "offset"}


def trained():
    """Make layers whose result differs in training mode; their input is called `input`, which torch renames."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5))


def test_network_exported_in_training_mode_is_read_in_evaluation_mode(tmp_path):
    module, shape = trained(), (2, 3, 6, 5)
    result = read_module(save(tmp_path / "m.pt2", module.train(), shape))
    check_numbers(result, module.eval(), shape)
    assert [op.kind for op in capture(result, shape).graph.ops][1:] == ["conv", "batch_norm", "flatten", "dropout"]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2), (2, 4, 6, 5)),
        (lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), (2, 4, 6, 5)),
        (lambda: nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (1, 4, 5, 4)),
        (lambda: nn.BatchNorm2d(4, eps=0.01), (2, 4, 6, 5)),
        (lambda: nn.Linear(5, 3, bias=False), (2, 7, 5)),
        (lambda: nn.LayerNorm((6, 5)), (2, 4, 6, 5)),
        (lambda: nn.GroupNorm(2, 4, eps=0.1), (2, 4, 6, 5)),
        (lambda: nn.PReLU(4), (2, 4, 6, 5)),
    ],
)
def test_layer_is_restored_with_its_settings(tmp_path, make, shape):
    module = nn.ModuleDict({"own": make()})
    module.forward = lambda x: module["own"](x)
    for tensor in module.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape) + 0.1)
    result = read_module(save(tmp_path / "m.pt2", module.eval(), shape))
    check_numbers(result, module, shape)
    assert repr(result.get_submodule("own")) == repr(module["own"])


def test_dynamic_sizes_are_computed_for_the_given_input_shape(tmp_path):
    def halves(x):
        n, c, h, w = x.shape
        return x.reshape(n, c, h * w)[:, :, : h * (w // 2)].reshape(n, -1)

    dim = torch.export.Dim
    dynamic = {"x": {0: dim("n", max=64), 2: dim("h", max=64), 3: dim("w", max=64)}}
    path = save(tmp_path / "m.pt2", Calling(halves), (2, 3, 6, 8), dynamic_shapes=dynamic)
    assert read_module(path).input_shape == (1, 3, 6, 8)
    for shape in ((1, 3, 6, 8), (1, 3, 5, 9), (4, 3, 2, 2)):
        result = read_module(path, shape)
        check_numbers(result, halves, shape)
        capture(result, result.input_shape)


def test_size_that_was_fixed_at_export_cannot_change(tmp_path):
    path = save(tmp_path / "m.pt2", trained().eval(), (2, 3, 6, 5))
    with pytest.raises(UsageError, match=r"has 2 along axis 0, 1 is given"):
        read_module(path, (1, 3, 6, 5))


def test_half_precision_is_computed_in_single_precision(tmp_path):
    cast = Calling(lambda x, conv: conv(x + torch.tensor([1.5], dtype=torch.float16)).float().half() * 2, nn.Conv2d(3, 2, 1)).half()
    module = read_module(save(tmp_path / "m.pt2", cast, (1, 3, 4, 4), dtype=torch.float16))
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.float32}
    assert module(torch.zeros(1, 3, 4, 4)).dtype == torch.float32
    capture(module, (1, 3, 4, 4))


class Returning(nn.Module):
    """Return computed tensors, an input, a weight, numbers and None, in containers of every kind."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, left, *, right):
        y = left * self.scale + right
        return {"y": y, 3: [y.relu(), (left, None)], "more": collections.OrderedDict(scale=self.scale, size=y.shape[0], half=0.5)}


def test_all_results_of_a_module_are_returned_in_the_same_containers(tmp_path):
    module, left, right = Returning().eval(), torch.randn(2, 3), torch.randn(2, 3)
    torch.export.save(torch.export.export(module, (left,), {"right": right}), tmp_path / "m.pt2")
    result = read_module(tmp_path / "m.pt2")
    assert (result.input_shape, result.warnings) == ({"left": (2, 3), "right": (2, 3)}, [])
    with torch.no_grad():
        got, want = result(left, right=right), module(left, right=right)
    want["more"] = dict(want["more"])
    assert_equal(got, want)
    captured = capture(result, result.input_shape)
    assert [key.key for key in captured.returned.results] == ["y", "output_3_0", "output_3_1_0"]


def test_tensors_in_a_container_are_inputs_and_numbers_are_constants(tmp_path):
    class Net(nn.Module):
        def forward(self, pair, factor):
            return (pair["a"] + pair["b"]) * factor

    pair = {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}
    torch.export.save(torch.export.export(Net(), (pair, 3)), tmp_path / "m.pt2")
    result = read_module(tmp_path / "m.pt2")
    assert list(result.input_shape.values()) == [(2, 3), (2, 3)]
    assert_equal(result(*pair.values()), Net()(pair, 3))


def test_integer_inputs_are_refused_unless_cast_to_float_at_once(tmp_path):
    torch.export.save(torch.export.export(nn.Embedding(5, 3), (torch.zeros(1, 4, dtype=torch.int64),)), tmp_path / "m.pt2")
    with pytest.raises(UsageError, match="takes whole numbers as its input `input`, and inputs are real numbers here"):
        read_module(tmp_path / "m.pt2")
    picture = Calling(lambda x: (x.float() / 255).relu())
    module = read_module(save(tmp_path / "m.pt2", picture, (1, 3, 4, 4), dtype=torch.uint8))
    assert any("is of type uint8 and becomes reals at once" in sentence for sentence in module.warnings)
    check_numbers(module, picture, (1, 3, 4, 4))


def test_archive_is_not_opened_without_trust(tmp_path):
    path = tmp_path / "m.pt2"
    path.write_bytes(b"never read")
    with pytest.raises(UsageError, match=r"torch\.export\.load can execute what `.*m\.pt2` says") as caught:
        load_model(str(path))
    assert "--trust-code" in caught.value.hint


def test_unknown_class_of_a_result_is_named(tmp_path):
    @dataclasses.dataclass
    class Pair:
        one: torch.Tensor

    class Net(nn.Module):
        def forward(self, x):
            return Pair(x.relu())

    torch.export.register_dataclass(Pair, serialized_type_name="tests.Pair")
    path = save(tmp_path / "m.pt2", Net(), (1, 2))
    torch.utils._pytree._deregister_pytree_node(Pair)
    with pytest.raises(StretchError, match=r"cannot read .*m\.pt2: Deserializing tests\.Pair in pytree is not registered"):
        read_module(path)


def test_damaged_file_is_refused_in_one_sentence_and_nothing_is_printed(tmp_path, capfd):
    path = save(tmp_path / "m.pt2", trained().eval(), (2, 3, 6, 5))
    with zipfile.ZipFile(tmp_path / "plain.pt2", "w") as plain:
        plain.writestr("m/a", "b")
    content, other = path.read_bytes(), (tmp_path / "plain.pt2").read_bytes()
    for broken in (b"", b"text", other, content[: len(content) // 2], content.replace(b"graph_module", b"grph_module_")):
        path.write_bytes(broken)
        with pytest.raises(StretchError, match=r"torch\.export\.load cannot read .*m\.pt2: ") as caught:
            read_module(path)
        assert "\n" not in caught.value.message
    with pytest.raises(StretchError, match="there is no such file"):
        read_module(tmp_path / "absent.pt2")
    assert capfd.readouterr().err == ""
