"""Capture by export: torch's operators become kinds, with torch's own count of multiply-accumulates."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from predictors.fusion import fuse  # noqa: E402
from predictors.graph import OpGraph  # noqa: E402
from stretch.capture.exported import capture_exported  # noqa: E402
from stretch.models.load import load_model  # noqa: E402
from tests.stretch.capture.patterns import Calling  # noqa: E402

TRANSFORMERS = [
    *("vit_b_16", "swin_t", "convnext_tiny", "timm:deit_tiny_distilled_patch16_224", "timm:beit_base_patch16_224"),
    *("timm:mobilevit_s", "timm:efficientformer_l1", "timm:levit_128s", "timm:maxvit_tiny_rw_224", "timm:poolformer_s12"),
]


def counted_macs(module, shape):
    """Half of the operations that torch counts while it runs, with attention as the products that it is."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            module(torch.zeros(shape))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops() / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_macs_of_a_network_without_plain_capture_are_those_that_torch_counts(name):
    loaded = load_model(name, weights="none")
    graph = capture_exported(loaded.module, loaded.input_shape, name)
    assert graph.macs == counted_macs(loaded.module, loaded.input_shape)
    assert OpGraph.from_json(graph.to_json()) == graph
    assert fuse(graph, "tflite_cpu")


