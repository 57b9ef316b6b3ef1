import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture.runnable import capture_runnable  # noqa: E402
from tests.stretch.capture.test_runnable import built, close  # noqa: E402
from tests.stretch.capture.token_patterns import ATTENTIONS, CHANNELS, HEADS, Tokens, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("pattern", ATTENTIONS, ids=lambda pattern: pattern.__name__)
def test_attention_is_one_operator_however_it_is_written(pattern):
    graph = capture_runnable(network(pattern), SHAPE, "net").graph
    (found,) = [op for op in graph.ops if op.kind == "attention"]
    assert found.attrs["heads"] == HEADS


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


FACTORS = torch.rand(HEADS, 1, 1, generator=torch.Generator().manual_seed(0))
UNDERSTOOD = [
    Written(),
    Written(lambda s: s * 0.3 / 2),
    Written(lambda s: s * FACTORS + torch.eye(64)),
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


@pytest.mark.representatives(4)
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
