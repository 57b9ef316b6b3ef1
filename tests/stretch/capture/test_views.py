import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from stretch.capture.trace import capture_traced as capture  # noqa: E402

pytestmark = pytest.mark.torch


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.function = function

    def forward(self, x):
        return self.function(self.conv(x))


def graph(function):
    return capture(Apply(function).eval(), (1, 3, 4, 4), "net").graph


def shuffle(x):
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def test_view_transpose_view_is_a_channel_shuffle():
    op = graph(shuffle).ops[-1]
    assert (op.kind, op.attrs["groups"]) == ("channel_shuffle", 2)


def test_permutation_to_channels_last_and_back_leaves_nothing():
    assert [
        op.kind for op in graph(lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2)).ops if op.kind not in ("input", "conv", "identity")
    ] == []


def test_chunks_along_channels_are_slices():
    def swapped(x):
        first, second = torch.chunk(x, 2, 1)
        return torch.cat([second, first], 1)

    found = graph(swapped)
    assert sorted((op.attrs["start"], op.attrs["stop"]) for op in found.ops if op.kind == "slice") == [(0, 4), (4, 8)]


@pytest.mark.parametrize("function", [lambda x: x.permute(0, 2, 3, 1), lambda x: x.transpose(2, 3), lambda x: x.view(1, 8, 16)])
def test_view_that_never_comes_back_to_channels_first_is_refused(function):
    with pytest.raises(StretchError, match=r"cannot (be captured|capture node)"):
        graph(lambda x: torch.relu(function(x)))