class Tokens(nn.Module):
    """A map as tokens, attention written by hand, and a head that reads one token."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.position = nn.Parameter(torch.zeros(1, 17, 8))
        self.first = nn.Parameter(torch.zeros(1, 1, 8))
        self.norm, self.qkv, self.out, self.head = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.position
        q, k, v = self.qkv(self.norm(x)).reshape(1, 17, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(1, 17, 8))
        return self.head(nn.functional.gelu(x)[:, 0])


def test_network_whose_values_decide_is_refused_without_a_word_of_torch(capfd):
    with pytest.raises(StretchError, match=r"cannot be exported by torch\.export"):
        capture_exported(Calling(lambda x: x * 2 if x.sum() > 0 else x), (1, 3, 8, 8))
    assert capfd.readouterr() == ("", "")


def test_network_whose_sizes_depend_on_values_is_refused():
    with pytest.raises(StretchError, match=r"depends on values|cannot be exported"):
        capture_exported(Calling(lambda x: x.reshape(-1)[x.reshape(-1) > 0]), (1, 3, 8, 8))


def test_input_that_the_network_rejects_is_told_as_such():
    with pytest.raises(UsageError, match="rejects an input of 1×4×16×16"):
        capture_exported(Tokens(), (1, 4, 16, 16))


def test_mode_of_the_network_is_kept():
    module = Tokens().train()
    capture_exported(module, (1, 3, 16, 16))
    assert module.training


IMAGE, TOKENS = (1, 6, 8, 8), (1, 64, 6)


def kinds(function, shape):
    module = Calling(lambda x: function(x.relu()))
    graph = capture_exported(module, shape)
    assert tuple(graph.by_name[graph.output].shape) == tuple(module(torch.zeros(shape)).shape)
    return [f"{op.attrs['kernel']}:{op.attrs['variant']}" if op.kind == "opaque" else op.kind for op in graph.ops[2:]]


@pytest.mark.representatives(12)
@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda x: x.flatten(2).transpose(1, 2), IMAGE, ["view"]),
        (lambda x: x.transpose(1, 2).reshape(1, 6, 8, 8), TOKENS, ["view"]),
        (lambda x: x.permute(0, 2, 3, 1), IMAGE, ["view"]),
        (lambda x: x.transpose(1, 2), TOKENS, ["copy:permute"]),
        (lambda x: x.permute(0, 3, 2, 1), IMAGE, ["copy:permute"]),
        (lambda x: x.reshape(1, 2, 3, 64).unsqueeze(0).squeeze(0).contiguous(), IMAGE, ["view"]),
        (lambda x: x.flatten(1), IMAGE, ["flatten"]),
        (lambda x: x.expand(4, 6, 8, 8), IMAGE, ["view"]),
        (lambda x: x[:, 2:5], IMAGE, ["slice"]),
        (lambda x: x[:, -2:], IMAGE, ["slice"]),
        (lambda x: x[:, 0], TOKENS, ["copy:slice"]),
        (lambda x: x[:, ::2], IMAGE, ["copy:slice"]),
        (lambda x: x[..., 1:5], IMAGE, ["copy:slice"]),
        (lambda x: torch.cat([*x.chunk(3, 1)], 1), IMAGE, ["slice", "slice", "slice", "concat"]),
        (lambda x: torch.cat([x, x], 2), IMAGE, ["copy:concat"]),
        (lambda x: torch.cat([torch.zeros(1, 1, 6), x], 1), TOKENS, ["copy:concat"]),
        (lambda x: torch.stack(x.unbind(1), 1), TOKENS, ["copy:slice"] * 64 + ["copy:stack"]),
        (lambda x: nn.functional.pad(x, (1, 2, 3, 4)), IMAGE, ["pad"]),
        (lambda x: nn.functional.pad(x, (1, 1), mode="reflect"), TOKENS, ["copy:pad"]),
        (lambda x: x.roll((1, 1), (2, 3)), IMAGE, ["copy:roll"]),
    ],
)
def test_moves_are_views_or_copies(function, shape, expected):
    assert kinds(function, shape) == expected


MAP, ROWS = (1, 4, 8, 8), (1, 6, 4)


def lowered(function, shape, *own):
    """Kinds of the operators behind the input, an opaque one by its kernel and variant, and MACs."""
    module = Calling(function, *own).eval()
    graph = capture_exported(module, shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(shape))
    assert graph.macs == counter.get_total_flops() / 2
    assert graph.by_name[graph.output].shape == tuple(module(torch.zeros(shape)).shape)
    return [f"{op.attrs['kernel']}:{op.attrs['variant']}" if op.kind == "opaque" else op.kind for op in graph.ops[1:]]


@pytest.mark.parametrize(
    ("function", "shape", "local", "kinds"),
    [
        (lambda x, w: F.conv2d(x, w, padding=1), MAP, [(6, 4, 3, 3)], ["conv"]),
        (lambda x, w: F.conv2d(x, w, padding="same"), MAP, [(6, 4, 4, 4)], ["conv"]),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), MAP, [(4, 6, 3, 3)], ["conv:conv_transpose2d"]),
        (lambda x, w: F.conv1d(x, w), ROWS, [(5, 6, 3)], ["conv:conv1d"]),
        (lambda x, w, b: F.linear(x, w, b), ROWS, [(5, 4), (5,)], ["linear"]),
        (lambda x, w: x @ w, ROWS, [(4, 5)], ["linear"]),
        (lambda x: x @ x.transpose(1, 2), ROWS, [], ["copy:permute", "matmul:matmul"]),
        (lambda x, w: torch.einsum("bnc,bmc->bnm", x, w), ROWS, [(1, 7, 4)], ["matmul:matmul"]),
        (lambda x: x.softmax(-1), ROWS, [], ["elementwise:softmax"]),
        (lambda x: x.softmax(1), MAP, [], ["softmax"]),
        (lambda x: F.layer_norm(x, (4,)), ROWS, [], ["elementwise:layer_norm"]),
        (lambda x: F.group_norm(x, 2), MAP, [], ["elementwise:group_norm"]),
        (lambda x: x.mean((2, 3)), MAP, [], ["global_avg_pool"]),
        (lambda x: x.mean(1), ROWS, [], ["reduce:mean"]),
        (lambda x: F.adaptive_avg_pool2d(x, 3), MAP, [], ["pool:adaptive_avg_pool2d"]),
        (lambda x: F.avg_pool2d(x, 2), MAP, [], ["avg_pool"]),
        (lambda x: x + 1.5, ROWS, [], ["add_scalar"]),
        (lambda x: x - x * 2, ROWS, [], ["mul_scalar", "elementwise:sub"]),
        (lambda x: x / 2 + 0, ROWS, [], ["mul_scalar"]),
        (lambda x, w: x * w, MAP, [(4, 1, 1)], ["scale"]),
        (lambda x, w: x + w, ROWS, [(1, 6, 4)], ["elementwise:add"]),
        (lambda x: F.relu6(x), MAP, [], ["relu6"]),
        (lambda x: x.clamp(-1, 2), ROWS, [], ["clamp"]),
        (lambda x: x.exp(), ROWS, [], ["elementwise:exp"]),
        (lambda x: F.interpolate(x, scale_factor=2), MAP, [], ["upsample"]),
        (lambda x: F.interpolate(x, size=(11, 11), mode="bilinear"), MAP, [], ["copy:upsample_bilinear2d"]),
        (lambda x: F.dropout(x, 0.5, training=False).relu(), ROWS, [], ["relu"]),
    ],
)
def test_operator_becomes_its_kind_with_torchs_macs(function, shape, local, kinds):
    assert lowered(function, shape, *local) == kinds


def test_recurrent_layer_is_the_products_of_all_its_steps():
    graph = capture_exported(nn.LSTM(4, 5, batch_first=True, bidirectional=True), ROWS)
    (step,) = [op for op in graph.ops if op.kind == "opaque" and op.attrs["variant"] == "lstm"]
    assert graph.op_macs(step) == 6 * 2 * (4 + 5) * 20
    assert graph.op_weights(step) == {"weight": (2 * (20 * 9 + 40) + 2 * 2 * 5,)}


def test_attention_with_a_mask_adds_it_between_the_products():
    def attend(x, mask):
        q = x.reshape(1, 6, 2, 2).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, mask)

    graph = capture_exported(Calling(attend, (6, 6)).eval(), ROWS)
    names = [op.attrs["variant"] for op in graph.ops if op.kind == "opaque"]
    assert names == ["permute", "matmul", "add", "softmax", "matmul"]
