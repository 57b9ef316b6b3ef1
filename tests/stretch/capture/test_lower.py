import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture.trace import capture_traced as capture  # noqa: E402

pytestmark = pytest.mark.torch


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.unused = nn.Conv2d(4, 8, 1)

    def forward(self, x):
        self.unused(x)
        return self.conv(self.conv(x))


def test_module_called_twice_becomes_two_operators_with_equal_weights():
    found = capture(Shared().eval(), (1, 4, 5, 5), "net")
    convs = [op for op in found.graph.ops if op.kind == "conv"]
    assert len({op.name for op in convs}) == 2
    assert torch.equal(*(found.weights[op.name]["weight"] for op in convs))
