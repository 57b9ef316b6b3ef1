import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.widths import partitions  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import calibrate, whole_design  # noqa: E402
from tests.stretch.designs import identity_design, random_designs, whole  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def few_rows():
    """Tiny networks need fewer rows than real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stretch.transform.calibrate.pixels.ROWS", 2**12)
        yield


def halves(graph, join):
    """Two branches in every stage: one half as deep, one of three quarters the width."""
    parts = []
    for s in split_segments(graph):
        if not s.branchable:
            parts.append(whole(s))
            continue
        widths = (s.width, s.width * 3 // 4)
        shares = partitions(s.width, widths, 4) if join == "project" else (0, 0)
        entry = "project" if s.passes_input else "none"
        branches = (
            BranchScale("gpu", max(s.min_depth, s.depth // 2), widths[0], "none", shares[0], 4),
            BranchScale("cpu", s.depth, widths[1], entry, shares[1], 4),
        )
        parts.append(SegmentDesign(s.name, s.start, s.end, branches, join))
    return BranchDesign(graph.name, "test", tuple(parts))


def images(found, count=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(16, *found.graph.input.shape[1:], generator=generator) for _ in range(count // 16)]


@pytest.mark.parametrize("name", ["tiny_resnet", pytest.param("tiny_mobilenet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("join", ["project", "sum"])
def test_calibrated_joins_are_closer_to_the_original_on_images_they_have_not_seen(captured, name, join):
    found = captured(name)
    model = build(found, halves(found.graph, join))
    fresh = images(found, seed=9)[0]
    with torch.inference_mode():
        want = found.module(fresh)
        before = (model(fresh) - want).square().mean()
    errors = calibrate(model, found, images(found))
    with torch.inference_mode():
        after = (model(fresh) - want).square().mean()
    assert after < before
    assert all(e.after < e.before for e in errors)
    assert [e.segment for e in errors] == [s.name for s in model.design.segments if not s.whole]
    assert not model.training


def test_identity_design_stays_the_original_bit_for_bit(captured):
    found = captured("tiny_mobilenet")
    model = build(found, identity_design(found.graph))
    x = images(found)
    assert calibrate(model, found, x) == []
    with torch.inference_mode():
        assert torch.equal(model(x[0]), found.module(x[0]))


def test_branches_that_keep_everything_stay_the_original(captured):
    found = captured("tiny_resnet")
    parts = []
    for s in split_segments(found.graph):
        if not s.branchable:
            parts.append(whole(s))
            continue
        shares = partitions(s.width, [s.width, s.width], 4)
        branches = tuple(BranchScale(p, s.depth, s.width, "none", n) for p, n in zip(("cpu", "gpu"), shares, strict=True))
        parts.append(SegmentDesign(s.name, s.start, s.end, branches, "project"))
    model = build(found, BranchDesign(found.graph.name, "test", tuple(parts)))
    x = images(found)
    assert all(max(e.before, e.after) <= 1e-9 for e in calibrate(model, found, x))
    with torch.inference_mode():
        torch.testing.assert_close(model(x[0]), found.module(x[0]), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def measured(found, design, model, x):
    """Error of each branched segment as it was built and in `model`, looked at from outside; what arrives is the model's own."""
    built, original = build(found, design), build(found, whole_design(found, design))
    there, errors = x, {}
    for part in design.segments:
        want = original.get_submodule(part.name)(there)
        inherited, got = (m.get_submodule(part.name)(x) for m in (built, model))
        # A `concat` join has another trunk than the original: there is nothing to compare it with directly.
        if len(part.branches) > 1 and part.join != "concat":
            errors[part.name] = tuple(float((y - want).square().sum() / want.square().sum()) for y in (inherited, got))
        x, there = got, want
    return errors


