import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")
import hypothesis.strategies as st  # noqa: E402 - torch may be missing
from hypothesis import given, settings  # noqa: E402

from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.planning.network.channels import channel_groups  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from tests.stretch.capture.test_runnable import built, close  # noqa: E402
from tests.stretch.capture.token_patterns import ATTENTIONS, LAST, MLPS, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)
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


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 2))
def test_patterns_behind_each_other_are_computed_whatever_the_batch_they_were_captured_with(patterns, batch, times):
    module = network(*patterns)
    model = built(capture_runnable(module, (batch, *SHAPE[1:]), "net"))
    x = torch.randn(batch * times, *SHAPE[1:], generator=torch.Generator().manual_seed(batch))
    with torch.no_grad():
        assert close(model(x), module(x))


@pytest.mark.slow
def test_blocks_of_tokens_are_units_of_a_stage():
    graph = capture_runnable(network(*[MLPS[0], ATTENTIONS[0]] * 3), SHAPE, "net").graph
    stages = [segment for segment in split_segments(graph) if segment.branchable]
    assert sum(stage.depth for stage in stages) >= 6
    assert any(stage.depth > stage.min_depth for stage in stages)
    assert not any(stage.fixed_width for stage in stages)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_parameters_learn_as_in_the_network(pattern):
    module = network(pattern)
    model = built(capture_runnable(module, SHAPE, "net"))
    x = torch.randn(2, *SHAPE[1:], generator=torch.Generator().manual_seed(7))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(mine).square().sum().backward()
    module(theirs).square().sum().backward()
    assert close(mine.grad, theirs.grad)
    assert all(p.grad is not None for p in model.parameters())
