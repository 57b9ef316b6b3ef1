import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture.inlined import inline  # noqa: E402

pytestmark = pytest.mark.torch


class Switched(nn.Module):
    def __init__(self, enabled):
        super().__init__()
        self.enabled = enabled

    def forward(self, x):
        with torch.autocast("cpu", enabled=self.enabled):
            a, b = (x @ x).relu(), x.sin()
        with torch.no_grad():
            c = a * 2
        return (a + b) / (1 + c.abs())


def program(enabled):
    return torch.export.export(Switched(enabled), (torch.ones(3, 3),), strict=False)


def test_parts_under_switches_become_part_of_the_network():
    exported = program(enabled=False)
    inline(exported)
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names
    assert all(name.startswith("aten.") for name in names)
    assert not [node for node in exported.graph.nodes if node.op == "get_attr"]
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    (got,) = torch.fx.Interpreter(exported.graph_module).run(x)
    assert torch.allclose(got, Switched(False)(x))


def test_part_in_another_precision_stays_a_part():
    exported = program(enabled=True)
    inline(exported)
    assert any("wrap_with_autocast" in str(node.target) for node in exported.graph.nodes)
