import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture.runnable import capture_runnable  # noqa: E402
from tests.stretch.capture.test_runnable import built, close  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)


class Net(nn.Module):
    """Convolution, batch norm and activation, and a function of what they give."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.norm, self.function = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), function

    def forward(self, x):
        return self.function(self.norm(self.conv(x)).relu())


def kinds(function):
    """Kinds of the operators behind the input; the graph computes what the network computes."""
    module = Net(function).eval()
    captured = capture_runnable(module, SHAPE, "net")
    model = built(captured)
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert close(model(x), module(x))
    return [op.kind for op in captured.graph.ops[1:]]


def shuffled(x):
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


CHAIN = ["conv", "batch_norm", "relu"]


def test_channels_in_another_order_are_filters_in_another_order():
    assert kinds(shuffled) == CHAIN


def test_what_is_computed_whole_is_not_computed_in_parts_too():
    def whole_and_part(x):
        a, b = x.view(x.shape[0], 2, 4, 8, 8).unbind(1)
        return torch.cat([x, a * b], 1)

    assert sorted(kinds(whole_and_part)) == sorted([*CHAIN, "slice", "slice", "mul", "concat"])


def test_pixels_in_another_order_are_rearranged_once_before_what_reads_them():
    def turned(x):
        windows = x.view(x.shape[0], 8, 2, 4, 8).transpose(2, 3)
        return windows.reshape(x.shape[0], 8, 4, 16).relu()

    assert kinds(turned) == ["rearrange", *CHAIN, "relu"] or kinds(turned).count("rearrange") == 1
