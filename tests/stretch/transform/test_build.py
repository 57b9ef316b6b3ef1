import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.rewrites import HALF_RESOLUTION
from stretch.network.capture import capture
from stretch.network.models.load import load_model
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.scale import legal_widths, scale_branch, scaled_branches, scaled_graph
from stretch.planning.network.segments import rewrite_segment, split_segments
from stretch.planning.plan import plan
from stretch.transform import Branch, build
from stretch.transform.build import fold_norms
from stretch.transform.width import InputChannels, choose_units, importance, inherit, kept_channels
from tests.effort import examples
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.designs import (
    branchable,
    cpu_and,
    divided,
    identity_design,
    pair,
    part_of,
    random_designs,
    with_rewrites,
    without_blocks,
)

TINY = ["tiny_resnet", "tiny_mobilenet", "tiny_regnet", "tiny_vgg", "tiny_efficientnet"]


def image(result, batch=1):
    shape = result.graph.input.shape
    return torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(1))


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", [*TINY, "resnet18", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "squeezenet1_1"])
def test_identity_design_gives_the_original_outputs_bit_for_bit(captured, name):
    result = captured(name)
    x = image(result)
    with torch.inference_mode():
        assert torch.equal(build(result, identity_design(result.graph))(x), result.module(x))


@pytest.mark.parametrize("name", TINY)
def test_folded_norms_compute_the_same_and_leave_the_captured_network_unchanged(captured, name):
    result = captured(name)
    model, x = build(result, identity_design(result.graph)), image(result)
    for number, norm in enumerate(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        drawn = torch.Generator().manual_seed(number)
        for values in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
            values.add_(torch.rand(values.shape, generator=drawn))
    norms = [type(module).__name__ for module in result.module.modules()].count("BatchNorm2d")
    with torch.inference_mode():
        expected, original = model(x), result.module(x)
        fold_norms(model)
        assert torch.allclose(model(x), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
        assert torch.equal(result.module(x), original)
    left = [type(module).__name__ for module in model.modules()].count("BatchNorm2d")
    assert left < norms or norms == 0
    assert [type(module).__name__ for module in result.module.modules()].count("BatchNorm2d") == norms


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", TINY)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_built_model_is_traced_as_the_scaled_graph(captured, name, data):
    result = captured(name)
    design = data.draw(random_designs(result.graph))
    model = build(result, design)
    assert capture(model, result.graph.input.shape, result.graph.name).graph == scaled_graph(result.graph, design)
    with torch.inference_mode():
        assert model(image(result)).isfinite().all()


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet"])
@settings(max_examples=examples(15))
@given(data=st.data())
def test_network_without_blocks_equals_the_parent_with_these_modules_removed(captured, name, data):
    result = captured(name)
    parent, parts = result.module, []
    for segment in branchable(result.graph):
        units = [number for number, block in enumerate(segment.blocks) if block.removable]
        gone = sorted(data.draw(st.sets(st.sampled_from(units)))) if units else []
        parent = without_blocks(parent, segment, gone)
        scale = BranchScale("cpu", segment.depth - len(gone), segment.width, dropped=tuple(gone))
        parts.append(part_of(segment, "none", [scale]))
    with torch.inference_mode():
        assert torch.equal(build(result, divided(result.graph, *parts))(image(result)), parent(image(result)))


@torch.no_grad()
def test_branch_without_squeeze_and_excitation_equals_the_parent_with_gates_of_one(captured):
    result = captured("tiny_efficientnet")
    design = with_rewrites(cpu_and("gpu", result.graph, "sum"), "squeeze_excite=none")
    part = next(part for part in design.segments if len(part.branches) > 1)
    scale = BranchScale("cpu", part.branches[0].depth, part.branches[0].width, rewrites=("squeeze_excite=none",))
    segment = next(s for s in split_segments(result.graph) if s.name == part.name)
    model = build(result, divided(result.graph, part_of(segment, "none", [scale])))
    gates = [op.name for op in segment.graph.ops if op.kind == "sigmoid"]
    assert gates
    parent = copy.deepcopy(result.module)
    for name, module in parent.named_modules():
        if name.replace(".", "_") in gates:
            module.register_forward_hook(lambda module, args, out: torch.ones_like(out))
    torch.testing.assert_close(model(image(result)), parent(image(result)))


def _load(module, weights):
    with torch.no_grad():
        for name, current in weights.items():
            module.get_submodule(name).load_state_dict(current, strict=False)
    return module.eval()


@pytest.mark.representatives(3)
@pytest.mark.parametrize("name", TINY)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_sliced_branch_equals_the_parent_with_removed_channels_masked(captured, name, data):
    """All tensors of the parent's segment are masked to the kept channels; the branch must compute the same."""
    result = captured(name)
    segments = [s for s in split_segments(result.graph) if s.branchable and len(legal_widths(s, 1)) > 1]
    segment = data.draw(st.sampled_from(segments))
    width = data.draw(st.sampled_from(legal_widths(segment, 1, 0.2)))
    entry = "slice" if segment.passes_input and width != segment.in_width else "none"
    scale = BranchScale("cpu", segment.depth, width, entry, align=1)
    part = SegmentDesign(segment.name, segment.start, segment.end, (scale,), "concat" if width != segment.width else "none")
    branch = scale_branch(segment, part, 0, segment.in_width)
    chosen = choose_units(branch, importance(branch.source, branch.channels, result.weights), 0, sliced=entry == "slice")
    arriving = None if entry == "slice" else InputChannels.of(torch.arange(segment.in_width))
    sliced = _load(Branch(branch.graph), inherit(branch, result, chosen, arriving))
    parent = _load(Branch(segment.graph), {op.name: result.weights[op.name] for op in segment.graph.ops if op.name in result.weights})

    def masked(name, tensor):
        kept = kept_channels(branch.channels, branch.source, name, chosen, arriving).index
        mask = torch.zeros_like(tensor)
        mask[:, kept] = tensor[:, kept]
        return mask

    for op in segment.graph.ops:
        if op.kind != "input":
            parent.get_submodule(op.name).register_forward_hook(lambda module, inputs, output, name=op.name: masked(name, output))
    x = torch.randn(1, segment.in_width, *segment.graph.input.shape[2:], generator=torch.Generator().manual_seed(2))
    keep = kept_channels(branch.channels, branch.source, segment.end, chosen, arriving).index
    with torch.inference_mode():
        got, want = sliced(x), parent(masked(segment.start, x))
    assert (got - want[:, keep]).abs().max() <= 1e-6 * max(1.0, float(want.abs().max()))


def wider_control(segment):
    """Make a control with 1.5 times the channels."""
    return part_of(segment, "concat", [BranchScale("cpu", segment.depth, segment.width * 3 // 2, align=1)])


KEPT = {join: lambda s, join=join: pair(s, join, (s.depth, s.depth)) for join in ("project", "sum", "concat")} | {"wider": wider_control}


@pytest.mark.parametrize("kept", KEPT)
def test_segment_that_keeps_everything_returns_what_the_parent_computes(captured, kept):
    result = captured("tiny_resnet")
    x, part = image(result), KEPT[kept](branchable(result.graph)[1])
    with torch.inference_mode():
        got, want = build(result, divided(result.graph, part))(x), result.module(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_kept_channels_are_those_with_the_largest_norm(captured):
    result = captured("tiny_resnet")
    segment = next(s for s in split_segments(result.graph) if s.name == "s2")
    part = part_of(segment, "concat", [BranchScale("cpu", segment.depth, segment.width // 2, align=1)])
    branch = scaled_branches(result.graph, divided(result.graph, part))[2][0]
    scores = importance(branch.source, branch.channels, result.weights)
    group = branch.channels.pieces[branch.source.output][0][0]
    writers = [op.name for op in branch.source.ops if op.kind == "conv" and branch.channels.pieces[op.name][0][0] == group]
    norms = [result.weights[name]["weight"].abs().flatten(1).sum(1) for name in writers]
    assert len(norms) > 1
    torch.testing.assert_close(scores[group], sum(norms))
    chosen = choose_units(branch, scores, 0, sliced=False)
    for group, kept in chosen.items():
        if group in scores and len(kept) < branch.channels.units[group]:
            dropped = sorted(set(range(branch.channels.units[group])) - set(kept.tolist()))
            assert scores[group][kept].min() >= scores[group][dropped].max()


def test_branched_model_trains_and_its_state_dict_round_trips(captured):
    result = captured("tiny_mobilenet")
    design = cpu_and("gpu", result.graph, "project")
    model = build(result, design).train()
    loss = torch.nn.functional.cross_entropy(model(image(result, 4)), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    other = build(result, design)
    other.load_state_dict(model.state_dict())
    x = image(result)
    with torch.inference_mode():
        assert torch.equal(model.eval()(x), other(x))


class ReductionThenUnits(torch.nn.Module):
    """A block that passes its pooled input on, units that do not, a shuffle and a slice of the channels."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.stem, self.down = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.left = nn.ModuleList(nn.Conv2d(24, 12, 3, padding=1) for _ in range(2))
        self.right = nn.ModuleList(nn.Conv2d(24, 12, 1) for _ in range(2))
        self.shuffle, self.last = nn.ChannelShuffle(2), nn.Conv2d(9, 4, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.cat([self.down(x), torch.nn.functional.max_pool2d(x, 3, 2, 1)], 1)
        for left, right in zip(self.left, self.right, strict=True):
            x = torch.relu(torch.cat([left(x), right(x)], 1))
        return self.last(self.shuffle(x)[:, 3:12]).mean((2, 3))


@pytest.mark.slow
@given(data=st.data())
def test_backbones_of_several_parts_scale_at_every_depth(data):
    captured = capture(ReductionThenUnits().eval(), (1, 3, 16, 16), "net")
    design = data.draw(random_designs(captured.graph))
    model = build(captured, design)
    assert capture(model, captured.graph.input.shape, "net").graph == scaled_graph(captured.graph, design)
    with torch.inference_mode():
        same = build(captured, identity_design(captured.graph))(image(captured))
        assert torch.equal(same, captured.module(image(captured)))


HALF = (HALF_RESOLUTION,)


def last_stage(graph):
    return next(segment for segment in split_segments(graph) if segment.branchable and rewrite_segment(segment, HALF) is not segment)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "reader"), [("resnet18", "layer4"), ("tiny_resnet", "stages.2"), ("densenet121", "features.transition3.conv")]
)
def test_branch_at_half_resolution_equals_the_parent_with_its_last_stage_pooled_before(captured, name, reader):
    result = captured(name)
    segment = last_stage(result.graph)
    scale = BranchScale("cpu", segment.depth, segment.width, rewrites=HALF)
    model = build(result, divided(result.graph, part_of(segment, "none", [scale])))
    parent = copy.deepcopy(result.module).eval()
    parent.get_submodule(reader).register_forward_pre_hook(lambda module, args: torch.nn.functional.avg_pool2d(args[0], 2))
    x = torch.randn(2, *result.graph.input.shape[1:], generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), parent(x))


def test_stage_that_returns_a_map_keeps_its_resolution():
    first = split_segments(small_resnet())[1]
    assert rewrite_segment(first, HALF) is first


def test_planner_gives_a_half_resolution_branch_up_to_twice_the_channels_with_a_warning():
    graph = capture(load_model("resnet20_cifar10", weights="none").module, (1, 3, 256, 256), "resnet20").graph
    config = PlanConfig(processors=("cpu", "gpu"), merge="always", alpha=100.0, rewrite=("gpu:resolution=half",))
    result = plan(graph, specified("pixel6"), config)
    halves = [b for part in result.design.segments if len(part.branches) > 1 for b in part.branches if b.rewrites == HALF]
    assert {b.processor for b in halves} == {"gpu"}
    stage = last_stage(graph)
    assert all(b.width <= 2 * stage.width for b in halves)
    assert scaled_graph(graph, result.design).macs == result.run.macs
    assert any("resolution=half on gpu" in str(warning) for warning in result.warnings)
