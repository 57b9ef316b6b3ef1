"""Networks sliced to half of their width, and how they are counted."""

import pytest

torch = pytest.importorskip("torch")

from experiments.width_slicing.slicing import distance, sliced  # noqa: E402
from stretch.capture import capture  # noqa: E402
from tests.stretch.capture.token_patterns import ATTENTIONS, LAST, MLPS, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("patterns", [MLPS, ATTENTIONS[:3], ATTENTIONS[3:], LAST], ids=str)
def test_network_of_half_the_width_is_its_masked_parent_until_a_weight_differs(patterns):
    captured = capture(network(*patterns), SHAPE, "net")
    module, branch, chosen = sliced(captured)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    assert distance(captured, module, branch, chosen, x) <= 1e-4
    assert branch.graph.params < 0.6 * captured.graph.params
    with torch.no_grad():
        conv = next(op.name for op in branch.graph.ops if op.kind == "conv")
        module.get_submodule(conv).weight.flatten()[0].add_(10.0)
    assert distance(captured, module, branch, chosen, x) > 1e-3
