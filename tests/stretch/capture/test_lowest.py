"""Max pooling that is padded beforehand is captured as one operator, and means what it meant."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402 - torch may be missing
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.capture.trace import capture_traced as capture  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.designs import identity_design  # noqa: E402

pytestmark = pytest.mark.torch

INF = float("inf")


class Padded(nn.Module):
    def __init__(self, sides, stride, after="max", ceil_mode=False):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.sides, self.stride, self.after, self.ceil_mode = sides, stride, after, ceil_mode

    def forward(self, x):
        x = F.pad(self.conv(x), self.sides, value=-INF)
        if self.after == "relu":
            return torch.relu(x)
        return torch.relu(F.max_pool2d(x, 3, self.stride, ceil_mode=self.ceil_mode))


@given(st.tuples(*[st.integers(0, 1)] * 4), st.integers(1, 3), st.integers(0, 2**16))
def test_pooling_padded_by_minus_infinity_is_one_operator_with_the_same_result(sides, stride, seed):
    network = Padded(sides, stride)
    captured = capture(network, (1, 3, 7, 6), "net")
    assert [op.kind for op in captured.graph.ops] == ["input", "conv", "max_pool", "relu"]
    left, right, top, bottom = sides
    assert captured.graph.by_name["max_pool2d"].attrs["padding"] == (top, left, bottom, right)
    x = torch.randn(1, 3, 7, 6, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        assert torch.equal(build(captured, identity_design(captured.graph))(x), network(x))


@pytest.mark.parametrize(
    ("network", "reader"), [(Padded((1, 1, 1, 1), 1, "relu"), "relu"), (Padded((1, 1, 1, 1), 2, ceil_mode=True), "max_pool2d")]
)
def test_minus_infinity_that_something_else_reads_is_refused(network, reader):
    with pytest.raises(StretchError, match=f"padding by minus infinity is read by `{reader}`"):
        capture(network, (1, 3, 7, 6), "net")


def test_padding_beyond_half_a_window_is_refused():
    with pytest.raises(StretchError, match="`max_pool2d` reads an image padded by minus infinity further than half of its window"):
        capture(Padded((0, 0, 2, 0), 1), (1, 3, 7, 6), "net")
