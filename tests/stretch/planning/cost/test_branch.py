"""Costs of branches equal the prediction of the operators that are built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.scale import scale_branch
from stretch.planning.design.widths import legal_widths
from stretch.planning.network.segments import split_segments
from tests.predictors.networks import efficientnet_b5, resnet50, small_resnet
from tests.predictors.specified import specified

MI9 = LatencyPredictor(specified("mi9"))
COSTS = Costs(MI9, {"cpu": "int8", "gpu": "fp16", "dsp": "int8"})
STAGES = [s for graph in (resnet50(), efficientnet_b5(), small_resnet()) for s in split_segments(graph) if s.branchable]


def built(segment, processor, depth, width, entry, channels, join="concat", partition=0):
    scale = BranchScale(processor, depth, width, entry, partition, COSTS.align(processor))
    others = (BranchScale("other", depth, width, entry, segment.width - partition),) if partition else ()
    return scale_branch(segment, SegmentDesign(segment.name, segment.start, segment.end, (scale, *others), join), 0, channels).graph


@given(st.data(), st.sampled_from(STAGES), st.sampled_from(["cpu", "gpu", "dsp"]))
def test_branch_costs_what_its_built_operators_cost(data, segment, processor):
    width = data.draw(st.sampled_from(legal_widths(segment, COSTS.align(processor))))
    depth = data.draw(st.integers(segment.min_depth, segment.depth))
    cost = COSTS.branch(segment, processor, depth, width)
    graph = built(segment, processor, depth, width, cost.entry, segment.in_width)
    assert (cost.macs, cost.params) == (graph.macs, graph.params)
    estimate = MI9.predict(graph, processor)
    assert (cost.ms, cost.contended_ms) == (pytest.approx(estimate.computing_ms), pytest.approx(estimate.contended_ms))


@given(st.data(), st.sampled_from([s for s in STAGES if s.dense_input]), st.sampled_from(["cpu", "gpu", "dsp"]))
def test_branch_with_other_arriving_channels_costs_what_its_built_operators_cost(data, segment, processor):
    width = data.draw(st.sampled_from(legal_widths(segment, COSTS.align(processor))))
    channels = data.draw(st.integers(1, 2 * segment.in_width))
    cost = COSTS.branch(segment, processor, segment.depth, width, channels)
    graph = built(segment, processor, segment.depth, width, cost.entry, channels)
    estimate = MI9.predict(graph, processor)
    assert (cost.macs, cost.params) == (graph.macs, graph.params)
    assert (cost.ms, cost.contended_ms) == (pytest.approx(estimate.computing_ms), pytest.approx(estimate.contended_ms))


@pytest.mark.parametrize("processor", ["cpu", "gpu", "dsp"])
def test_join_convolution_costs_what_its_built_operator_costs(processor):
    segment = STAGES[2]
    graph = built(segment, processor, 4, 512, "none", segment.in_width, "project", 256)
    branch = COSTS.branch(segment, processor, 4, 512)
    ((macs, ms, params),) = COSTS.join_convs(segment, processor, [(512, 256)])
    assert (branch.macs + macs, branch.params + params) == (graph.macs, graph.params)
    assert branch.contended_ms + ms == pytest.approx(MI9.predict(graph, processor).contended_ms)


def test_concatenation_is_free_where_channels_are_the_slowest_axis_and_a_copy_elsewhere():
    host = Costs(LatencyPredictor(load_device("host")), {"cpu": "fp32", "gpu": "fp32"})
    segment = STAGES[0]
    assert host.join(segment, "project", segment.width, 2) == 0
    assert host.join(segment, "sum", segment.width, 2) > 0
    assert COSTS.join(segment, "project", segment.width, 2) > 0
    assert COSTS.join(segment, "sum", segment.width, 3) > COSTS.join(segment, "sum", segment.width, 2)
    assert COSTS.join(segment, "none", segment.width, 1) == 0


def test_transfer_is_costed_in_the_precision_of_the_processor_that_is_not_the_cpu():
    links, elements = MI9.links, 10**6
    assert COSTS.transfer("cpu", "gpu", elements) == links.ms("cpu", "gpu", elements, "fp16")
    assert COSTS.transfer("dsp", "cpu", elements) == links.ms("dsp", "cpu", elements, "int8")
