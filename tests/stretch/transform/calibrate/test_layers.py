"""The choice of a branch's channels and blocks, and layers and joins fitted to the original by least squares."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from predictors.joins import join_of
from stretch.network.capture import capture
from stretch.network.models.tiny import BasicBlock, SmallResNet
from stretch.operators.products import PaddedConv2d
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import design_segments, drop_units
from stretch.planning.network.segments import cut_segment, split_segments
from stretch.transform import build
from stretch.transform.build import inherited_channels
from stretch.transform.calibrate import ChoiceSettings, calibrate, undivided_design
from stretch.transform.calibrate.blocks import ReducedSegment, choose_blocks
from stretch.transform.calibrate.layers import BranchFit, Products, Regression, collect_targets, patches, rows_of
from stretch.transform.calibrate.segment import ChannelChoice, Elimination, find_covariances, fit_join, keep_units
from stretch.transform.calibrate.statistics import backbone_of
from tests.effort import examples
from tests.stretch.designs import cpu_and, identity_design, part_of, random_designs

#: Hidden channels that are copies of other channels, and the copied channels.
COPIES, COPIED = (8, 9, 10, 11), (0, 1, 2, 3)


class Expanded(nn.Module):
    """An inverted bottleneck with copied hidden channels; copies and originals have the largest weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm = nn.Conv2d(6, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.each, self.down = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 6, 1)
        with torch.no_grad():
            self.up.weight[list(COPIED)] *= 10
            self.norm.running_var[list(COPIED)] *= 100
            for tensor in (self.up.weight, self.norm.running_var, self.each.weight, self.each.bias):
                tensor[list(COPIES)] = tensor[list(COPIED)]

    def forward(self, x):
        return self.down(torch.relu(self.each(torch.relu(self.norm(self.up(x))))))


@pytest.fixture(scope="module", params=["sum", "project"])
def halves(request):
    """Two branches of half the width."""
    captured = capture(Expanded().eval(), (1, 6, 8, 8), "net")
    segment = cut_segment(captured.graph, "s1", captured.graph.input.name, captured.graph.output)
    share = 3 if join_of(request.param).divides else 0
    branches = tuple(BranchScale(name, segment.depth, 3, align=1, partition=share) for name in ("cpu", "gpu"))
    part = SegmentDesign("s1", segment.start, segment.end, branches, request.param)
    return captured, segment, part, BranchDesign("net", "test", (part,))


def images(count=64, seed=1):
    return torch.randn(count, 6, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def known(halves):
    result, segment, _, design = halves
    with torch.no_grad():
        return find_covariances(build(result, undivided_design(result, design)).branch("s1", "cpu"), segment.graph, images().split(20), 64)


def chosen_by(halves, known):
    result, _, part, design = halves
    choice, family = ChannelChoice(result, part, known, 1e-4), []
    for index, built in enumerate(inherited_channels(result, design)[0]):
        family.append(choice.choose(index, built, {}, family))
    return family


def hidden(segment, inherited):
    name = next(op.name for op in segment.graph.ops if op.kind == "conv")
    return set(inherited.original_channels(name).tolist())


def test_choice_keeps_one_of_a_channel_and_its_copy_and_backbones_cover_the_output(halves, known):
    result, segment, part, design = halves
    pairs, family = [set(pair) for pair in zip(COPIED, COPIES, strict=True)], chosen_by(halves, known)
    for built, inherited in zip(inherited_channels(result, design)[0], family, strict=True):
        assert all(pair <= hidden(segment, built) for pair in pairs)
        assert not any(pair <= hidden(segment, inherited) for pair in pairs)
        assert len(hidden(segment, inherited)) == 8
    # a sum needs each channel from one branch, a projection needs a separate part from each branch
    first, second = (set(inherited.backbone.tolist()) for inherited in family)
    assert len(first) == len(second) == 3
    assert first | second == set(range(6)) if part.join == "sum" else (first, second) == ({0, 1, 2}, {3, 4, 5})


def test_calibration_is_closer_with_chosen_channels_than_with_the_largest_norms(halves):
    result, _, _, design = halves
    (by_norm,) = calibrate(build(result, design), result, [images()], choices=ChoiceSettings(channels=False))
    (chosen,) = calibrate(build(result, design), result, [images()])
    assert chosen.before == by_norm.before
    assert chosen.after < 0.9 * by_norm.after


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["tiny_regnet", "tiny_efficientnet"])
@settings(max_examples=examples(4))
@given(data=st.data())
def test_chosen_channels_are_consistent_for_any_design(captured, name, data):
    """Each group has the number of distinct units that the design states, and all weights have the branch's shapes."""
    result = captured(name)
    x = torch.randn(8, *result.graph.input.shape[1:], generator=torch.Generator().manual_seed(0))
    design = data.draw(random_designs(result.graph))
    original = build(result, undivided_design(result, design))
    value = x
    rows = zip(design.segments, design_segments(result.graph, design), inherited_channels(result, design), strict=True)
    for part, segment, family in rows:
        module = original.branch(part.name, "cpu")
        with torch.no_grad():
            choice = ChannelChoice(result, part, find_covariances(module, segment.graph, [value], 8), 1e-4)
            value = module(value)
        for index, built in enumerate(family):
            inherited = choice.choose(index, built, {}, family[:index])
            for group, units in inherited.chosen.items():
                assert len(units) == len(built.chosen[group])
                if len(units) < built.branch.channels.units[group]:
                    assert units.tolist() == sorted(set(units.tolist()))
            actual, expected = (
                {(key, k): v.shape for key, current in each.weights(result).items() for k, v in current.items()}
                for each in (inherited, built)
            )
            assert actual == expected


