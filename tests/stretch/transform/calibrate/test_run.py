"""Calibration of a whole network, its statistics, and the images held back."""

import copy
import itertools
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors import system
from predictors.errors import StretchError
from stretch.planning.design.branch_design import BranchScale
from stretch.planning.design.scale import design_segments, partitions
from stretch.transform import build
from stretch.transform.build import fold_norms, inherited_channels
from stretch.transform.calibrate import calibrate, undivided_design
from stretch.transform.calibrate.run import NetworkFit
from stretch.transform.calibrate.segment import ChoiceSettings, FitTask
from stretch.transform.calibrate.split import Split, divide
from stretch.transform.calibrate.statistics import Moments, rebase_statistics, renew_statistics
from tests.stretch.designs import branchable, cpu_and, divided, identity_design, pair, part_of, two_whole


@pytest.fixture(scope="module", autouse=True)
def few_rows():
    """Lower the number of rows, as tiny networks need fewer than real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stretch.transform.calibrate.layers.ROWS", 2**12)
        yield


def halves(graph, join):
    """Two branches in each of the first two stages: one of half the depth, one of three quarters of the width."""

    def part(s):
        widths = (s.width, s.width * 3 // 4)
        shares = partitions(s.width, widths, 4) if join == "project" else (0, 0)
        shallow = BranchScale("gpu", max(s.min_depth, s.depth // 2), widths[0], "none", shares[0], 4)
        return part_of(s, join, [shallow, BranchScale("cpu", s.depth, widths[1], "project" if s.passes_input else "none", shares[1], 4)])

    return divided(graph, *map(part, branchable(graph)[:2]))


def images(result, count=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(16, *result.graph.input.shape[1:], generator=generator) for _ in range(count // 16)]


def error_on_unseen_images(model, result):
    """Return the mean squared error against the original on images outside of the calibration."""
    fresh = images(result, seed=9)[0]
    with torch.inference_mode():
        return float((model(fresh) - result.module(fresh)).square().mean())


@pytest.mark.parametrize("name", ["tiny_resnet", pytest.param("tiny_mobilenet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("join", ["project", pytest.param("sum", marks=pytest.mark.slow)])
def test_calibrated_joins_are_closer_to_the_original_on_unseen_images(captured, name, join):
    result = captured(name)
    model = build(result, halves(result.graph, join))
    before = error_on_unseen_images(model, result)
    errors = calibrate(model, result, images(result))
    assert error_on_unseen_images(model, result) < before
    assert all(e.after < e.before for e in errors)
    assert [e.segment for e in errors] == [s.name for s in model.design.segments if not s.whole]
    assert not model.training


@pytest.mark.parametrize(
    ("name", "design", "slack"),
    [("tiny_mobilenet", identity_design, 0.0), ("tiny_resnet", lambda graph: two_whole(graph, "project"), 1e-4)],
    ids=["identity", "two whole branches"],
)
def test_branches_that_keep_everything_still_equal_the_original(captured, name, design, slack):
    result = captured(name)
    model, x = build(result, design(result.graph)), images(result)
    assert all(max(e.before, e.after) <= 1e-9 for e in calibrate(model, result, x))
    with torch.inference_mode():
        torch.testing.assert_close(model(x[0]), result.module(x[0]), rtol=slack, atol=slack / 10)


def test_unscaled_branch_passes_on_the_original_whatever_the_other_branch(captured):
    result = captured("tiny_resnet")

    def part(s):
        scaled = BranchScale("gpu", s.min_depth, s.width // 2, "project" if s.passes_input else "none")
        return part_of(s, "sum", [BranchScale("cpu", s.depth, s.width), scaled])

    model = build(result, divided(result.graph, *map(part, branchable(result.graph)[:2])))
    calibrate(model, result, images(result))
    assert error_on_unseen_images(model, result) < 1e-10


def test_calibrating_only_joins_leaves_convolutions_unchanged(captured):
    result = captured("tiny_resnet")
    model = build(result, halves(result.graph, "project"))
    convs = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Conv2d)}
    before = {name: m.weight.clone() for name, m in convs.items()}
    calibrate(model, result, images(result), layers=False)
    changed = {name for name, m in convs.items() if not torch.equal(m.weight, before[name])}
    assert changed
    assert all(name.endswith("join_conv") for name in changed)


@torch.no_grad()
def test_network_without_a_block_keeps_the_better_of_a_local_and_a_full_fit(captured):
    result = captured("resnet20_cifar10")
    stage = branchable(result.graph)[1]
    scale = BranchScale("cpu", stage.depth - 1, stage.width, dropped=(1,))
    design = divided(result.graph, part_of(stage, "none", [scale]))
    original = build(result, undivided_design(result, design))
    fold_norms(original)
    arriving, split = divide(images(result), 4 * max(prod(op.shape) for op in result.graph.ops))
    errors, states = [], []
    for near_block in (True, False):
        model = build(result, design).eval()
        built = {name: value.clone() for name, value in model.state_dict().items()}
        fit = NetworkFit(model, result, original, arriving, split, 1e-4, layers=True, choices=ChoiceSettings())
        assert fit.lacks_blocks_alone
        errors.append(fit.fit_segments(near_block)[1])
        states.append(model.state_dict())
        changed = {name for name, value in states[-1].items() if value.dim() == 4 and not torch.equal(value, built[name])}
        behind = {f"{stage.name}.on_cpu.{op}.weight" for op in stage.blocks[2].ops if result.graph.by_name[op].kind == "conv"}
        assert changed >= behind
        assert all(name.startswith(f"{stage.name}.") for name in changed) == near_block
    for choices, expected in ((ChoiceSettings(), states[errors.index(min(errors))]), (ChoiceSettings(extent=False), states[0])):
        kept = build(result, design)
        calibrate(kept, result, images(result), choices=choices)
        assert all(torch.equal(value, expected[name]) for name, value in kept.state_dict().items())


@pytest.mark.slow
def test_concatenated_backbones_are_calibrated_and_have_an_error(captured):
    result = captured("tiny_resnet")
    first, *others = branchable(result.graph)
    parts = [pair(first, "project", (first.depth, first.depth))]
    parts += [part_of(s, "concat", (BranchScale(p, s.depth, s.width // 2, align=4) for p in ("cpu", "gpu"))) for s in others]
    model = build(result, divided(result.graph, *parts))
    before = error_on_unseen_images(model, result)
    calibrate(model, result, images(result))
    assert error_on_unseen_images(model, result) < 0.5 * before


@pytest.mark.slow
def test_images_that_exceed_memory_are_refused_with_a_limit_and_synthetic_ones_left_out(captured, monkeypatch):
    result = captured("tiny_resnet")
    model = build(result, halves(result.graph, "sum"))
    one = torch.zeros(1, *result.graph.input.shape[1:])
    with pytest.raises(StretchError, match="GiB") as caught:
        calibrate(model, result, [one.expand(10**9, -1, -1, -1)])
    assert "at most" in str(caught.value.hint)
    monkeypatch.setattr(system, "memory_bytes", lambda: 80 * 6 * 4 * max(prod(op.shape) for op in result.graph.ops))
    some = torch.cat(images(result))
    few, many = (calibrate(copy.deepcopy(model), result, [some[:32]], synthetic=[some[:count].flip(3)]) for count in (8, 32))
    assert few == many


@pytest.mark.parametrize(("shape", "error"), [((3, 3, 32, 32), "3 calibration images are too few"), ((32, 3, 16, 16), "the network reads")])
def test_too_few_or_wrong_images_are_refused(captured, shape, error):
    result = captured("tiny_resnet")
    with pytest.raises(StretchError, match=error):
        calibrate(build(result, halves(result.graph, "sum")), result, [torch.randn(shape)])


@pytest.fixture(scope="module")
def job(captured):
    """A fit of the first branched segment on three batches; the last is held back and has twice the deviation."""
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, "sum")
    number, part = next((i, s) for i, s in enumerate(design.segments) if not s.whole)
    original = design_segments(result.graph, design)[number]
    shape = result.graph.by_name[part.start].shape[1:]
    generator = torch.Generator().manual_seed(0)
    x = [size * torch.randn(16, *shape, generator=generator) for size in (1, 1, 2)]

    def make():
        model, whole = build(result, design), build(result, undivided_design(result, design)).branch(part.name, "cpu")
        segment = model.get_submodule(part.name)
        return FitTask(result, part, original, inherited_channels(result, design)[number], segment, whole, x, x, Split(2, 32), 1e-4)

    return make


@pytest.mark.parametrize("choices", [ChoiceSettings(), ChoiceSettings(channels=False, blocks=False)])
def test_error_is_measured_on_the_batch_held_back(job, choices):
    with torch.no_grad():
        _, after, outputs, targets = job().calibrate(True, choices)
    wrong = (outputs[2] - targets[2]).square().sum() / targets[2].square().sum()
    assert after == pytest.approx(float(wrong), rel=1e-3)


@given(sizes=st.lists(st.integers(4, 60), min_size=1, max_size=9), largest=st.sampled_from((1, 2**22, 2**30)))
def test_every_image_is_fitted_or_held_back_for_any_batches(sizes, largest):
    count = sum(sizes)
    images = torch.arange(count).float().reshape(-1, 1, 1, 1)
    batches, split = divide(images.split(sizes), largest)
    assert sorted(torch.cat(batches).flatten().tolist()) == list(range(count))
    assert split.images == sum(len(batch) for batch in batches[: split.fitted])
    back = sorted(torch.cat(batches[split.fitted :]).flatten().tolist())
    assert len(back) == count - split.images == max(count // 5, min(count // 4, 16))
    # Spread over all images: no part of a sorted folder is missing from the choice or from the fits.
    assert all(2 <= b - a <= 6 for a, b in itertools.pairwise(back))
    together, again = divide([images], largest)
    assert again == split
    assert all(torch.equal(a, b) for a, b in zip(batches, together, strict=True))
    with_extra, extra_split = divide([images], largest, [-1 - images])
    assert extra_split.images == split.images + count
    assert sorted(torch.cat(with_extra).flatten().tolist()) == list(range(-count, count))
    assert sorted(torch.cat(with_extra[extra_split.fitted :]).flatten().tolist()) == back
    assert all(len(batch) <= max(1, 2**25 // largest) for batch in [*batches, *with_extra])


def images_of_shape(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5)).eval()
    with torch.no_grad():
        for norm in (net[1], net[5]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 3)
            norm.weight.normal_()
            norm.bias.normal_()
    return net


def test_renewed_statistics_are_the_mean_over_batches_and_momentum_stays():
    net, x = network(), list(images_of_shape(24, 3, 8, 8).split(8))
    weights = net[1].weight.clone()
    with torch.no_grad():
        renew_statistics(net, x)
        first = torch.stack([net[0](batch).mean((0, 2, 3)) for batch in x]).mean(0)
    torch.testing.assert_close(net[1].running_mean, first, rtol=1e-4, atol=1e-5)
    assert torch.equal(net[1].weight, weights)
    assert net[1].momentum == net[5].momentum == 0.1
    assert not any(m.training for m in net.modules())


def test_rebased_statistics_are_those_of_the_data_and_the_function_stays():
    net, x = network(), list(images_of_shape(24, 3, 8, 8).split(8))
    with torch.no_grad():
        want = net(torch.cat(x))
        outputs = rebase_statistics(net, x)
        torch.testing.assert_close(torch.cat(outputs), want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(net(torch.cat(x)), want, rtol=1e-4, atol=1e-4)
        seen = net[0](torch.cat(x))
        before_last = net[:5](torch.cat(x))
    torch.testing.assert_close(net[1].running_mean, seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net[1].running_var, seen.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net[5].running_mean, before_last.mean(0), rtol=1e-4, atol=1e-4)


def test_small_variance_around_a_large_mean_is_not_lost():
    x = 1000 + 0.01 * torch.randn(64, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    moments = Moments()
    for batch in x.split(20):
        moments.add(batch)
    mean, variance = moments.take()
    torch.testing.assert_close(mean, x.double().mean((0, 2, 3)))
    torch.testing.assert_close(variance, x.double().var((0, 2, 3), correction=0), rtol=1e-3, atol=0)
