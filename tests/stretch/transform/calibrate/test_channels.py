"""Which channels and blocks a branch keeps."""

from itertools import combinations

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from predictors.joins import join_of
from stretch.capture import capture
from stretch.models.tiny import BasicBlock, SmallResNet
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import drop_units
from stretch.planning.network.segments import cut_segment, split_segments
from stretch.transform import build
from stretch.transform.build import heritages
from stretch.transform.calibrate import Choices, calibrate, whole_design
from stretch.transform.calibrate.segment import (
    ChannelChoice,
    Elimination,
    choose_blocks,
    conditional_covariance,
    find_covariances,
    keep_units,
    output_without,
)
from tests.effort import examples
from tests.stretch.designs import identity_design, random_designs

#: Hidden channels that are copies of others, and those others.
COPIES, COPIED = (8, 9, 10, 11), (0, 1, 2, 3)


class Expanded(nn.Module):
    """An inverted bottleneck some of whose hidden channels are copies of others; both have larger weights than the rest."""

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
        return find_covariances(build(result, whole_design(result, design)).branch("s1", "cpu"), segment.graph, images().split(20), 64)


def test_covariances_are_those_of_what_layers_read_and_of_the_output(halves, known):
    result, segment, _, design = halves
    original, seen = build(result, whole_design(result, design)).branch("s1", "cpu"), {}
    for name, layer in original.named_children():
        layer.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
    with torch.no_grad():
        output = original(images())
    dense = [op.name for op in segment.graph.ops if op.kind == "conv" and op.attrs["groups"] == 1]
    assert list(known.layers) == dense
    for values, covariance in [*((seen[name], known.layers[name]) for name in dense), (output, known.end)]:
        rows = values.movedim(1, -1).flatten(0, -2).double()
        torch.testing.assert_close(covariance, torch.cov(rows.T, correction=0), rtol=1e-3, atol=1e-4)


def chosen_by(halves, known):
    result, _, part, design = halves
    choice, family = ChannelChoice(result, part, known, 1e-4), []
    for index, built in enumerate(heritages(result, design)[0]):
        family.append(choice.choose(index, built, {}, family))
    return family


def hidden(segment, heritage):
    name = next(op.name for op in segment.graph.ops if op.kind == "conv")
    return set(heritage.kept(name).tolist())


def test_of_a_channel_and_its_copy_one_is_kept_where_norms_keep_both(halves, known):
    result, segment, _, design = halves
    pairs = [set(pair) for pair in zip(COPIED, COPIES, strict=True)]
    for built, heritage in zip(heritages(result, design)[0], chosen_by(halves, known), strict=True):
        assert all(pair <= hidden(segment, built) for pair in pairs)
        assert not any(pair <= hidden(segment, heritage) for pair in pairs)
        assert len(hidden(segment, heritage)) == 8


def test_backbones_of_the_branches_cover_the_output_together(halves, known):
    """A sum needs each channel from one branch, a projection its own part from each."""
    _, _, part, _ = halves
    first, second = (set(heritage.backbone.tolist()) for heritage in chosen_by(halves, known))
    assert len(first) == len(second) == 3
    if part.join == "sum":
        assert first | second == set(range(6))
    else:
        assert (first, second) == ({0, 1, 2}, {3, 4, 5})


