"""The operator-split control is a design like any other: exact, buildable, and as fast as it is said to be."""

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import ideal_split_ms, single_ms, timeline
from stretch.planning.network.segments import split_segments
from stretch.planning.search.operator_split import operator_split
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified


def setup(device, processors=()):
    profile = specified(device)
    config = PlanConfig(processors=processors).checked(profile)
    return config.processors, Costs(LatencyPredictor(profile), config.precision)


def split(graph, device, processors=()):
    processors, costs = setup(device, processors)
    return operator_split(graph, split_segments(graph), costs, processors), processors, costs


@pytest.mark.slow
@pytest.mark.parametrize("device", ["host", "mi9", "pixel6"])
def test_time_lies_between_the_ideal_and_never_splitting(device):
    graph = resnet50()
    found, processors, costs = split(graph, device)
    assert ideal_split_ms(graph, processors, costs.predictor, costs.precision) < found.ms
    assert found.ms <= min(single_ms(graph, p, costs.precision[p], costs) for p in processors) + 1e-9


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_design_is_exact_and_takes_the_time_that_is_stated(processors):
    graph = small_resnet(64)
    found, _, costs = split(graph, "mi9", processors)
    run = timeline(graph, found.design, costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs - run.halo_macs == graph.macs
    assert run.params == graph.params
    assert {part.join for part in found.design.segments} <= {"none", "rows"}
