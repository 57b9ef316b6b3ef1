"""Networks in branches of channels compute what the original computes."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import event, given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.capture import capture  # noqa: E402
from stretch.planning.design.branch_design import BranchScale  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import calibrate  # noqa: E402
from tests.stretch.channel_networks import divided, networks, small, small_in_channels, small_segments  # noqa: E402

pytestmark = pytest.mark.torch


def image(found):
    return torch.randn(found.graph.input.shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@given(data=st.data())
def test_channels_built_and_captured_are_the_scaled_graph_and_the_original(data):
    found = data.draw(networks())
    design = data.draw(divided(found.graph))
    for part in design.segments:
        event(part.join)
    model, x = build(found, design), image(found)
    assert capture(model, found.graph.input.shape, found.graph.name).graph == scaled_graph(found.graph, design)
    with torch.inference_mode():
        got, want = model(x).numpy(), found.module(x).numpy()
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def alike(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_weights_of_divided_segments_count_once_and_are_seen_by_every_branch():
    found = small()
    design = small_in_channels(found.graph)
    model = build(found, design)
    assert {part.join for part in design.segments} == {"none", "channels", "partial_sums"}
    assert sum(p.numel() for p in model.parameters()) == found.graph.params
    moved = copy.deepcopy(model).double().float()
    x = image(found)
    with torch.inference_mode():
        before = model(x)
    for each in (model, moved):
        with torch.no_grad():
            for weight in each.parameters():
                weight.mul_(1.1)
            want = x
            for part in design.segments:
                want = each.segment(part.name).owner(want)
            torch.testing.assert_close(each(x), want, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(before, want, rtol=1e-2)


def test_state_dict_of_channels_is_read_back():
    found = small()
    design = small_in_channels(found.graph)
    model, fresh = build(found, design), build(found, design)
    with torch.no_grad():
        for weight in fresh.parameters():
            weight.zero_()
        # as a file gives it, without torch's own notes
        fresh.load_state_dict(dict(model.state_dict()))
        assert alike(model, fresh)
        assert torch.equal(model(image(found)), fresh(image(found)))


def test_gradients_in_evaluation_mode_are_the_originals():
    """Statistics are often frozen when a network is tuned; parts of weights would have no gradients."""
    found = small()
    model, x = build(found, small_in_channels(found.graph)), image(found)
    original = copy.deepcopy(found.module).eval()
    for module in (original, model):
        module(x).square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    mine, theirs = (sum(float(w.grad.double().square().sum()) for w in m.parameters()) for m in (model, original))
    assert mine == pytest.approx(theirs, rel=1e-4)


def test_calibration_leaves_channels_of_the_original_alone():
    found = small()
    model = build(found, small_in_channels(found.graph))
    before = copy.deepcopy(model)
    assert calibrate(model, found, [torch.randn(16, *found.graph.input.shape[1:])]) == []
    assert alike(model, before)


def test_calibration_fits_channels_as_one_piece_behind_stretched_segments():
    found = small()
    design = small_in_channels(found.graph)
    first = design.segments[2]
    cut = next(s for s in small_segments(found.graph) if s.name == first.name)
    branches = tuple(BranchScale(p, cut.depth, cut.width) for p in ("cpu", "gpu"))
    parts = (*design.segments[:2], replace(first, branches=branches, join="sum"), *design.segments[3:])
    design = replace(design, segments=parts)
    model, before = build(found, design), build(found, design)
    for scaled in (model, before):
        with torch.no_grad():
            for weight in scaled.branch(first.name, "gpu").parameters():
                weight.mul_(0.7)
    batches = [torch.randn(8, *found.graph.input.shape[1:], generator=torch.Generator().manual_seed(i)) for i in range(8)]
    assert [error.segment for error in calibrate(model, found, batches)] == [first.name]
    x = torch.cat(batches)
    with torch.inference_mode():
        want = found.module(x)
        assert (model(x) - want).square().mean() < (before(x) - want).square().mean()
