"""Tensors of tokens and channels become maps, and what they compute stays."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from stretch.capture.axes.maps import spread  # noqa: E402
from stretch.capture.factors import map_axes  # noqa: E402
from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.planning.network.segments import channel_groups  # noqa: E402
from tests.stretch.capture.test_runnable import built, close  # noqa: E402
from tests.stretch.capture.token_patterns import ATTENTIONS, CHANNELS, HEADS, LAST, MLPS, Tokens, network  # noqa: E402

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


@pytest.mark.parametrize("pattern", ATTENTIONS, ids=lambda pattern: pattern.__name__)
def test_attention_is_one_operator_however_it_is_written(pattern):
    graph = capture_runnable(network(pattern), SHAPE, "net").graph
    (result,) = [op for op in graph.ops if op.kind == "attention"]
    assert result.attrs["heads"] == HEADS


class Written(Tokens):
    """Heads of one layer each, and what is done to the scores before and after the softmax."""

    def __init__(self, before=lambda s: s, after=lambda s: s, same=False):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))
        self.mix = nn.Linear(HEADS, HEADS)
        self.before, self.after, self.same = before, after, same

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = (layer(x).view(n, t, HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = self.before(q @ (q if self.same else k).transpose(-2, -1))
        return (self.after(scores.softmax(-1)) @ v).transpose(1, 2).reshape(n, t, c)


class KeysFirst(Written):
    """Scores of keys by queries, with something learned and something fixed added."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.rand(1, HEADS, 64, 64, generator=torch.Generator().manual_seed(1)))

    def hidden(self, x):
        n, t, c = x.shape
        q, k, v = (layer(x).view(n, t, HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        shares = (k @ q.transpose(-2, -1) + self.bias + torch.eye(64).cumsum(0)).softmax(-2)
        return (shares.transpose(-2, -1) @ v).transpose(1, 2).reshape(n, t, c)


FACTORS = torch.rand(HEADS, 1, 1, generator=torch.Generator().manual_seed(0))
UNDERSTOOD = [
    Written(),
    Written(lambda s: s * 0.3 / 2),
    Written(lambda s: s * FACTORS + torch.eye(64)),
    KeysFirst(),
    Written(lambda s: (s - torch.eye(64)) * 0.5, lambda s: s.clone().contiguous()),
]
OTHERS = [
    Written(lambda s: s + s.mean()),
    Written(lambda s: s.relu()),
    Written(after=lambda s: s * 0.5),
    Written(after=lambda s: s - s.mean(-1, keepdim=True)),
    Written(lambda s: s.transpose(-2, -1) + torch.eye(64)),
    Written(same=True),
]


@pytest.mark.representatives(6)
@pytest.mark.parametrize("block", [*UNDERSTOOD, *OTHERS])
def test_scores_are_followed_or_computed_by_torch_and_never_wrong(block):
    module = network(lambda: block)
    captured = capture_runnable(module, SHAPE, "net")
    model = built(captured)
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert close(model(x), module(x))
    if block in UNDERSTOOD:
        assert captured.opaque == ()
        assert sum(op.kind == "attention" for op in captured.graph.ops) == 1


CONSTANTS_SHAPE = (1, 6, 2, 4)


@given(st.permutations(range(5)), st.tuples(*[st.booleans()] * 5), st.integers(0, 4))
def test_constant_on_a_map_is_broadcast_as_on_the_tensor_that_is_seen(order, whole, cut):
    axes = map_axes(CONSTANTS_SHAPE).reshaped((1, 3, 2, 2, 4))
    assert axes is not None
    axes = axes.permuted(order)
    sizes = tuple(size if keep else 1 for size, keep in zip(axes.shape, whole, strict=True))[cut:]
    tensor = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    x = torch.randn(CONSTANTS_SHAPE, generator=torch.Generator().manual_seed(1))
    seen = x.reshape(1, 3, 2, 2, 4).permute(order)
    want = (seen + tensor).permute(*np.argsort(order)).reshape(CONSTANTS_SHAPE)
    result = spread(tensor, axes, ("channel", "pixel"))
    assert result is not None
    got = (x.reshape(6, 8) + result).reshape(CONSTANTS_SHAPE)
    assert torch.equal(got, want)


def test_constant_that_differs_between_pixels_is_none_for_channels_alone():
    axes = map_axes(CONSTANTS_SHAPE)
    assert spread(torch.ones(4), axes, ("channel",)) is None
    assert spread(torch.ones(6, 1, 1), axes, ("channel",)).shape == (6,)


PATTERNS = (*MLPS, *ATTENTIONS, *LAST)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_tokens_and_channels_that_lie_last_are_channels_and_pixels_of_maps(pattern):
    """No operator is opaque, no channels are held fast but the input's and the classes', and the network is the network."""
    module = network(pattern)
    captured = capture_runnable(module, SHAPE, "net")
    assert captured.opaque == ()
    frozen = {
        name for name, pieces in channel_groups(captured.graph).pieces.items() if pieces[0][0] in channel_groups(captured.graph).frozen
    }
    assert not {name for name in frozen if captured.graph.by_name[name].kind in ("conv", "linear", "add")}
    model = built(captured)
    for images in (1, 3):
        x = torch.randn(images, *SHAPE[1:], generator=torch.Generator().manual_seed(images))
        with torch.no_grad():
            assert close(model(x), module(x))
