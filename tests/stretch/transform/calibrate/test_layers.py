"""Layers and joins fitted by least squares to the original."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stretch.capture import capture
from stretch.operators.products import PaddedConv2d
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import cut_segment
from stretch.transform import build
from stretch.transform.build import heritages
from stretch.transform.calibrate.layers import PIXELS, BranchFit, Products, Regression, look, patches, pixels_for, rows_of, tail_of
from stretch.transform.calibrate.run import whole_design
from stretch.transform.calibrate.segment import fit_join, readout
from stretch.transform.calibrate.statistics import backbone_of
from tests.effort import examples
from tests.stretch.designs import cpu_and


class Residual(nn.Module):
    def __init__(self, groups=1):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=groups)

    def forward(self, x):
        x = self.norm(self.first(x))
        return x + self.second(torch.relu(x))


def fitted(module, arriving, original, spoil=None):
    """The module's one segment, fitted on `arriving` to what it computes on `original`."""
    captured = capture(module.eval(), tuple(original[0].shape), "residual")
    last = captured.graph.output
    segment = cut_segment(captured.graph, "s1", captured.graph.input.name, last)
    scale = (BranchScale("cpu", segment.depth, segment.width),)
    design = BranchDesign("residual", "test", (SegmentDesign("s1", captured.graph.input.name, last, scale),))
    model = build(captured, design)
    branch, whole = model.branch("s1", "cpu"), build(captured, whole_design(captured, design)).branch("s1", "cpu")
    with torch.no_grad():
        if spoil:
            spoil(branch)
        fit = BranchFit(heritages(captured, design)[0][0], branch, {}, sum(len(x) for x in arriving))
        _, answer = look(whole, original, len(original), fit.looks)
        outputs = fit.run(arriving, len(arriving), answer, 1e-9)
        return branch, whole, torch.cat(outputs)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_spoilt_weights_are_found_again(groups):
    """With the original's input, dense, grouped and depthwise layers can be exact."""
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


def test_last_layer_of_a_block_is_least_squares_of_what_the_skip_leaves():
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
    # The share of the penalty that grows with inputs over rows keeps it a little from the optimum.
    least, reached = (expected - left).square().mean(), (got - left).square().mean()
    assert least <= reached < 1.01 * least


def test_tail_ends_at_what_is_not_affine_and_knows_the_addition():
    captured = capture(Residual().eval(), (1, 3, 8, 8), "residual")
    ops = {op.kind: op.name for op in captured.graph.ops}
    convs = [op.name for op in captured.graph.ops if op.kind == "conv"]
    first, second = (tail_of(captured.graph, name) for name in convs)
    assert (first.end, first.norm, first.add) == (ops["batch_norm"], ops["batch_norm"], None)
    assert (second.end, second.norm, second.add, second.skip) == (convs[1], None, ops["add"], ops["batch_norm"])


class Gated(Residual):
    def forward(self, x):
        x = self.norm(self.first(x))
        return x * self.second(x)


def test_product_with_another_tensor_is_no_part_of_a_tail():
    captured = capture(Gated().eval(), (1, 3, 8, 8), "gated")
    second = [op.name for op in captured.graph.ops if op.kind == "conv"][1]
    tail = tail_of(captured.graph, second)
    assert (tail.end, tail.add, tail.skip) == (second, None, None)


def test_layer_with_more_inputs_than_rows_stays_as_it_was():
    torch.manual_seed(0)
    x = [numbers(20, 3, 1, 1)]
    branch, whole, _ = fitted(Residual(), [x[0] + 0.1], x)
    # 27 and 72 inputs, 20 rows.
    for name in ("first", "second"):
        assert torch.equal(branch.get_submodule(name).weight, whole.get_submodule(name).weight)


def test_batches_that_are_held_back_are_computed_but_do_not_change_the_fit():
    torch.manual_seed(2)
    x = [numbers(16, 3, 8, 8), numbers(9, 3, 8, 8, seed=1)]
    captured = capture(Residual().eval(), (1, 3, 8, 8), "residual")
    design = BranchDesign(
        "residual", "test", (SegmentDesign("s1", captured.graph.input.name, captured.graph.output, (BranchScale("cpu", 1, 8),)),)
    )
    outputs = []
    for spoil in (0.0, 1.0):
        branch, whole = (build(captured, design).branch("s1", "cpu") for _ in range(2))
        with torch.no_grad():
            arriving = [x[0] + 0.3, x[1] + spoil]
            fit = BranchFit(heritages(captured, design)[0][0], branch, {}, 16)
            targets, answer = look(whole, x, 1, fit.looks)
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
    least, reached = (expected - wanted).square().mean(), (flat(got) - wanted).square().mean()
    assert least * (1 - 1e-6) <= reached < 1.001 * least


def test_readout_finds_a_linear_map_and_its_intercept():
    x, true = numbers(400, 6), numbers(3, 6, seed=2)
    weight, bias = readout(x, x @ true.T + 4, 1e-9)
    torch.testing.assert_close(weight, true, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(bias, torch.full((3,), 4.0), rtol=1e-2, atol=1e-2)


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


def test_without_intercept_the_line_passes_through_zero():
    x, y = numbers(50, 3), numbers(50, 2, seed=1) + 5
    sums = Regression(1, 3, 2, torch.device("cpu"))
    sums.add(x, y)
    weight, bias = sums.solve(0.0, torch.zeros(2, 3), intercept=False)
    assert torch.equal(bias, torch.zeros(2))
    torch.testing.assert_close(weight.T, torch.linalg.lstsq(x, y).solution, rtol=1e-3, atol=1e-4)


def test_prior_that_fits_already_is_the_solution_at_any_ridge():
    x, prior = numbers(40, 5), numbers(3, 5, seed=1)
    sums = Regression(1, 5, 3, torch.device("cpu"))
    sums.add(x, x @ prior.T + 2)
    weight, bias = sums.solve(10.0, prior)
    torch.testing.assert_close(weight, prior, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, torch.full((3,), 2.0), rtol=1e-5, atol=1e-5)


def test_fewer_rows_than_inputs_leave_the_prior_where_rows_say_nothing():
    prior = numbers(1, 30, seed=2)
    x = torch.zeros(6, 30)
    x[:, :2] = numbers(6, 2)
    sums = Regression(1, 30, 1, torch.device("cpu"))
    sums.add(x, numbers(6, 1, seed=3))
    weight, _ = sums.solve(1e-4, prior)
    torch.testing.assert_close(weight[:, 2:], prior[:, 2:])
    assert not torch.allclose(weight[:, :2], prior[:, :2])


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


def test_vector_is_one_pixel():
    x = torch.randn(4, 7)
    assert rows_of(x, 3) is x
    assert patches(torch.nn.Linear(7, 2), x, (4, 2), 3) is x


def test_few_images_are_looked_at_in_no_more_pixels_than_say_something_new():
    assert pixels_for(30, 64) == pixels_for(30, 576) == PIXELS
    assert pixels_for(30, 4608) * 30 >= 4 * 4608


def test_wide_layers_get_fewer_rows_but_some_for_every_input():
    assert pixels_for(512, 576) * 512 > 50_000
    assert pixels_for(256, 2304) == 4 * 2304 // 256
    for inputs, groups in ((9, 960), (64, 1), (576, 4), (4608, 1)):
        rows = 100 * pixels_for(100, inputs, groups)
        assert 4 * inputs <= rows < 2**16 + 100
        assert rows * inputs * groups <= 2**27 or rows < 4 * inputs + 100
