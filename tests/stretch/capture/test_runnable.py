import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import OpGraph  # noqa: E402
from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.network.segments import cut_segment  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.model import Branch  # noqa: E402
from tests.stretch.capture.patterns import PATTERNS, SIDE, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, SIDE, SIDE)


def whole(captured):
    """The captured graph as one branch."""
    graph = captured.graph
    segment = cut_segment(graph, "all", graph.input.name, graph.output)
    alone = BranchScale("cpu", segment.depth, segment.width)
    return BranchDesign(graph.name, "any", (SegmentDesign("all", graph.input.name, graph.output, (alone,)),))


def built(captured):
    return build(captured, whole(captured))


def close(got, want):
    return float((got - want).detach().abs().max()) <= 1e-4 * max(1e-3, float(want.detach().abs().max()))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_network_is_computed_as_torch_computes_it_for_any_number_of_images(pattern):
    module = network(pattern)
    model = built(capture_runnable(module, SHAPE, "net"))
    for images in (1, 3):
        x = torch.randn(images, *SHAPE[1:], generator=torch.Generator().manual_seed(images))
        with torch.no_grad():
            assert close(model(x), module(x))


@pytest.mark.representatives(7)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_parameters_learn_as_in_the_network(pattern):
    """The gradient of everything that reaches the input is the network's own, so that of each weight before it is, too."""
    module = network(pattern)
    captured = capture_runnable(module, SHAPE, "net")
    model = built(captured)
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(7))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(mine).square().sum().backward()
    module(theirs).square().sum().backward()
    assert close(mine.grad, theirs.grad)
    learned = sum(p.numel() for p in model.parameters())
    assert learned >= sum(p.numel() for p in module.parameters())
    assert all(p.grad is not None for p in model.parameters())


def test_graph_and_state_come_back_from_text_and_state_dict():
    module = network(*PATTERNS[:3])
    captured = capture_runnable(module, SHAPE, "net")
    again = OpGraph.from_json(captured.graph.to_json())
    assert again == captured.graph
    other, model = Branch(again).eval(), built(captured)
    other.load_state_dict({key.removeprefix("all.on_cpu."): value for key, value in model.state_dict().items()})
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert torch.equal(other(x), model(x))


class Net(nn.Module):
    def __init__(self, function, own=None):
        super().__init__()
        self.function, self.own = function, own

    def forward(self, x):
        return self.function(x) if self.own is None else self.function(self.own, x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Net(lambda x: x + torch.rand_like(x)), "tensors from tensors alone"),
        (Net(lambda x: F.dropout(x)), "drops at random"),
        (Net(lambda x: {"word": "none"}), "nothing that depends on its input"),
        (Net(lambda x: x * torch.rand(3, 1, 1)), "something else"),
        (Net(lambda x: x[x > 0]), "depend"),
        (nn.Identity(), "returns its input"),
    ],
)
def test_network_that_no_graph_computes_is_refused(module, reason):
    with pytest.raises(StretchError, match=reason):
        capture_runnable(module.eval(), (1, 3, 4, 4), "net")


def test_tensor_of_a_shape_alone_is_a_constant():
    captured = capture_runnable(Net(lambda x: torch.cat([x, torch.ones_like(x)], 1)), (1, 3, 4, 4), "net")
    model = built(captured)
    x = torch.randn(2, 3, 4, 4)
    assert np.allclose(model(x).detach(), torch.cat([x, torch.ones_like(x)], 1))