#: Number of blocks of the second stage.
BLOCKS = 5


def network(scales):
    """Make a network; `scales` are the factors of the last batch norm of each block in the second stage."""
    torch.manual_seed(0)
    net = SmallResNet(BasicBlock, (8, 16, 16), BLOCKS).eval()
    captured = capture(net, (1, 3, 32, 32), "net")
    segment = next(s for s in split_segments(captured.graph) if s.name == "s2")
    with torch.no_grad():
        for block, scale in zip(segment.blocks, scales, strict=True):
            last = [name for name in block.ops if segment.graph.by_name[name].kind == "batch_norm"][-1]
            captured.weights[last]["weight"].mul_(scale)
    return captured, segment


def original_branch(result, segment):
    return build(result, identity_design(result.graph)).branch(segment.name, "cpu")


def arriving(segment):
    return torch.randn(20, *segment.graph.input.shape[1:], generator=torch.Generator().manual_seed(1))


def chosen(result, segment, depths, join):
    partition = segment.width // 2 if join_of(join).divides else 0
    rows = zip(("cpu", "gpu")[: len(depths)], depths, strict=True)
    design = part_of(segment, join, (BranchScale(p, depth, segment.width, partition=partition) for p, depth in rows))
    sources = [drop_units(segment, depth) for depth in depths]
    with torch.no_grad():
        return choose_blocks(design, segment, sources, original_branch(result, segment), arriving(segment).split(7), 1e-4)


def reproduced(segment, matches, depth):
    """Return the numbers of the blocks that a branch reproduces."""
    current = [i for i, block in enumerate(segment.blocks) if block.ops[0] in drop_units(segment, depth).by_name]
    number_of = {block.ops[0]: i for i, block in enumerate(segment.blocks)}
    return [number_of[matches.get(segment.blocks[i].ops[0], segment.blocks[i].ops[0])] for i in current]


def test_blocks_that_add_little_are_left_out_and_the_entry_block_stays():
    result, segment = network([1e-3, 1, 1e-3, 1e-3, 1])
    assert not segment.blocks[0].removable
    (matches,) = chosen(result, segment, [3], "none")
    assert reproduced(segment, matches, 3) == [0, 1, 4]


@pytest.mark.parametrize("join", ["sum", "project"])
def test_summed_branches_keep_different_blocks(join):
    """Each may keep one more block; branches that are summed keep different blocks, the two with the largest effect."""
    result, segment = network([1, 1e-3, 2, 1e-3, 1.5])
    first, second = (reproduced(segment, m, 2) for m in chosen(result, segment, [2, 2], join))
    assert first[0] == second[0] == 0
    assert {first[1], second[1]} <= {2, 4}
    if join == "sum":
        assert first != second


