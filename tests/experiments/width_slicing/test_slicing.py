"""Networks sliced to half of their width, and how they are counted."""

import pytest

from experiments.width_slicing.run import summary

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


BOTH = {
    "network": "densenet121",
    "ours": {"seconds": 1.0, "kept": 0.3, "distance": 1e-7},
    "theirs": {"seconds": 2.0, "kept": 0.3},
    "load": 1.0,
}


OURS = {"network": "timm:a", "ours": {"seconds": 1.0, "kept": 0.3, "distance": 1e-7}, "theirs": {"failed": "RuntimeError: x"}, "load": 1.0}


NONE = {"network": "timm:b", "failed": "more than 900 s", "load": 1.0}


def test_counts_are_of_networks_that_each_of_both_slices():
    found = {row["set"]: row for row in summary([BOTH, OURS, NONE])}
    assert found["timm"] == {
        "set": "timm", "networks": 2, "ours": 1, "Torch-Pruning": 0, "only ours": 1, "only Torch-Pruning": 0, "ours faster": 0, "of": 0
    }  # fmt: skip
    assert (found["DenseNet"]["ours faster"], found["DenseNet"]["of"], found["torchvision"]["networks"]) == (1, 1, 1)
