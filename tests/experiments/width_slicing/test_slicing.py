import pytest

torch = pytest.importorskip("torch")
from experiments.width_slicing.slicing import distance, kept_units, sliced  # noqa: E402 - torch may be missing
from stretch.capture import capture  # noqa: E402
from stretch.planning.network.channels import channel_groups  # noqa: E402
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


def test_input_and_classes_keep_their_channels():
    graph = capture(network(MLPS[0]), SHAPE, "net").graph
    channels = channel_groups(graph)
    kept = kept_units(graph, channels)
    assert channels.channels(graph.input.name, kept) == 3
    assert channels.channels(graph.output, kept) == 5
    assert channels.channels("1_wide", kept) == 16