def _never_worse(found, design):
    x = images(found, 64)
    model = build(found, design)
    errors = calibrate(model, found, x)
    assert [e.segment for e in errors] == [s.name for s in design.segments if not s.whole]
    assert all(e.after < float("inf") for e in errors)
    # every fourth image is held back for the choice
    for name, (before, after) in measured(found, design, model, torch.cat(x)[::4]).items():
        stated = next(e for e in errors if e.segment == name)
        assert (stated.before, stated.after) == pytest.approx((before, after), rel=1e-2, abs=1e-8)
        assert after <= before * 1.01 + 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_resnet"])
@settings(max_examples=examples(2))
@given(data=st.data())
def test_no_segment_is_further_from_the_original_than_it_was_built(captured, name, data):
    found = captured(name)
    _never_worse(found, data.draw(random_designs(found.graph)))


@pytest.mark.slow
def test_errors_are_those_of_the_images_that_were_held_back(captured):
    """Measured once more from outside, at the first branched segment: what arrives there is the original's."""
    found = captured("tiny_resnet")
    design = halves(found.graph, "sum")
    together = torch.cat(images(found, 64))
    model, original = build(found, design), build(found, whole_design(found, design))
    error = calibrate(model, found, [together])[0]
    x = together[::4]
    with torch.inference_mode():
        for part in design.segments:
            want = original.get_submodule(part.name)(x)
            if part.name == error.segment:
                break
            x = want
        got, inherited = (m.get_submodule(error.segment)(x) for m in (model, build(found, design)))
    size = want.square().sum()
    assert error.after == pytest.approx(float((got - want).square().sum() / size), rel=1e-3)
    assert error.before == pytest.approx(float((inherited - want).square().sum() / size), rel=1e-3)
    assert error.after < error.before


def test_joins_alone_leave_convolutions_as_they_were(captured):
    found = captured("tiny_resnet")
    model = build(found, halves(found.graph, "project"))
    convs = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Conv2d)}
    before = {name: m.weight.clone() for name, m in convs.items()}
    calibrate(model, found, images(found), layers=False)
    changed = {name for name, m in convs.items() if not torch.equal(m.weight, before[name])}
    assert changed
    assert all(name.endswith("join_conv") for name in changed)


def test_concatenated_trunks_are_calibrated_and_have_an_error(captured):
    found = captured("tiny_resnet")
    parts = []
    for s in split_segments(found.graph):
        if not s.branchable:
            parts.append(whole(s))
            continue
        widths = (s.width // 2, s.width // 2) if s.name != "s1" else (s.width, s.width)
        join = "project" if s.name == "s1" else "concat"
        shares = (s.width // 2,) * 2 if join == "project" else (0, 0)
        branches = tuple(BranchScale(p, s.depth, w, "none", n, 4) for p, w, n in zip(("cpu", "gpu"), widths, shares, strict=True))
        parts.append(SegmentDesign(s.name, s.start, s.end, branches, join))
    model = build(found, BranchDesign(found.graph.name, "test", tuple(parts)))
    fresh = images(found, seed=9)[0]
    with torch.inference_mode():
        want = found.module(fresh)
        before = (model(fresh) - want).square().mean()
    calibrate(model, found, images(found))
    with torch.inference_mode():
        assert (model(fresh) - want).square().mean() < 0.5 * before


def test_more_images_than_memory_are_refused_with_a_number_that_fits(captured):
    found = captured("tiny_resnet")
    model = build(found, halves(found.graph, "sum"))
    one = torch.zeros(1, *found.graph.input.shape[1:])
    with pytest.raises(StretchError, match="GiB") as caught:
        calibrate(model, found, [one.expand(10**9, -1, -1, -1)])
    assert "at most" in str(caught.value.hint)


def test_too_few_or_wrong_images_are_refused(captured):
    found = captured("tiny_resnet")
    model = build(found, halves(found.graph, "sum"))
    with pytest.raises(StretchError, match="3 calibration images are too few"):
        calibrate(model, found, [torch.randn(3, 3, 32, 32)])
    with pytest.raises(StretchError, match="the network reads"):
        calibrate(model, found, [torch.randn(32, 3, 16, 16)])
