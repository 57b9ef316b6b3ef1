from math import prod

import pytest

from predictors.devices import load_device
from predictors.energy import EnergyModel
from predictors.errors import UnknownNameError
from predictors.predictor import LatencyPredictor
from predictors.rewrites import apply_rewrites
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import ideal_split_ms
from stretch.planning.cost.makespan import busy_ms, run_mj, timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import scale_branch
from stretch.planning.network.segments import split_segments
from stretch.planning.plan import plan
from tests.predictors.networks import small_regnet, small_resnet
from tests.predictors.specified import specified, stating
from tests.stretch.designs import whole
from tests.stretch.planning.spaces import LOOSE, waiting

GRAPH = small_resnet()
SEGMENTS = split_segments(GRAPH)
MI9 = LatencyPredictor(specified("mi9"))
COSTS = Costs(MI9, {"cpu": "int8", "gpu": "fp16", "dsp": "int8"})


def design(*parts):
    return BranchDesign(GRAPH.name, "mi9", parts)


def whole_on(processor, costs=COSTS):
    return timeline(GRAPH, design(*(whole(s, processor) for s in SEGMENTS)), costs)


def elements(name):
    return prod(GRAPH.by_name[name].shape)


def test_network_on_one_processor_takes_the_predicted_time_and_transfers_once_in_and_once_out():
    run = whole_on("cpu")
    assert (run.makespan_ms, run.efficiency, run.communication_ms) == pytest.approx((MI9.predict(GRAPH, "cpu").ms, 1, 0))
    assert (run.macs, run.params) == (GRAPH.macs, GRAPH.params)
    run, estimate = whole_on("gpu"), MI9.predict(GRAPH, "gpu")
    moved = COSTS.transfer("cpu", "gpu", elements("input")) + COSTS.transfer("gpu", "cpu", 10)
    assert run.communication_ms == pytest.approx(moved)
    assert run.makespan_ms == pytest.approx(estimate.computing_ms + moved) == pytest.approx(estimate.ms)
    with pytest.raises(UnknownNameError, match="npu"):
        whole_on("npu")


def test_planner_timeline_and_baseline_use_the_profile_rewrites_unless_a_design_states_its_own():
    parts = LatencyPredictor(stating(specified("mi9"), rewrites=("grouped_conv=parts",)))
    graph = small_regnet()
    costs, plain = Costs(parts, COSTS.precision), Costs(MI9, COSTS.precision)
    segment = next(s for s in split_segments(graph) if s.branchable)
    for processor in ("cpu", "gpu", "dsp"):
        one = BranchDesign(graph.name, "mi9", tuple(whole(s, processor) for s in split_segments(graph)))
        run = timeline(graph, one, costs)
        assert run.makespan_ms == pytest.approx(costs.predictor.predict(graph, processor, COSTS.precision[processor]).ms)
        assert busy_ms(run) == pytest.approx(busy_ms(timeline(apply_rewrites(graph, ["grouped_conv=parts"])[0], one, plain)))
        scale = BranchScale(processor, segment.depth, segment.width // 2, align=8)
        branch = scale_branch(segment, SegmentDesign("s1", segment.start, segment.end, (scale,)), 0, segment.in_width)
        cost = costs.branch(segment, processor, scale.depth, scale.width)
        assert cost.ms == pytest.approx(parts.predict(branch.graph, processor, COSTS.precision[processor]).computing_ms)
        assert cost.ms > plain.branch(segment, processor, scale.depth, scale.width).ms


def divided_run(branches, costs):
    """The timeline of a design with one branched segment; every other segment is whole on the host."""
    stem, s1, s2, head = SEGMENTS
    part = SegmentDesign("s1", s1.start, s1.end, tuple(branches), "project")
    return timeline(GRAPH, design(whole(stem, "cpu"), part, whole(s2, "cpu"), whole(head, "cpu")), costs)


def test_branches_overlap_and_the_join_waits_for_the_last():
    s1 = SEGMENTS[1]
    run = divided_run((BranchScale("cpu", 2, 96, partition=96, align=8), BranchScale("gpu", 1, 32, partition=32, align=4)), COSTS)
    row = run.segments[1]
    cpu, gpu = row.branches
    assert (cpu.in_ms, cpu.out_ms) == (0, 0)
    assert gpu.in_ms == COSTS.transfer("cpu", "gpu", elements(s1.start))
    assert gpu.out_ms == COSTS.transfer("gpu", "cpu", elements(s1.end) // 128 * 32)
    assert row.ms == pytest.approx(max(cpu.ms + cpu.contention_ms, gpu.in_ms + gpu.ms + gpu.contention_ms + gpu.out_ms) + row.join_ms)
    assert (row.start_ms, run.segments[2].branches[0].in_ms) == (pytest.approx(run.segments[0].ms), 0)
    assert run.makespan_ms == pytest.approx(sum(r.ms for r in run.segments))
    assert run.efficiency < 1


def test_contention_counts_against_efficiency():
    host = Costs(LatencyPredictor(load_device("host")), {"cpu": "fp32", "gpu": "fp32"})
    run = divided_run((BranchScale(p, 3, 64, partition=64, align=16) for p in ("cpu", "gpu")), host)
    branch, other = run.segments[1].branches
    # contention slows neither kernel launches nor the time before the other branch has its inputs
    launching = sum(kernel.time.launch_ms for kernel in branch.estimate.kernels)
    assert 0 < other.in_ms < branch.ms
    assert branch.contention_ms == pytest.approx((branch.ms - other.in_ms) * (1 - launching / branch.ms) * 0.15)
    assert run.efficiency < 1 - 0.99 * branch.contention_ms / run.makespan_ms


def test_ideal_split_is_the_harmonic_sum():
    times = [MI9.predict(GRAPH, p, COSTS.precision[p]).computing_ms for p in ("cpu", "gpu")]
    assert ideal_split_ms(GRAPH, ("cpu", "gpu"), MI9, COSTS.precision) == pytest.approx(times[0] * times[1] / sum(times))


@pytest.mark.slow
def test_processors_take_power_while_they_compute_and_while_they_wait():
    device = waiting()
    result = plan(small_resnet(96), device, PlanConfig(processors=("cpu", "gpu"), **LOOSE))
    busy = {"cpu": 0.0, "gpu": 0.0}
    for row in result.run.segments:
        for branch in row.branches:
            busy[branch.scale.processor] += branch.ms * branch.contention
    model = EnergyModel(device)
    waited = sum({"cpu": 0.4, "gpu": 0.3}[name] * (result.run.makespan_ms - ms) for name, ms in busy.items())
    idled = 0.1 * result.run.makespan_ms  # the DSP has no work
    assert run_mj(result.run, device) == pytest.approx(sum(model.mj(name, ms) for name, ms in busy.items()) + waited + idled)
    assert result.energy_mj == run_mj(result.run, device)