@pytest.mark.representatives(3)
@pytest.mark.parametrize("gone", [[], [1], [4], [4, 1, 2], [3, 2, 1, 4], [1, 2, 3, 4]])
def test_output_without_blocks_equals_a_network_built_without_them(gone):
    result, segment = network([1] * BLOCKS)
    module, x = original_branch(result, segment), arriving(segment)
    with torch.no_grad():
        reduced = ReducedSegment.of(segment, module, x.split(7))
        for number in gone:
            reduced = reduced.without(number)
        got = torch.cat(list(reduced.outputs))
        value = x
        for i, block in enumerate(segment.blocks):
            if i in gone:
                continue
            values = {block.start if i == 0 else "in": value}
            for name, reads, _ in module.steps:
                if name in block.ops:
                    values[name] = module.get_submodule(name)(*(values.get(r, value) for r in reads))
            value = values[block.ops[-1]]
    torch.testing.assert_close(got, value)


def rows(inputs, seed, count=200):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(inputs, inputs, generator=generator, dtype=torch.float64)
    x = torch.randn(count, inputs, generator=generator, dtype=torch.float64) @ mixing
    return x - x.mean(0)


def covariance(x):
    return x.T @ x / len(x)


def least_squares_error(x, y, kept):
    """Return the squared error of least squares on the kept inputs, in the mean of the rows."""
    solution = torch.linalg.lstsq(x[:, kept], y).solution
    return float((x[:, kept] @ solution - y).square().sum() / len(x))


@settings(max_examples=examples(15))
@given(units=st.integers(2, 5), per=st.integers(1, 3), outputs=st.integers(1, 4), seed=st.integers(0, 999))
def test_cost_of_a_unit_is_the_error_that_its_removal_adds_to_least_squares(units, per, outputs, seed):
    x = rows(units * per, seed)
    weight = torch.randn(outputs, units * per, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    y = x @ weight.T
    layer = Elimination(covariance(x), weight, 1e-12)
    places = torch.arange(units * per).reshape(units, per)
    alive = list(range(units))
    while len(alive) > 1:
        costs = layer.costs(places[alive])
        kept = [places[[other for other in alive if other != one]].flatten() for one in alive]
        expected = [least_squares_error(x, y, others) for others in kept]
        assert float(costs.min()) >= -1e-9
        # each cost is the error that the removal adds
        so_far = least_squares_error(x, y, places[alive].flatten())
        size = float(y.square().sum() / len(x))
        assert (costs * size).tolist() == pytest.approx([item - so_far for item in expected], rel=1e-3, abs=1e-6 * size)
        gone = alive.pop(int(costs.argmin()))
        layer.remove(places[gone])


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 999))
def test_choice_for_two_readers_is_among_the_better_half_of_all_subsets(seed):
    x = rows(6, seed)
    weights = [torch.randn(3, 6, generator=torch.Generator().manual_seed(seed + i), dtype=torch.float64) for i in range(2)]
    readers = [(Elimination(covariance(x), weight, 1e-9), torch.arange(6)[:, None]) for weight in weights]
    kept = keep_units(6, 3, readers)

    def cost(some):
        return sum(least_squares_error(x, x @ w.T, list(some)) / float((x @ w.T).square().sum() / len(x)) for w in weights)

    every = sorted(cost(some) for some in combinations(range(6), 3))
    # a greedy choice may miss the best subset, but is in the better half
    assert cost(kept.tolist()) <= every[len(every) // 2] + 1e-9


class Residual(nn.Module):
    def __init__(self, groups=1):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=groups)

    def forward(self, x):
        x = self.norm(self.first(x))
        return x + self.second(torch.relu(x))


