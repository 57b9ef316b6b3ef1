"""Networks that share weights: positions of the weights, training, and extraction."""

import msgspec
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import split_segments
from stretch.planning.plan import evaluate, plan
from stretch.train.distributed import World
from stretch.train.recipe import SandwichConfig, TrainConfig
from stretch.train.sandwich import SandwichStep
from stretch.train.supernet import Sharing, Supernet, designs_between, envelope, fastest_designs, random_designs
from stretch.transform import BranchedModel, build
from tests.effort import examples
from tests.predictors.specified import specified
from tests.stretch.designs import branchable, divided, in_bands
from tests.stretch.planning.spaces import small_resnet
from tests.stretch.train.supernets import design, part, pool


def images(count=32, size=16):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("join", ["project", "sum"])
def test_full_width_subnet_starts_like_the_built_network_and_unscaled_copies_like_the_original(captured, join):
    network = captured("tiny_resnet")
    wanted, copies = (design(network.graph, *depths, join) for depths in (((1, 1.0), (2, 1.0)), ((3, 1.0), (3, 1.0))))
    supernet = Supernet(network, [wanted]).eval()
    supernet.active = supernet.pool[0]
    with torch.no_grad():
        torch.testing.assert_close(supernet(images()), build(network, wanted)(images()))
        original = network.module.eval()(images())
        torch.testing.assert_close(Supernet(network, [copies]).eval()(images()), original, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_narrow_subnet_computes_what_the_full_one_does_with_dropped_channels_masked(captured):
    """Oracle: the same weights in the full module, with the dropped channels multiplied by zero."""
    network = captured("tiny_resnet")
    narrow = design(network.graph, (3, 0.5), (3, 1.0))
    supernet = Supernet(network, [narrow, design(network.graph, (3, 1.0), (3, 1.0))])
    with torch.no_grad():
        supernet.flat.add_(0.05 * torch.randn(supernet.flat.shape, generator=torch.Generator().manual_seed(2)))
    positions = supernet.sharing.positions(narrow)
    segment, offsets = "s2", supernet.sharing.offsets
    reduced, full = supernet.pool
    for subnet in (full, reduced):
        subnet.load(supernet.flat)
        subnet.model.eval()
    branch, original = reduced.model.branch(segment, "cpu"), full.model.branch(segment, "cpu")
    masks = {}
    for name, _, _ in original.steps:
        key = f"{segment}.on_cpu.{name}.weight"
        if key in positions and ("conv" in name or "downsample_0" in name) and "join" not in name:
            rows = torch.tensor(offsets.shapes[key])
            kept = (positions[key].flatten(1)[:, 0] - offsets.starts[key]) // rows[1:].prod()
            masks[name] = torch.zeros(int(rows[0])).index_fill(0, kept, 1.0)
    # batch norms of dropped channels would add their shift, so their outputs are masked, too
    for name, _, _ in original.steps:
        conv = name.replace("bn", "conv").replace("downsample_1", "downsample_0")
        if conv in masks:
            original.get_submodule(name).register_forward_hook(lambda m, i, out, mask=masks[conv]: out * mask[None, :, None, None])
    x = torch.randn(4, 16, 8, 8)
    start = narrow.segments[2].branches[0].partition
    with torch.no_grad():
        torch.testing.assert_close(branch(x), original(x)[:, :start], atol=1e-4, rtol=1e-4)
    assert masks


def test_calibrated_start_renews_statistics_and_leaves_weights(captured):
    network = captured("tiny_resnet")
    supernet = Supernet(network, pool(network.graph))
    before = supernet.flat.detach().clone()
    batches = [images(), 2 * images()]
    supernet.calibrate(batches)
    assert torch.equal(before, supernet.flat)
    supernet.eval()
    for subnet in supernet.pool:
        alone = supernet.extract(subnet.design, batches)
        supernet.active = subnet
        with torch.no_grad():
            torch.testing.assert_close(supernet(images()), alone(images()))


@pytest.mark.parametrize("model", ["tiny_bottleneck", "tiny_mobilenet"])
def test_positions_have_the_shapes_of_the_branched_network_and_occur_once(captured, model):
    network = captured(model)
    wanted = divided(network.graph, *(part(s, (s.min_depth, s.width), (s.depth, s.width), "project") for s in branchable(network.graph)))
    positions = Sharing(network, [wanted]).positions(wanted)
    parameters = dict(BranchedModel(network.graph, wanted).named_parameters())
    assert {name: tuple(p.shape) for name, p in parameters.items()} == {name: tuple(p.shape) for name, p in positions.items()}
    every = torch.cat([p.flatten() for p in positions.values()])
    assert len(every.unique()) == len(every)


ratios = st.tuples(st.integers(1, 3), st.sampled_from((0.25, 0.5, 1.0)))


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(ratios, ratios)
def test_smaller_branch_uses_a_part_of_the_weights_of_a_larger_one(captured, one, other):
    network = captured("tiny_resnet")
    small = (min(one[0], other[0]), min(one[1], other[1]))
    large = (max(one[0], other[0]), max(one[1], other[1]))
    designs = [design(network.graph, size, (2, 1.0)) for size in (small, large)]
    sharing = Sharing(network, designs)
    inner, outer = (sharing.positions(d) for d in designs)
    for name, positions in inner.items():
        # An entry exists only where the backbone is narrower than its input; joins have separate shares.
        if name in outer and "join_conv" not in name:
            assert set(positions.flatten().tolist()) <= set(outer[name].flatten().tolist())


def test_envelope_holds_every_design_of_a_pool(captured):
    graph = captured("tiny_resnet").graph
    designs = pool(graph)
    upper, lower = envelope(designs, max), envelope(designs, min)
    macs = [scaled_graph(graph, d).macs for d in designs]
    assert scaled_graph(graph, lower).macs <= min(macs)
    assert max(macs) <= scaled_graph(graph, upper).macs


def test_designs_that_cannot_share_weights_are_refused(captured):
    network = captured("tiny_resnet")
    graph, first = network.graph, pool(network.graph)[0]
    shallow, deep = design(graph, (1, 1.0), (2, 1.0)), design(graph, (3, 1.0), (3, 1.0))
    segment = next(s for s in split_segments(graph) if s.name == "s1")
    for designs, reason in (
        ([], "at least one design"),
        ([first, design(graph, (1, 1.0), (2, 1.0), "sum")], "another join"),
        ([design(graph, (1, 1.5), (1, 1.0))], "wider on cpu"),
        ([first, BranchDesign(first.model, "test", first.segments[:-1])], "different points"),
        ([divided(graph, in_bands(segment))], "`s1` joins by `rows`"),
    ):
        with pytest.raises(StretchError, match=reason):
            Sharing(network, designs)
    with pytest.raises(StretchError, match="no weights"):
        Sharing(network, [shallow]).positions(deep)


def step_of(supernet, config, sandwich=None, rank=0, size=1):
    settings = sandwich or SandwichConfig(random=1)
    return SandwichStep(supernet.train(), config, lambda x, generator: x.float(), None, torch.device("cpu"), settings, World(rank, size))


@pytest.mark.slow
def test_gradient_is_the_sum_over_the_sampled_subnets(captured):
    network = captured("tiny_resnet")
    config = TrainConfig(learning_rate=1e-12, momentum=0, nesterov=False, weight_decay=0, channels_last=False)
    supernet = Supernet(network, pool(network.graph))
    step = step_of(supernet, config)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    before = supernet.flat.detach().clone()
    drawn = step.sample()
    step(images, labels)
    flat = before.clone().requires_grad_()
    total, taught = 0.0, None
    for number in drawn:
        subnet = supernet.subnets[number]
        positions = supernet.sharing.positions(subnet.design)
        scores = torch.func.functional_call(subnet.model, {name: flat[p] for name, p in positions.items()}, images)
        if taught is None:
            taught = scores.detach().log_softmax(1)
            total = total + F.cross_entropy(scores, labels)
        else:
            total = total + (taught.exp() * (taught - scores.log_softmax(1))).sum(1).mean()
    total.backward()
    torch.testing.assert_close(supernet.flat.grad, flat.grad, atol=1e-4, rtol=1e-3)


def test_each_process_draws_other_subnets_in_addition_to_the_largest_and_smallest(captured):
    supernet = Supernet(captured("tiny_resnet"), pool(captured("tiny_resnet").graph))
    steps = [step_of(supernet, TrainConfig(), rank=rank, size=4) for rank in range(4)]
    drawn = []
    for count in range(10):
        for step in steps:
            step.count = count
        drawn.append([step.sample() for step in steps])
    assert all(sample[:2] == [0, 1] for row in drawn for sample in row)
    assert {sample[2] for row in drawn for sample in row} == {2, 3, 4}
    assert any(len({sample[2] for sample in row}) > 1 for row in drawn)


@pytest.mark.slow
def test_drawn_designs_differ_and_have_the_requested_cost(captured):
    graph, processors = captured("tiny_resnet").graph, ("cpu", "gpu", "dsp")
    designs = random_designs(graph, specified("mi9"), processors, 4, (0.9, 1.1))
    assert len(set(designs)) == 4
    for drawn in designs:
        assert 0.9 <= scaled_graph(graph, drawn).macs / graph.macs <= 1.1
        assert {p for s in drawn.segments if not s.whole for p in (b.processor for b in s.branches)} == set(processors)


def test_intermediate_designs_stay_within_the_pool(captured):
    graph = captured("tiny_resnet").graph
    pool = random_designs(graph, specified("mi9"), ("cpu", "gpu"), 4, (0.8, 1.2), seed=3)
    result = designs_between(graph, pool, 5, (0.8, 1.2), seed=1)
    assert (len(set(result)), result) == (5, designs_between(graph, pool, 5, (0.8, 1.2), seed=1))
    for drawn in result:
        for number, segment in enumerate(drawn.segments):
            reference = pool[0].segments[number]
            assert (segment.start, segment.end, segment.join) == (reference.start, reference.end, reference.join)
            for index, branch in enumerate(segment.branches):
                rows = [d.segments[number].branches[index] for d in pool]
                assert min(b.depth for b in rows) <= branch.depth <= max(b.depth for b in rows)
                assert min(b.width for b in rows) <= branch.width <= max(b.width for b in rows)


@pytest.mark.slow
def test_fastest_designs_are_those_of_the_planner_and_share_meeting_points():
    graph = small_resnet()
    profile = specified("mi9")
    config = PlanConfig(processors=("cpu", "gpu"), alpha=100.0, beta=5.0, balance=0.01, segment_macs=0.1)
    designs = fastest_designs(graph, profile, config, 2, (0.9, 1.1))
    assert len(set(designs)) == 2
    times = [evaluate(graph, profile, design, config).run.makespan_ms for design in designs]
    assert times == sorted(times)
    best = plan(graph, profile, msgspec.structs.replace(config, macs=(0.9, 1.1))).run.makespan_ms
    assert times[0] >= best - 1e-9
    assert len({tuple((s.start, s.end, s.join) for s in d.segments) for d in designs}) == 1
