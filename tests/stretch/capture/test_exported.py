"""Capture by torch.export, against torch's own count of operations and against capture by tracing."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from predictors.errors import StretchError, UsageError  # noqa: E402
from predictors.fusion import fuse  # noqa: E402
from predictors.graph import OpGraph  # noqa: E402
from stretch.capture.exported import capture_exported  # noqa: E402
from stretch.models.load import load_model  # noqa: E402

pytestmark = pytest.mark.torch

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


class Loop(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Counting(nn.Module):
    def forward(self, x):
        return x.reshape(-1)[x.reshape(-1) > 0]


def test_network_whose_values_decide_is_refused_without_a_word_of_torch(capfd):
    with pytest.raises(StretchError, match=r"cannot be exported by torch\.export"):
        capture_exported(Loop(), (1, 3, 8, 8))
    assert capfd.readouterr() == ("", "")


def test_network_whose_sizes_depend_on_values_is_refused():
    with pytest.raises(StretchError, match=r"depends on values|cannot be exported"):
        capture_exported(Counting(), (1, 3, 8, 8))


def test_input_that_the_network_rejects_is_told_as_such():
    with pytest.raises(UsageError, match="rejects an input of 1×4×16×16"):
        capture_exported(Tokens(), (1, 4, 16, 16))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.conv(x)
        self.act(y)
        y[:, :2] += 1
        return y.mean((2, 3)), y


def test_changes_in_place_count_for_whoever_reads_later_and_all_outputs_are_kept():
    graph = capture_exported(InPlace(), (1, 3, 8, 8))
    kinds = [op.attrs.get("variant", op.kind) for op in graph.ops]
    assert "relu" in kinds
    assert len(graph.outputs) == 2
    ancestors = {name for op in graph.ops for name in op.inputs}
    assert all(op.name in ancestors or op.name in graph.outputs for op in graph.ops)


def test_network_that_returns_its_input_or_a_constant_is_refused():
    class Fixed(nn.Module):
        def forward(self, x):
            return torch.ones(3)

    with pytest.raises(StretchError, match="returns its input"):
        capture_exported(nn.Identity(), (1, 3, 8, 8))
    with pytest.raises(StretchError, match="nothing that depends on its input"):
        capture_exported(Fixed(), (1, 3, 8, 8))


def test_mode_of_the_network_is_kept():
    module = Tokens().train()
    capture_exported(module, (1, 3, 16, 16))
    assert module.training