def fitted(module, arriving, original, spoil=None):
    """Fit the module as one segment on `arriving` to its results on `original`; return branch, original and output."""
    captured = capture(module.eval(), tuple(original[0].shape), "residual")
    last = captured.graph.output
    segment = cut_segment(captured.graph, "s1", captured.graph.input.name, last)
    scale = (BranchScale("cpu", segment.depth, segment.width),)
    design = BranchDesign("residual", "test", (SegmentDesign("s1", captured.graph.input.name, last, scale),))
    model = build(captured, design)
    branch, whole = model.branch("s1", "cpu"), build(captured, undivided_design(captured, design)).branch("s1", "cpu")
    with torch.no_grad():
        if spoil:
            spoil(branch)
        fit = BranchFit(inherited_channels(captured, design)[0][0], branch, {}, sum(len(x) for x in arriving))
        _, answer = collect_targets(whole, original, len(original), fit.layer_targets)
        outputs = fit.run(arriving, len(arriving), answer, 1e-9)
        return branch, whole, torch.cat(outputs)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_spoilt_weights_are_recovered(groups):
    """With the input of the original, dense, grouped and depthwise layers can be exact."""
    torch.manual_seed(0)
    x = [numbers(16, 3, 8, 8), numbers(9, 3, 8, 8, seed=1)]

    def spoil(branch):
        for name, parameter in branch.named_parameters():
            if "norm" not in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))

    _, whole, outputs = fitted(Residual(groups), x, x, spoil)
    with torch.inference_mode():
        want = whole(torch.cat(x))
    assert float((outputs - want).square().mean() / want.square().mean()) < 1e-4


def test_last_layer_of_a_block_is_fitted_to_the_rest_after_the_skip():
    torch.manual_seed(1)
    original = numbers(12, 3, 6, 6)
    arriving = original + 0.5 * numbers(12, 3, 6, 6, seed=5)
    branch, whole, outputs = fitted(Residual(), [arriving], [original])
    with torch.inference_mode():
        skip = branch.norm(branch.first(arriving))
        rows = nn.functional.unfold(torch.relu(skip), 3, padding=1).mT.reshape(-1, 72)
        rows = torch.cat([rows, torch.ones(len(rows), 1)], 1).double()
        left = (whole(original) - skip).movedim(1, -1).reshape(-1, 8).double()
        expected = rows @ torch.linalg.lstsq(rows, left).solution
        got = (outputs - skip).movedim(1, -1).reshape(-1, 8).double()
    # The part of the penalty that grows with inputs per row keeps the fit slightly off the optimum.
    optimum, reached = (expected - left).square().mean(), (got - left).square().mean()
    assert optimum <= reached < 1.01 * optimum


def test_layer_with_more_inputs_than_rows_stays_unchanged():
    torch.manual_seed(0)
    x = [numbers(20, 3, 1, 1)]
    branch, whole, _ = fitted(Residual(), [x[0] + 0.1], x)
    # 27 and 72 inputs, 20 rows
    assert all(torch.equal(branch.get_submodule(name).weight, whole.get_submodule(name).weight) for name in ("first", "second"))


def test_batches_held_back_are_computed_without_changing_the_fit():
    torch.manual_seed(2)
    x = [numbers(16, 3, 8, 8), numbers(9, 3, 8, 8, seed=1)]
    captured = capture(Residual().eval(), (1, 3, 8, 8), "residual")
    part = SegmentDesign("s1", captured.graph.input.name, captured.graph.output, (BranchScale("cpu", 1, 8),))
    design = BranchDesign("residual", "test", (part,))
    outputs = []
    for spoil in (0.0, 1.0):
        branch, whole = (build(captured, design).branch("s1", "cpu") for _ in range(2))
        with torch.no_grad():
            arriving = [x[0] + 0.3, x[1] + spoil]
            fit = BranchFit(inherited_channels(captured, design)[0][0], branch, {}, 16)
            targets, answer = collect_targets(whole, x, 1, fit.layer_targets)
            assert torch.equal(targets[1], whole(x[1]))
            assert all(len(rows) == 1 for rows in answer.values())
            outputs.append(fit.run(arriving, 1, answer, 1e-9))
            assert torch.equal(branch(arriving[1]), outputs[-1][1])
    assert torch.equal(outputs[0][0], outputs[1][0])


