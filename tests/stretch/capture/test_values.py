import pytest

torch = pytest.importorskip("torch")
from torch import fx, nn  # noqa: E402 - torch may be missing

from stretch.capture.values import Values  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x):
        first, second = torch.chunk(x * self.gain, 2, dim=2)
        return (first + second).reshape(x.size(0), -1)


@pytest.fixture
def values():
    traced = fx.symbolic_trace(Net())
    found = Values(traced)
    found.run(torch.randn(2, 3, 4, 5))
    return {node.name: node for node in traced.graph.nodes}, found


def test_shapes_of_tensors_are_kept(values):
    nodes, found = values
    assert found.shapes[nodes["add"]] == (2, 3, 2, 5)
    assert found.shapes[nodes["reshape"]] == (2, 30)


def test_numbers_and_groups_of_tensors_are_kept_apart(values):
    nodes, found = values
    assert found.constants[nodes["size"]] == 2
    assert [tuple(part.shape) for part in found.parts[nodes["chunk"]]] == [(2, 3, 2, 5)] * 2
