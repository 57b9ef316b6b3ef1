import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.planning.design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.segments import split_segments  # noqa: E402
from stretch.planning.widths import partitions  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.calibrate import _Regression, calibrate  # noqa: E402
from tests.stretch.designs import whole  # noqa: E402

pytestmark = pytest.mark.torch


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


def images(found, count=96, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(32, *found.graph.input.shape[1:], generator=generator) for _ in range(count // 32)]


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet"])
@pytest.mark.parametrize("join", ["project", "sum"])
def test_calibrated_joins_are_closer_to_the_original_on_images_they_have_not_seen(captured, name, join):
    found = captured(name)
    model = build(found, halves(found.graph, join))
    fresh = images(found, 32, seed=9)[0]
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


def test_branches_that_keep_everything_become_the_original(captured):
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
    # The same statistics on both sides: what is compared is the joins.
    errors = calibrate(model, found, images(found))
    assert all(e.after <= e.before + 1e-6 for e in errors)


def test_weights_of_the_branches_are_not_touched(captured):
    found = captured("tiny_resnet")
    model = build(found, halves(found.graph, "project"))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    calibrate(model, found, images(found))
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert all("running_" in k or "num_batches" in k or "join_conv" in k for k in changed)
    assert any("join_conv" in k for k in changed)
    assert all(m.momentum == 0.1 for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))


def test_regression_is_the_least_squares_solution_with_intercept():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 3, 4, 4, generator=generator), torch.randn(5, 2, 4, 4, generator=generator)
    sums = _Regression(3, 2, torch.device("cpu"))
    sums.add(x[:2], y[:2])
    sums.add(x[2:], y[2:])
    weight, bias = sums.solve(1e-12)
    rows = torch.cat([x.movedim(1, -1).reshape(-1, 3), torch.ones(80, 1)], 1).double()
    expected = torch.linalg.lstsq(rows, y.movedim(1, -1).reshape(-1, 2).double()).solution
    torch.testing.assert_close(torch.cat([weight.T, bias[None]]).double(), expected, rtol=1e-4, atol=1e-5)


def test_too_few_or_wrong_images_are_refused(captured):
    found = captured("tiny_resnet")
    model = build(found, halves(found.graph, "sum"))
    with pytest.raises(StretchError, match="3 calibration images are too few"):
        calibrate(model, found, [torch.randn(3, 3, 32, 32)])
    with pytest.raises(StretchError, match="the network reads"):
        calibrate(model, found, [torch.randn(32, 3, 16, 16)])