@pytest.mark.parametrize("join", ["project", "sum"])
def test_join_is_least_squares_of_the_target_on_the_backbones(captured, join):
    result = captured("tiny_resnet")
    design = cpu_and("gpu", result.graph, join)
    model = build(result, design)
    part = next(s for s in design.segments if not s.whole)
    segment = model.get_submodule(part.name)
    shape = result.graph.by_name[part.start].shape[1:]
    x = [numbers(4, *shape), numbers(3, *shape, seed=1)]
    with torch.no_grad():
        backbones = [[backbone_of(model.branch(part.name, b.processor), batch) for batch in x] for b in part.branches]
        target = [numbers(*segment(batch).shape, seed=2) for batch in x]
        together = [torch.cat([rows_of(x, 10**6) for x in backbone]) for backbone in (*backbones, target)]
        fit_join(part, segment, together[:-1], together[-1], 1e-9)
        got = torch.cat([segment(batch) for batch in x])
        flat = lambda t: t.movedim(1, -1).flatten(0, -2).double()  # noqa: E731 - said once
        columns, at = [], 0
        whole = [flat(torch.cat(backbone)) for backbone in backbones]
        shares = [b.partition for b in part.branches] if join == "project" else [got.shape[1]]
        for share, rows in zip(shares, whole if join == "project" else [torch.cat(whole, 1)], strict=True):
            rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
            columns.append(rows @ torch.linalg.lstsq(rows, flat(torch.cat(target))[:, at : at + share]).solution)
            at += share
    wanted, expected = flat(torch.cat(target)), torch.cat(columns, 1)
    optimum, reached = (expected - wanted).square().mean(), (flat(got) - wanted).square().mean()
    assert optimum * (1 - 1e-6) <= reached < 1.001 * optimum


@settings(max_examples=examples(10))
@given(groups=st.integers(1, 4), inputs=st.integers(1, 6), outputs=st.integers(1, 4), cut=st.integers(1, 79), seed=st.integers(0, 99))
def test_each_group_is_the_least_squares_solution_with_intercept(groups, inputs, outputs, cut, seed):
    x, y = numbers(80, groups * inputs, seed=seed), numbers(80, groups * outputs, seed=seed + 1)
    sums = Regression(groups, inputs, outputs, torch.device("cpu"))
    sums.add(x[:cut], y[:cut])
    sums.add(x[cut:], y[cut:])
    weight, bias = sums.solve(0.0, torch.zeros(groups * outputs, inputs))
    for g in range(groups):
        current = slice(g * outputs, (g + 1) * outputs)
        rows = torch.cat([x[:, g * inputs : (g + 1) * inputs], torch.ones(80, 1)], 1).double()
        expected = torch.linalg.lstsq(rows, y[:, current].double()).solution
        torch.testing.assert_close(torch.cat([weight[current].T, bias[None, current]]).double(), expected, rtol=1e-3, atol=1e-4)


def test_products_of_more_inputs_than_one_block_are_those_of_numpy():
    x, y = numbers(900, 2 * 200), numbers(900, 2 * 3, seed=1)
    sums = Products(2, 200, torch.device("cpu"), 3)
    sums.add(x[:500], y[:500])
    sums.add(x[500:], y[500:])
    for group, result in enumerate(sums.covariance()):
        rows = np.concatenate([x[:, group * 200 : (group + 1) * 200], y[:, group * 3 : (group + 1) * 3]], 1)
        np.testing.assert_allclose(result.numpy(), np.cov(rows.T, bias=True)[:200], atol=1e-5)


def test_prior_without_error_is_the_solution_for_any_ridge():
    x, prior = numbers(40, 5), numbers(3, 5, seed=1)
    sums = Regression(1, 5, 3, torch.device("cpu"))
    sums.add(x, x @ prior.T + 2)
    weight, bias = sums.solve(10.0, prior)
    torch.testing.assert_close(weight, prior, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, torch.full((3,), 2.0), rtol=1e-5, atol=1e-5)


@given(
    groups=st.sampled_from((1, 2, 4)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    count=st.sampled_from((5, 1000)),
)
def test_patches_times_weights_are_the_convolution_at_the_chosen_pixels(groups, kernel, stride, dilation, pads, count):
    conv = PaddedConv2d(4, 8, kernel, stride, dilation=dilation, groups=groups, bias=False, pads=pads)
    x = torch.randn(3, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        output = conv(x)
        rows = patches(conv, x, tuple(output.shape), count).reshape(-1, groups, conv.weight[0].numel())
        weight = conv.weight.reshape(groups, 8 // groups, -1)
        got = torch.einsum("rgi,goi->rgo", rows, weight).flatten(1)
    torch.testing.assert_close(got, rows_of(output, count), rtol=1e-4, atol=1e-5)
