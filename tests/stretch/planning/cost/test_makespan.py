"""The timeline adds up as Algorithm 1 of paper 003 runs."""

import pytest

from predictors.devices import load_device
from predictors.errors import UnknownNameError
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import ideal_split_ms, single_ms, timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import split_segments
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

GRAPH = small_resnet()
SEGMENTS = split_segments(GRAPH)
MI9 = LatencyPredictor(specified("mi9"))
COSTS = Costs(MI9, {"cpu": "int8", "gpu": "fp16", "dsp": "int8"})


def whole(segment, processor):
    return SegmentDesign(segment.name, segment.start, segment.end, (BranchScale(processor, segment.depth, segment.width),))


def design(*parts):
    return BranchDesign(GRAPH.name, "mi9", parts)


def elements(name):
    n = 1
    for size in GRAPH.by_name[name].shape:
        n *= size
    return n


def test_whole_network_on_the_host_takes_what_the_predictor_says():
    run = timeline(GRAPH, design(*(whole(s, "cpu") for s in SEGMENTS)), COSTS)
    assert run.makespan_ms == pytest.approx(MI9.predict(GRAPH, "cpu").ms)
    assert run.efficiency == pytest.approx(1)
    assert run.communication_ms == pytest.approx(0)
    assert (run.macs, run.params) == (GRAPH.macs, GRAPH.params)


def test_tensor_moves_once_in_and_once_out_while_one_processor_holds_it():
    run = timeline(GRAPH, design(*(whole(s, "gpu") for s in SEGMENTS)), COSTS)
    moved = COSTS.transfer("cpu", "gpu", elements("input")) + COSTS.transfer("gpu", "cpu", 10)
    assert run.communication_ms == pytest.approx(moved)
    assert run.makespan_ms == pytest.approx(MI9.predict(GRAPH, "gpu").ms + moved)
    assert run.makespan_ms == pytest.approx(single_ms(GRAPH, "gpu", "fp16", COSTS))


def test_branches_overlap_and_the_join_waits_for_the_last():
    stem, s1, s2, head = SEGMENTS
    branches = (BranchScale("cpu", 2, 96, partition=96, align=8), BranchScale("gpu", 1, 32, partition=32, align=4))
    part = SegmentDesign("s1", s1.start, s1.end, branches, "project")
    run = timeline(GRAPH, design(whole(stem, "cpu"), part, whole(s2, "cpu"), whole(head, "cpu")), COSTS)
    row = run.segments[1]
    cpu, gpu = row.branches
    assert (cpu.in_ms, cpu.out_ms) == (0, 0)
    assert gpu.in_ms == COSTS.transfer("cpu", "gpu", elements(s1.start))
    assert gpu.out_ms == COSTS.transfer("gpu", "cpu", elements(s1.end) // 128 * 32)
    assert row.ms == pytest.approx(max(cpu.ms + cpu.contention_ms, gpu.in_ms + gpu.ms + gpu.contention_ms + gpu.out_ms) + row.join_ms)
    assert row.start_ms == pytest.approx(run.segments[0].ms)
    assert run.segments[2].branches[0].in_ms == 0
    assert run.makespan_ms == pytest.approx(sum(r.ms for r in run.segments))
    assert run.efficiency < 1


def test_contention_counts_against_efficiency():
    host = Costs(LatencyPredictor(load_device("host")), {"cpu": "fp32", "gpu": "fp32"})
    stem, s1, s2, head = SEGMENTS
    branches = tuple(BranchScale(p, 3, 64, partition=64, align=16) for p in ("cpu", "gpu"))
    part = SegmentDesign("s1", s1.start, s1.end, branches, "project")
    run = timeline(GRAPH, design(whole(stem, "cpu"), part, whole(s2, "cpu"), whole(head, "cpu")), host)
    branch = run.segments[1].branches[0]
    # starting kernels takes no longer
    launching = sum(kernel.time.launch_ms for kernel in branch.estimate.kernels)
    assert branch.contention_ms == pytest.approx((branch.ms - launching) * 0.15)
    assert run.efficiency < 1 - 0.99 * branch.contention_ms / run.makespan_ms


def test_ideal_split_is_the_harmonic_sum():
    times = [MI9.predict(GRAPH, p, COSTS.precision[p]).ms for p in ("cpu", "gpu")]
    assert ideal_split_ms(GRAPH, ("cpu", "gpu"), MI9, COSTS.precision) == pytest.approx(times[0] * times[1] / sum(times))


def test_processor_that_the_device_lacks_is_refused():
    with pytest.raises(UnknownNameError, match="npu"):
        timeline(GRAPH, design(*(whole(s, "npu") for s in SEGMENTS)), COSTS)
