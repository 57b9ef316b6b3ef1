"""Networks in bands of rows compute what the original computes."""

import copy

import numpy as np
import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.export.bundle import BundleFacts, export_bundle  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import calibrate  # noqa: E402
from tests.stretch.band_networks import banded, networks  # noqa: E402
from tests.stretch.designs import whole  # noqa: E402

pytestmark = pytest.mark.torch
FACTS = BundleFacts("pixel6", False, "random")


def image(found):
    return torch.randn(found.graph.input.shape, generator=torch.Generator().manual_seed(1))


def same(got, want):
    return np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.slow
@given(data=st.data())
def test_bands_built_and_captured_are_the_scaled_graph_and_the_original(data):
    found = data.draw(networks())
    design = data.draw(banded(found.graph))
    model, x = build(found, design), image(found)
    assert capture(model, found.graph.input.shape, found.graph.name).graph == scaled_graph(found.graph, design)
    with torch.inference_mode():
        assert same(model(x).numpy(), found.module(x).numpy())


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(data=st.data())
def test_bands_exported_and_run_by_the_scheduler_give_the_original(tmp_path_factory, data):
    found = data.draw(networks())
    model, x = build(found, data.draw(banded(found.graph))), image(found)
    folder = tmp_path_factory.mktemp("bands") / "bundle"
    export_bundle(folder, found, model, None, FACTS, "0.1.0", controls=False)
    with torch.inference_mode():
        want = found.module(x).numpy()
    with Session(load_bundle(folder)) as session:
        # torch and ONNX Runtime round alike at most as far as the largest number on the way
        largest = max(float(np.abs(tensor).max()) for tensor in session.tensors(x.numpy()).values())
        for got in (session(x.numpy()), session.submit(x.numpy()).result()):
            assert np.abs(got - want).max() <= 1e-6 * largest


def test_bands_behind_a_wider_trunk_read_all_of_it(captured):
    """A segment that joins by `concat` changes how many channels arrive."""
    found = captured("tiny_mobilenet")
    segments = split_segments(found.graph)
    at = next(i for i, s in enumerate(segments) if s.branchable and i + 1 < len(segments) and segments[i + 1].dense_input)
    before, after = segments[at], segments[at + 1]
    rows = after.graph.by_name[after.end].shape[2]
    bands = tuple(BranchScale(p, after.depth, after.width, rows=r) for p, r in (("cpu", (0, rows // 2)), ("gpu", (rows // 2, rows))))
    two = tuple(BranchScale(p, before.depth, before.width) for p in ("cpu", "gpu"))

    def design(second):
        first = SegmentDesign(before.name, before.start, before.end, two, "concat")
        parts = [first if s is before else second if s is after else whole(s) for s in segments]
        return BranchDesign(found.graph.name, "test", tuple(parts))

    x = image(found)
    with torch.inference_mode():
        got = build(found, design(SegmentDesign(after.name, after.start, after.end, bands, "rows")))(x)
        want = build(found, design(whole(after)))(x)
    assert same(got.numpy(), want.numpy())


def in_two_bands(graph, stretched=()):
    """Every segment that ends in rows in two bands; those of `stretched` in two branches, one of them shallow, and joined by `sum`."""
    parts = []
    for s in split_segments(graph):
        rows = s.graph.by_name[s.end].shape[2] if s.branchable else 1
        if s.name in stretched:
            branches = tuple(BranchScale(p, d, s.width) for p, d in (("cpu", s.depth), ("gpu", s.min_depth)))
            parts.append(SegmentDesign(s.name, s.start, s.end, branches, "sum"))
        elif rows > 1:
            bands = (("cpu", (0, rows // 2)), ("gpu", (rows // 2, rows)))
            parts.append(SegmentDesign(s.name, s.start, s.end, tuple(BranchScale(p, s.depth, s.width, rows=r) for p, r in bands), "rows"))
        else:
            parts.append(whole(s))
    return BranchDesign(graph.name, "test", tuple(parts))


def alike(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.slow
def test_bands_share_their_weights_which_count_once(captured):
    found = captured("tiny_resnet")
    model = build(found, in_two_bands(found.graph))
    assert sum(p.numel() for p in model.parameters()) == found.graph.params
    moved = copy.deepcopy(model).double().float()
    for each in (model, moved):
        upper, lower = (dict(each.branch("s1", p).named_parameters()) for p in ("cpu", "gpu"))
        assert upper.keys() == lower.keys()
        assert all(lower[name] is weight for name, weight in upper.items())
        upper, lower = (dict(each.branch("s1", p).named_buffers()) for p in ("cpu", "gpu"))
        assert all(lower[name] is value for name, value in upper.items())
    fresh = build(found, in_two_bands(found.graph))
    fresh.load_state_dict(model.state_dict())
    assert alike(model, fresh)


@pytest.mark.slow
def test_bands_train_as_the_original_does(captured):
    """Batch norms see whole images, and gradients of all rows come together."""
    found = captured("tiny_resnet")
    original, model = copy.deepcopy(found.module).train(), build(found, in_two_bands(found.graph)).train()
    x, labels = torch.randn(8, *found.graph.input.shape[1:]), torch.arange(8)
    for module in (original, model):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(2):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x), labels).backward()
            optimiser.step()
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(x), original.eval()(x), rtol=1e-4, atol=1e-5)
    assert alike(model.branch("s1", "cpu"), model.branch("s1", "gpu"))


@pytest.mark.slow
def test_calibration_fits_bands_as_one_piece_behind_stretched_segments(captured):
    found = captured("tiny_resnet")
    design = in_two_bands(found.graph, stretched=("s1",))
    model, before = build(found, design), build(found, design)
    batches = [torch.randn(8, *found.graph.input.shape[1:], generator=torch.Generator().manual_seed(i)) for i in range(8)]
    errors = calibrate(model, found, batches)
    assert [error.segment for error in errors] == ["s1"]
    assert alike(model.branch("s2", "cpu"), model.branch("s2", "gpu"))
    x = torch.cat(batches)
    with torch.inference_mode():
        want = found.module(x)
        assert (model(x) - want).square().mean() < (before(x) - want).square().mean()


@pytest.mark.slow
def test_calibration_leaves_bands_of_the_original_alone(captured):
    found = captured("tiny_resnet")
    model = build(found, in_two_bands(found.graph))
    before = copy.deepcopy(model)
    assert calibrate(model, found, [torch.randn(16, *found.graph.input.shape[1:])]) == []
    assert alike(model, before)
