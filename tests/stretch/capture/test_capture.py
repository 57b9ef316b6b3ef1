import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from stretch.capture import capture  # noqa: E402
from tests.stretch.capture.patterns import Attention, network  # noqa: E402

pytestmark = pytest.mark.torch


class Shy(nn.Module):
    """Keeps a table by the size of its input from its first run on, which a tracer must not spoil."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None or self.table.shape[-1] != x.shape[-1]:
            self.table = torch.arange(float(x.shape[-1]))
        return x + self.table


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_network_that_can_be_traced_has_no_opaque_operators():
    captured = capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (1, 3, 8, 8))
    assert (captured.refusal, captured.opaque) == ("", ())


def test_network_that_cannot_be_traced_says_why_and_which_operators_are_opaque():
    captured = capture(network(Attention), (1, 3, 8, 8), "net")
    assert "not supported" in captured.refusal
    kinds = {captured.graph.by_name[name].kind for name in captured.opaque}
    assert kinds == {"opaque"}
    # a class token is put before the others; its place is a matter of pixels, not of channels
    assert {str(captured.graph.by_name[name].attrs["variant"]) for name in captured.opaque} == {"permute", "concat"}
    assert not {"0_0", "0_1", "1_norm", "1_proj", "2_2"} & set(captured.opaque)


def test_network_that_keeps_a_table_is_captured_and_keeps_none_of_the_tracers():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), Shy())
    captured = capture(module, (1, 3, 8, 8))
    assert captured.graph.by_name[captured.graph.output].shape == (1, 4, 6, 6)
    assert module[1].table is None
    with torch.no_grad():
        module(torch.randn(1, 3, 8, 8))


def test_what_neither_takes_is_refused_for_the_reason_of_tracing_and_that_of_exporting():
    with pytest.raises(StretchError, match="cannot be traced") as caught:
        capture(Branching(), (1, 3, 8, 8), "net")
    assert caught.value.hint.startswith("torch.export does not take it either")