def test_calibration_comes_closer_with_channels_that_were_chosen(halves):
    result, _, _, design = halves
    (by_norm,) = calibrate(build(result, design), result, [images()], choices=Choices(channels=False))
    (chosen,) = calibrate(build(result, design), result, [images()])
    assert chosen.before == by_norm.before
    assert chosen.after < 0.9 * by_norm.after


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["tiny_regnet", "tiny_efficientnet"])
def test_chosen_channels_fit_together_whatever_the_design(captured, name):
    """Grouped convolutions and gates: as many units of each group as the design says, each once, and weights of the branch's shapes."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    result = captured(name)
    x = torch.randn(8, *result.graph.input.shape[1:], generator=torch.Generator().manual_seed(0))

    @settings(max_examples=examples(4))
    @given(data=st.data())
    def check(data):
        from stretch.planning.design.scale import design_segments

        design = data.draw(random_designs(result.graph))
        original = build(result, whole_design(result, design))
        there = x
        for part, segment, family in zip(design.segments, design_segments(result.graph, design), heritages(result, design), strict=True):
            module = original.branch(part.name, "cpu")
            with torch.no_grad():
                choice = ChannelChoice(result, part, find_covariances(module, segment.graph, [there], 8), 1e-4)
                there = module(there)
            for index, built in enumerate(family):
                heritage = choice.choose(index, built, {}, family[:index])
                for group, units in heritage.chosen.items():
                    assert len(units) == len(built.chosen[group])
                    if len(units) < built.branch.channels.units[group]:
                        assert units.tolist() == sorted(set(units.tolist()))
                shapes = {key: {k: v.shape for k, v in current.items()} for key, current in heritage.weights(result).items()}
                assert shapes == {key: {k: v.shape for k, v in current.items()} for key, current in built.weights(result).items()}

    check()


#: Blocks of a stage; of each, by how much the last batch norm is scaled: those with little add little.
BLOCKS = 5


def network(scales):
    """A network whose second stage's blocks add more or less."""
    torch.manual_seed(0)
    net = SmallResNet(BasicBlock, (8, 16, 16), BLOCKS).eval()
    captured = capture(net, (1, 3, 32, 32), "net")
    segment = next(s for s in split_segments(captured.graph) if s.name == "s2")
    with torch.no_grad():
        for block, scale in zip(segment.blocks, scales, strict=True):
            last = [name for name in block.ops if segment.graph.by_name[name].kind == "batch_norm"][-1]
            captured.weights[last]["weight"].mul_(scale)
    return captured, segment


def module_of(result, segment):
    return build(result, identity_design(result.graph)).branch(segment.name, "cpu")


def arriving(segment):
    return torch.randn(20, *segment.graph.input.shape[1:], generator=torch.Generator().manual_seed(1))


def design_of(segment, depths, join):
    processors = ("cpu", "gpu")[: len(depths)]
    partition = segment.width // 2 if join_of(join).divides else 0
    branches = tuple(BranchScale(p, depth, segment.width, partition=partition) for p, depth in zip(processors, depths, strict=True))
    return SegmentDesign(segment.name, segment.start, segment.end, branches, join)


def chosen(result, segment, depths, join):
    sources = [drop_units(segment, depth) for depth in depths]
    with torch.no_grad():
        return choose_blocks(
            design_of(segment, depths, join), segment, sources, module_of(result, segment), arriving(segment).split(7), 1e-4
        )


def reproduced(segment, matches, depth):
    """Numbers of the blocks that a branch reproduces."""
    current = [i for i, block in enumerate(segment.blocks) if block.ops[0] in drop_units(segment, depth).by_name]
    at = {block.ops[0]: i for i, block in enumerate(segment.blocks)}
    return [at[matches.get(segment.blocks[i].ops[0], segment.blocks[i].ops[0])] for i in current]


def test_blocks_that_add_little_are_left_out_and_the_entry_block_stays():
    result, segment = network([1e-3, 1, 1e-3, 1e-3, 1])
    assert not segment.blocks[0].removable
    (matches,) = chosen(result, segment, [3], "none")
    assert reproduced(segment, matches, 3) == [0, 1, 4]


@pytest.mark.parametrize("join", ["sum", "project"])
def test_branches_that_are_added_up_complement_each_other(join):
    """Each may keep one block; the first takes the one that matters most, the second another where both are read together."""
    result, segment = network([1, 1e-3, 2, 1e-3, 1.5])
    first, second = (reproduced(segment, m, 2) for m in chosen(result, segment, [2, 2], join))
    assert first[0] == second[0] == 0
    assert {first[1], second[1]} <= {2, 4}
    if join == "sum":
        assert first != second


