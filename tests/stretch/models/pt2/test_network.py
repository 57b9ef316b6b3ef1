"""Networks that torch exported and saved: their graph, numbers and names, call by call."""

import collections

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.capture import capture
from stretch.models.load import load_model
from stretch.models.pt2 import read_module
from tests.stretch.models.pt2.archives import save
from tests.stretch.several import assert_equal

pytestmark = pytest.mark.torch


#: Largest difference from the module, as a part of its largest output.
CLOSE = 1e-4


def check_numbers(result, module, shape):
    """Assert that a network computes what the module does."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got, want = result(x), module(x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= CLOSE * max(1.0, float(want.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "googlenet", "convnext_tiny", "timm:vit_tiny_patch16_224", "timm:mobilevit_xxs"])
def test_network_computes_what_the_module_does_and_is_captured(tmp_path, name):
    loaded = load_model(name, weights="none")
    shape = loaded.input_shape if "vit" in name else (1, 3, 64, 64)
    module = read_module(save(tmp_path / "m.pt2", loaded.module, shape))
    check_numbers(module, loaded.module, shape)
    assert capture(module, shape).graph.macs == capture(loaded.module, shape).graph.macs


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


@pytest.mark.parametrize("decomposed", [False, True])
def test_calls_of_every_kind_compute_what_they_did(tmp_path, decomposed):
    module = Calls().eval()
    shape = (1, 3, 8, 7)
    result = read_module(save(tmp_path / "m.pt2", module, shape, decomposed))
    check_numbers(result, module, shape)
    assert capture(result, shape).graph.by_name["conv"].kind == "conv"


def test_open_sizes_are_worked_out_for_the_input_that_is_given(tmp_path):
    class Net(nn.Module):
        def forward(self, x):
            n, c, h, w = x.shape
            return x.reshape(n, c, h * w)[:, :, : h * (w // 2)].reshape(n, -1)

    dim = torch.export.Dim
    dynamic = {"x": {0: dim("n", max=64), 2: dim("h", max=64), 3: dim("w", max=64)}}
    path = save(tmp_path / "m.pt2", Net(), (2, 3, 6, 8), dynamic_shapes=dynamic)
    for shape in ((1, 3, 6, 8), (1, 3, 5, 9), (4, 3, 2, 2)):
        check_numbers(read_module(path, shape), Net(), shape)


def test_half_precision_is_computed_in_single(tmp_path):
    module = read_module(save(tmp_path / "m.pt2", _Cast().half(), (1, 3, 4, 4), dtype=torch.float16))
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert module(torch.zeros(1, 3, 4, 4)).dtype == torch.float32


class _Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x):
        return self.conv(x).float().half() * 2


class _Written(nn.Module):
    """A tensor that is changed in place and read under its own name, and under that of a view."""

    def __init__(self, read_view):
        super().__init__()
        self.read_view = read_view

    def forward(self, x):
        y = x * 2
        seen = y.view(-1, 4)
        y.relu_()
        return seen + 1 if self.read_view else y + 1


def test_tensor_that_is_changed_through_another_name_is_refused(tmp_path):
    module = _Written(read_view=True)
    with pytest.raises(StretchError, match="which was changed in place through another name"):
        read_module(save(tmp_path / "m.pt2", module, (2, 4)))
    check_numbers(read_module(save(tmp_path / "d.pt2", module, (2, 4), decomposed=True)), module, (2, 4))


def test_stored_tensors_are_not_blown_up(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x + self.one.expand(1 << 20).repeat(1 << 10).sum()

    with pytest.raises(StretchError, match="makes a stored tensor too large"):
        read_module(save(tmp_path / "m.pt2", Net(), (1, 4)))


class Returning(nn.Module):
    """Returns all that a network may: what it computes, an input, a weight, numbers, nothing, in containers of every kind."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, left, *, right):
        y = left * self.scale + right
        return {"y": y, 3: [y.relu(), (left, None)], "more": collections.OrderedDict(scale=self.scale, size=y.shape[0], half=0.5)}


def test_everything_that_a_module_returns_is_returned_in_its_containers(tmp_path):
    module, left, right = Returning().eval(), torch.randn(2, 3), torch.randn(2, 3)
    torch.export.save(torch.export.export(module, (left,), {"right": right}), tmp_path / "m.pt2")
    result = read_module(tmp_path / "m.pt2")
    assert (result.input_shape, result.warnings) == ({"left": (2, 3), "right": (2, 3)}, [])
    with torch.no_grad():
        got, want = result(left, right=right), module(left, right=right)
    want["more"] = dict(want["more"])
    assert_equal(got, want)


