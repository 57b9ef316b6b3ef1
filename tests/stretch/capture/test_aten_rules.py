"""ATen operators to operators of ours, one by one."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402 - torch may be missing
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from stretch.capture.exported import capture_exported  # noqa: E402

pytestmark = pytest.mark.torch

IMAGE, TOKENS = (1, 4, 8, 8), (1, 6, 4)


class Net(nn.Module):
    """One function of the input and some parameters."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.own = nn.ParameterList([torch.ones(shape) for shape in shapes])

    def forward(self, x):
        return self.function(x, *self.own)


def lowered(function, shape, *own):
    """Kinds of the operators behind the input, an opaque one by its kernel and variant, and MACs."""
    module = Net(function, *own).eval()
    graph = capture_exported(module, shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(shape))
    assert graph.macs == counter.get_total_flops() / 2
    assert graph.by_name[graph.output].shape == tuple(module(torch.zeros(shape)).shape)
    return [f"{op.attrs['kernel']}:{op.attrs['variant']}" if op.kind == "opaque" else op.kind for op in graph.ops[1:]]


@pytest.mark.parametrize(
    ("function", "shape", "own", "kinds"),
    [
        (lambda x, w: F.conv2d(x, w, padding=1), IMAGE, [(6, 4, 3, 3)], ["conv"]),
        (lambda x, w: F.conv2d(x, w, padding="same"), IMAGE, [(6, 4, 4, 4)], ["conv"]),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), IMAGE, [(4, 6, 3, 3)], ["conv:conv_transpose2d"]),
        (lambda x, w: F.conv1d(x, w), TOKENS, [(5, 6, 3)], ["conv:conv1d"]),
        (lambda x, w, b: F.linear(x, w, b), TOKENS, [(5, 4), (5,)], ["linear"]),
        (lambda x, w: x @ w, TOKENS, [(4, 5)], ["linear"]),
        (lambda x: x @ x.transpose(1, 2), TOKENS, [], ["copy:permute", "matmul:matmul"]),
        (lambda x, w: torch.einsum("bnc,bmc->bnm", x, w), TOKENS, [(1, 7, 4)], ["matmul:matmul"]),
        (lambda x: x.softmax(-1), TOKENS, [], ["elementwise:softmax"]),
        (lambda x: x.softmax(1), IMAGE, [], ["softmax"]),
        (lambda x: F.layer_norm(x, (4,)), TOKENS, [], ["elementwise:layer_norm"]),
        (lambda x: F.group_norm(x, 2), IMAGE, [], ["elementwise:group_norm"]),
        (lambda x: x.mean((2, 3)), IMAGE, [], ["global_avg_pool"]),
        (lambda x: x.mean(1), TOKENS, [], ["reduce:mean"]),
        (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE, [], ["pool:adaptive_avg_pool2d"]),
        (lambda x: F.avg_pool2d(x, 2), IMAGE, [], ["avg_pool"]),
        (lambda x: x + 1.5, TOKENS, [], ["add_scalar"]),
        (lambda x: x - x * 2, TOKENS, [], ["mul_scalar", "elementwise:sub"]),
        (lambda x: x / 2 + 0, TOKENS, [], ["mul_scalar"]),
        (lambda x, w: x * w, IMAGE, [(4, 1, 1)], ["scale"]),
        (lambda x, w: x + w, TOKENS, [(1, 6, 4)], ["elementwise:add"]),
        (lambda x: F.relu6(x), IMAGE, [], ["relu6"]),
        (lambda x: x.clamp(-1, 2), TOKENS, [], ["clamp"]),
        (lambda x: x.exp(), TOKENS, [], ["elementwise:exp"]),
        (lambda x: F.interpolate(x, scale_factor=2), IMAGE, [], ["upsample"]),
        (lambda x: F.interpolate(x, size=(11, 11), mode="bilinear"), IMAGE, [], ["copy:upsample_bilinear2d"]),
        (lambda x: F.dropout(x, 0.5, training=False).relu(), TOKENS, [], ["relu"]),
    ],
)
def test_operator_becomes_its_kind_with_torchs_macs(function, shape, own, kinds):
    assert lowered(function, shape, *own) == kinds


def test_recurrent_layer_is_the_products_of_all_its_steps():
    graph = capture_exported(nn.LSTM(4, 5, batch_first=True, bidirectional=True), TOKENS)
    (step,) = [op for op in graph.ops if op.kind == "opaque" and op.attrs["variant"] == "lstm"]
    assert graph.op_macs(step) == 6 * 2 * (4 + 5) * 20
    assert graph.op_weights(step) == {"weight": (2 * (20 * 9 + 40) + 2 * 2 * 5,)}


def test_attention_with_a_mask_adds_it_between_the_products():
    def attend(x, mask):
        q = x.reshape(1, 6, 2, 2).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, mask)

    graph = capture_exported(Net(attend, (6, 6)).eval(), TOKENS)
    names = [op.attrs["variant"] for op in graph.ops if op.kind == "opaque"]
    assert names == ["permute", "matmul", "add", "softmax", "matmul"]