@pytest.mark.representatives(3)
@pytest.mark.parametrize("gone", [[], [1], [4], [1, 2, 4], [1, 2, 3, 4]])
def test_output_without_blocks_is_that_of_a_network_built_without_them(gone):
    result, segment = network([1] * BLOCKS)
    module, x = module_of(result, segment), arriving(segment)
    with torch.no_grad():
        got = output_without(module, [segment.blocks[i] for i in gone], x)
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


def left(x, y, kept):
    """Squared error of least squares on some inputs, in the mean of rows: numpy's way."""
    fitted = torch.linalg.lstsq(x[:, kept], y).solution
    return float((x[:, kept] @ fitted - y).square().sum() / len(x))


@settings(max_examples=examples(15))
@drawn(units=st.integers(2, 5), per=st.integers(1, 3), outputs=st.integers(1, 4), seed=st.integers(0, 999))
def test_cost_of_a_unit_is_the_error_that_least_squares_on_the_others_leaves(units, per, outputs, seed):
    x = rows(units * per, seed)
    weight = torch.randn(outputs, units * per, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    y = x @ weight.T
    layer = Elimination(covariance(x), weight, 1e-12)
    places = torch.arange(units * per).reshape(units, per)
    alive = list(range(units))
    while len(alive) > 1:
        costs = layer.costs(places[alive])
        kept = [places[[other for other in alive if other != one]].flatten() for one in alive]
        expected = [left(x, y, others) for others in kept]
        assert float(costs.min()) >= -1e-9
        # each cost is what its removal adds to the error so far
        so_far = left(x, y, places[alive].flatten())
        size = float(y.square().sum() / len(x))
        assert (costs * size).tolist() == pytest.approx([item - so_far for item in expected], rel=1e-3, abs=1e-6 * size)
        gone = alive.pop(int(costs.argmin()))
        layer.remove(places[gone])


def test_units_that_the_others_can_stand_in_for_go_first():
    x = rows(6, 3)
    x[:, 4] = x[:, 0] - 2 * x[:, 1]
    x[:, 5] = 3 * x[:, 2]
    weight = torch.ones(1, 6, dtype=torch.float64)
    kept = keep_units(6, 4, [(Elimination(covariance(x), weight, 1e-9), torch.arange(6)[:, None])])
    assert left(x, x @ weight.T, kept) < 1e-6
    assert kept.tolist() == sorted(kept.tolist())


@settings(max_examples=examples(10))
@drawn(seed=st.integers(0, 999))
def test_choice_is_close_to_the_best_of_all_subsets_for_two_readers(seed):
    x = rows(6, seed)
    weights = [torch.randn(3, 6, generator=torch.Generator().manual_seed(seed + i), dtype=torch.float64) for i in range(2)]
    readers = [(Elimination(covariance(x), weight, 1e-9), torch.arange(6)[:, None]) for weight in weights]
    kept = keep_units(6, 3, readers)

    def cost(some):
        return sum(left(x, x @ w.T, list(some)) / float((x @ w.T).square().sum() / len(x)) for w in weights)

    every = sorted(cost(some) for some in combinations(range(6), 3))
    # greedy need not be the best, but among the better half
    assert cost(kept.tolist()) <= every[len(every) // 2] + 1e-9


def test_what_is_known_explains_itself_and_what_depends_on_it():
    x = rows(5, 1)
    x[:, 3] = x[:, 0] + x[:, 1]
    rest = conditional_covariance(covariance(x), torch.tensor([0, 1]), 1e-9)
    size = covariance(x).diagonal()
    assert (rest.diagonal()[[0, 1, 3]] < 1e-6 * size[[0, 1, 3]]).all()
    fitted = torch.linalg.lstsq(x[:, [0, 1]], x[:, [2, 4]]).solution
    expected = (x[:, [2, 4]] - x[:, [0, 1]] @ fitted).square().mean(0)
    torch.testing.assert_close(rest.diagonal()[[2, 4]], expected, rtol=1e-3, atol=1e-6)
    assert torch.equal(conditional_covariance(covariance(x), torch.tensor([], dtype=torch.int64), 1e-9), covariance(x))