def test_input_of_words_is_refused_as_that_of_a_module_is(tmp_path):
    torch.export.save(torch.export.export(nn.Embedding(5, 3), (torch.zeros(1, 4, dtype=torch.int64),)), tmp_path / "m.pt2")
    with pytest.raises(UsageError, match="takes whole numbers as its input `input`, and inputs are real numbers here"):
        read_module(tmp_path / "m.pt2")


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.4),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp_below": lambda x: x.clamp(min=-0.2),
    "add_scaled": lambda x: torch.add(x, x, alpha=3),
    "add_number": lambda x: 1.5 + x,
    "subtract_from": lambda x: 2 - x,
    "floor_division": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "power": lambda x: x**2,
    "root": lambda x: torch.rsqrt(x.abs() + 1),
    "mean_of_image": lambda x: x.mean((2, 3), keepdim=True),
    "mean_of_all": lambda x: x.mean().reshape(1),
    "maximum": lambda x: x.amax(1),
    "variance": lambda x: x.var(1),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "max_pool": lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True),
    "max_pool_with_places": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "average_pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average_pool_divided": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, 2),
    "split": lambda x: x.split([1, 3], 1)[1],
    "chunk": lambda x: torch.cat(x.chunk(2, 2)[::-1], 2),
    "unbind": lambda x: x.unbind(1)[2],
    "slice": lambda x: x[:, 1:, 1::2, :-1],
    "select": lambda x: x[:, -1],
    "unsqueeze": lambda x: x.unsqueeze(2).squeeze(2).unsqueeze(-1).squeeze(),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "roll": lambda x: torch.roll(x, (1, 2), (2, 3)),
    "flip": lambda x: x.flip(3),
    "pad_reflect": lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"),
    "pad_constant": lambda x: F.pad(x, (1, 0, 0, 2), value=0.5),
    "nearest_whole": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_size": lambda x: F.interpolate(x, size=(9, 4)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :4, :4], 2),
    "flatten": lambda x: x.flatten(2).flatten(1),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "einsum": lambda x: torch.einsum("nchw,ndhw->ncd", x, x),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "mask": lambda x: x.masked_fill(torch.ones(6, 5).tril().bool(), 0.0),
    "made": lambda x: x + torch.linspace(0, 1, 5) + torch.zeros(6, 1) + torch.ones_like(x),
    "normalise": lambda x: F.normalize(x, dim=1),
    "unfold": lambda x: F.unfold(x, 2),
    "cumsum": lambda x: x.cumsum(2),
    "instance_norm": F.instance_norm,
    "type_and_back": lambda x: (x * 3).to(torch.int32).float(),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) + 1,
    "product_with_gate": lambda x: x * torch.sigmoid(x),
    "gate_of_another": lambda x: (x + 1) * torch.sigmoid(x),
}


@pytest.mark.representatives(25)
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_call_computes_what_torch_does(tmp_path, name, decomposed):
    x = torch.randn(1, 4, 6, 5, generator=torch.Generator().manual_seed(1))
    module = read_module(save(tmp_path / "m.pt2", Of(FUNCTIONS[name]), x.shape, decomposed))
    with torch.no_grad():
        got, want = module(x.clone()), FUNCTIONS[name](x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 1e-4 * max(1.0, float(want.abs().max()))


def test_random_numbers_are_refused(tmp_path):
    from predictors.errors import StretchError

    with pytest.raises(StretchError, match="more than compute tensors from tensors"):
        read_module(save(tmp_path / "m.pt2", Of(lambda x: x + torch.randn_like(x)), (1, 4)))


LAYERS = {
    "conv": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2), (2, 4, 6, 5)),
    "conv_same": (lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), (2, 4, 6, 5)),
    "conv_1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
    "conv_3d": (lambda: nn.Conv3d(4, 6, 2), (1, 4, 3, 4, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (1, 4, 5, 4)),
    "transposed_1d": (lambda: nn.ConvTranspose1d(4, 6, 4, 2), (1, 4, 5)),
    "batch_norm": (lambda: nn.BatchNorm2d(4, eps=0.01), (2, 4, 6, 5)),
    "batch_norm_plain": (lambda: nn.BatchNorm2d(4, affine=False), (2, 4, 6, 5)),
    "batch_norm_1d": (lambda: nn.BatchNorm1d(4), (3, 4)),
    "linear": (lambda: nn.Linear(5, 3), (2, 5)),
    "linear_without_bias": (lambda: nn.Linear(5, 3, bias=False), (2, 5)),
    "linear_on_tokens": (lambda: nn.Linear(5, 3), (2, 7, 5)),
    "layer_norm": (lambda: nn.LayerNorm((6, 5)), (2, 4, 6, 5)),
    "layer_norm_plain": (lambda: nn.LayerNorm(5, elementwise_affine=False), (2, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4, eps=0.1), (2, 4, 6, 5)),
    "prelu": (lambda: nn.PReLU(4), (2, 4, 6, 5)),
    "lstm": (lambda: _First(nn.LSTM(5, 3, batch_first=True)), (2, 7, 5)),
    "attention": (lambda: _Attention(), (2, 7, 4)),
}

#: Layers of torch that come back as such.
OWN = ("conv", "transposed", "batch_norm", "linear", "layer_norm", "group_norm", "prelu")


class _First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.heads(x, x, x, need_weights=False)[0]


class _Within(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inner = nn.ModuleDict({"own": layer})

    def forward(self, x):
        return self.inner["own"](x)


@pytest.mark.representatives(12)
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_computes_what_it_did(tmp_path, name, decomposed):
    make, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(2)
    module = _Within(make()).eval()
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    result = read_module(save(tmp_path / "m.pt2", module, shape, decomposed))
    x = torch.randn(shape, generator=generator)
    with torch.no_grad():
        got, want = result(x), module(x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 1e-4 * max(1.0, float(want.abs().max()))
    if name.startswith(OWN) and not (decomposed and name not in ("conv", "transposed", "batch_norm", "linear")):
        assert isinstance(dict(result.named_modules())["inner.own"], type(make()))
        assert {key for key in result.state_dict() if "tracked" not in key} == {key for key in module.state_dict() if "tracked" not in key}


def test_layer_whose_weight_is_computed_is_still_computed(tmp_path):
    class Computed(nn.Module):
        def forward(self, x):
            return nn.functional.conv2d(x, x[:, :, :2, :2].mean(0, keepdim=True).expand(5, -1, -1, -1))

    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    module = read_module(save(tmp_path / "m.pt2", Computed(), x.shape))
    assert (module(x) - Computed()(x)).abs().max() <= 1e-4
