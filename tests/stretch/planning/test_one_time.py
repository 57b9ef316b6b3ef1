"""A network on one processor has the same time in predictions, plans, advice, searches and simulations."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import list_devices, load_device
from predictors.host import is_host
from predictors.predictor import LatencyPredictor
from scheduler.bundle.manifest import SCHEMA, Manifest, ModelInfo, SubgraphEntry, Tensor, WeightsInfo
from scheduler.runtime.plan import make_plan
from scheduler.simulate.clock import Clock, predicted_trace
from scheduler.simulate.networks import Network, device_placements, step_times
from scheduler.simulate.scene import Scene
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import single_run
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import split_segments
from stretch.planning.pareto import front
from stretch.planning.plan import plan
from stretch.planning.result import ranked_singles, variants
from stretch.stages.advise import advise
from stretch.stages.predict import predict_latency
from stretch.stages.together import single_network
from tests.effort import examples
from tests.predictors.networks import Net, small_resnet

DEVICES = {name: load_device(name) for name in list_devices()}


@st.composite
def chains(draw):
    """A few convolutions, with or without a classifier at the end."""
    size = draw(st.sampled_from((8, 32, 96)))
    net = Net(1, 3, size, size)
    for channels in draw(st.lists(st.sampled_from((8, 24, 64)), min_size=1, max_size=4)):
        net.conv(channels, 3)
    if draw(st.booleans()):
        net.head(10)
    return net.graph("chain")


def whole_bundle(graph, device, processor, precision, ms):
    """A bundle of one subgraph."""
    names = graph.input.name, graph.output
    shapes = graph.input.shape, graph.by_name[graph.output].shape
    ends = ("input", ("all",)), ("all", ("output",))
    tensors = tuple(Tensor(name, shape, *end) for name, shape, end in zip(names, shapes, ends, strict=True))
    entry = SubgraphEntry(
        "all", "all", processor, "all.onnx", names[:1], names[1:], graph.macs, planned_precision=precision, predicted_ms=ms
    )
    info = ModelInfo(graph.name, *shapes, graph.macs, graph.params, graph.macs, graph.params)
    parts = {"inputs": names[:1], "outputs": names[1:], "tensors": tensors, "subgraphs": (entry,), "joins": (), "whole": "all.onnx"}
    rest = {key: {} for key in ("design", "controls", "control_macs", "predicted", "checks", "files")}
    weights = WeightsInfo("random")
    return Manifest(SCHEMA, "0", info, device.id, False, weights, recommended="branched", **parts, **rest)


@settings(max_examples=examples(60))
@given(chains(), st.sampled_from(sorted(DEVICES)), st.randoms(use_true_random=False))
def test_network_on_one_processor_takes_the_same_time_everywhere(graph, name, random):
    device = DEVICES[name]
    predictor = LatencyPredictor(device)
    costs = Costs(predictor, {family: profile.default_precision for family, profile in device.processors.items()})
    processor, precision = random.choice(variants(costs, tuple(device.processors)))
    estimate = predictor.predict(graph, processor, precision)
    expected = pytest.approx(estimate.ms, rel=1e-9)
    alone = costs.replace_precision(processor, precision)
    parts = tuple(SegmentDesign(s.name, s.start, s.end, (BranchScale(processor, s.depth, s.width),)) for s in split_segments(graph))
    assert predict_latency("chain", graph, device, (processor,), precision).processors[processor].latency_ms == estimate.ms
    assert timeline(graph, BranchDesign(graph.name, device.id, parts), alone).makespan_ms == expected
    ranked = {(row.processor, row.precision): row for row in ranked_singles(graph, costs, tuple(device.processors))}
    single = ranked[processor, precision]
    assert (single.ms, single_run(single, device).ms()) == (estimate.ms, expected)
    # simulated, as a bundle and as one of several networks
    bundle = whole_bundle(graph, device, processor, precision, estimate.computing_ms)
    assert predicted_trace(bundle, device).makespan_ms == pytest.approx(estimate.ms, abs=2e-6)
    network = Network("whole", make_plan(bundle), device_placements(bundle, device), step_times(bundle, device))
    assert Clock(network, Scene()).run().latencies_ms == (expected,)
    assert Clock(single_network("whole", single, device), Scene()).run().latencies_ms == (expected,)


@settings(max_examples=examples(60))
@given(chains(), st.sampled_from(sorted(DEVICES)))
def test_transfer_takes_the_measured_constant_or_the_time_over_the_link(graph, name):
    predictor = LatencyPredictor(DEVICES[name])
    for processor in DEVICES[name].variants:
        estimate = predictor.predict(graph, processor)
        dtype, links = estimate.precision, predictor.links
        sizes = prod(graph.input.shape), prod(graph.by_name[graph.output].shape)
        moved = links.ms("cpu", processor, sizes[0], dtype) + links.ms(processor, "cpu", sizes[1], dtype)
        constant = predictor._model(processor, dtype).inference_ms()
        with_data = predictor._model(processor, dtype).inference_ms(sum(sizes))
        assert estimate.handover_ms == pytest.approx(with_data or moved)
        # no exchange of a plan takes less than that constant
        assert is_host(processor) or links.ms("cpu", processor, 0, dtype) + links.ms(processor, "cpu", 0, dtype) >= constant * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", [name for name in DEVICES if len(DEVICES[name].processors) > 1][::5])
def test_plan_advice_and_search_state_the_predicted_time(name):
    device, graph = DEVICES[name], small_resnet(64)
    (answer,) = advise("small", graph, [device]).answers
    best = answer.best_single
    assert best.ms == LatencyPredictor(device).predict(graph, best.processor, best.precision).ms
    # rules that are loose enough for branches in any network
    result = plan(graph, device, PlanConfig(alpha=100, beta=100, balance=0.01))
    searched = front(graph, device, PlanConfig(alpha=100, beta=100, balance=0.01), ("latency", "macs"), 2)
    single = result.best_single
    found = searched.best_single_processor, searched.best_single_precision, searched.best_single_ms
    for processor, precision, ms in ((single.processor, single.precision, single.ms), found):
        assert ms == LatencyPredictor(device).predict(graph, processor, precision).ms
    precisions = result.config.precision
    whole = min(LatencyPredictor(device).predict(graph, processor, precision).ms for processor, precision in precisions.items())
    assert result.operator_split.makespan_ms <= whole * (1 + 1e-9)
