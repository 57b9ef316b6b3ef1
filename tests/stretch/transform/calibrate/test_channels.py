import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from predictors.joins import join_of  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.network.segments import cut_segment  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.build import heritages  # noqa: E402
from stretch.transform.calibrate import Choices, calibrate, whole_design  # noqa: E402
from stretch.transform.calibrate.channels import ChannelChoice, find_covariances  # noqa: E402
from tests.stretch.designs import random_designs  # noqa: E402

pytestmark = pytest.mark.torch

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
    found = capture(Expanded().eval(), (1, 6, 8, 8), "net")
    segment = cut_segment(found.graph, "s1", found.graph.input.name, found.graph.output)
    share = 3 if join_of(request.param).divides else 0
    branches = tuple(BranchScale(name, segment.depth, 3, align=1, partition=share) for name in ("cpu", "gpu"))
    part = SegmentDesign("s1", segment.start, segment.end, branches, request.param)
    return found, segment, part, BranchDesign("net", "test", (part,))


def images(count=64, seed=1):
    return torch.randn(count, 6, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def known(halves):
    found, segment, _, design = halves
    with torch.no_grad():
        return find_covariances(build(found, whole_design(found, design)).branch("s1", "cpu"), segment.graph, images().split(20), 64)


def test_covariances_are_those_of_what_layers_read_and_of_the_output(halves, known):
    found, segment, _, design = halves
    original, seen = build(found, whole_design(found, design)).branch("s1", "cpu"), {}
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
    found, _, part, design = halves
    choice, family = ChannelChoice(found, part, known, 1e-4), []
    for index, built in enumerate(heritages(found, design)[0]):
        family.append(choice.choose(index, built, {}, family))
    return family


def hidden(segment, heritage):
    name = next(op.name for op in segment.graph.ops if op.kind == "conv")
    return set(heritage.kept(name).tolist())


def test_of_a_channel_and_its_copy_one_is_kept_where_norms_keep_both(halves, known):
    found, segment, _, design = halves
    pairs = [set(pair) for pair in zip(COPIED, COPIES, strict=True)]
    for built, heritage in zip(heritages(found, design)[0], chosen_by(halves, known), strict=True):
        assert all(pair <= hidden(segment, built) for pair in pairs)
        assert not any(pair <= hidden(segment, heritage) for pair in pairs)
        assert len(hidden(segment, heritage)) == 8


def test_trunks_of_the_branches_cover_the_output_together(halves, known):
    """A sum needs each channel from one branch, a projection its own part from each."""
    _, _, part, _ = halves
    first, second = (set(heritage.trunk.tolist()) for heritage in chosen_by(halves, known))
    assert len(first) == len(second) == 3
    if part.join == "sum":
        assert first | second == set(range(6))
    else:
        assert (first, second) == ({0, 1, 2}, {3, 4, 5})


def test_calibration_comes_closer_with_channels_that_were_chosen(halves):
    found, _, _, design = halves
    (by_norm,) = calibrate(build(found, design), found, [images()], choices=Choices(channels=False))
    (chosen,) = calibrate(build(found, design), found, [images()])
    assert chosen.before == by_norm.before
    assert chosen.after < 0.9 * by_norm.after


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["tiny_regnet", "tiny_efficientnet"])
def test_chosen_channels_fit_together_whatever_the_design(captured, name):
    """Grouped convolutions and gates: as many units of each group as the design says, each once, and weights of the branch's shapes."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    found = captured(name)
    x = torch.randn(8, *found.graph.input.shape[1:], generator=torch.Generator().manual_seed(0))

    @settings(max_examples=examples(4))
    @given(data=st.data())
    def check(data):
        from stretch.planning.design.scale import design_segments

        design = data.draw(random_designs(found.graph))
        original = build(found, whole_design(found, design))
        there = x
        for part, segment, family in zip(design.segments, design_segments(found.graph, design), heritages(found, design), strict=True):
            module = original.branch(part.name, "cpu")
            with torch.no_grad():
                choice = ChannelChoice(found, part, find_covariances(module, segment.graph, [there], 8), 1e-4)
                there = module(there)
            for index, built in enumerate(family):
                heritage = choice.choose(index, built, {}, family[:index])
                for group, units in heritage.chosen.items():
                    assert len(units) == len(built.chosen[group])
                    if len(units) < built.branch.channels.units[group]:
                        assert units.tolist() == sorted(set(units.tolist()))
                shapes = {key: {k: v.shape for k, v in own.items()} for key, own in heritage.weights(found).items()}
                assert shapes == {key: {k: v.shape for k, v in own.items()} for key, own in built.weights(found).items()}

    check()
