from dataclasses import replace
from itertools import product

import pytest

pytest.importorskip("torch")
from hypothesis import assume, given, settings

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.network.capture.trace import capture_traced
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import DesignDraft, SideDesign
from stretch.planning.design.scale import resolve_design
from stretch.planning.result import place_sides, sides_on
from tests.effort import examples
from tests.stretch.several import networks, shapes

pytestmark = pytest.mark.torch

COSTS = Costs(LatencyPredictor(load_device("mi9")), {"cpu": "fp32", "gpu": "fp16"})
PROCESSORS = ("cpu", "gpu")


@given(networks())
@settings(max_examples=examples(20), deadline=None)
def test_placement_is_no_slower_than_one_processor_and_no_single_move_makes_it_faster(module):
    graph = capture_traced(module, shapes(module)).graph
    design = resolve_design(DesignDraft([]), graph, "mi9", {"cpu": 4, "gpu": 4}, "cpu")
    placed = place_sides(graph, design, COSTS, PROCESSORS)
    assume(0 < len(placed.sides) <= 5)
    ms = timeline(graph, placed, COSTS).makespan_ms
    for processor in PROCESSORS:
        assert ms <= timeline(graph, replace(design, sides=sides_on(graph, processor)), COSTS).makespan_ms + 1e-9
    for i, processor in product(range(len(placed.sides)), PROCESSORS):
        moved = (*placed.sides[:i], SideDesign(placed.sides[i].name, processor), *placed.sides[i + 1 :])
        assert ms <= timeline(graph, replace(placed, sides=moved), COSTS).makespan_ms + 1e-9


def test_network_without_sides_keeps_its_design(captured):
    graph = captured("tiny_resnet").graph
    design = resolve_design(DesignDraft([]), graph, "mi9", {"cpu": 4, "gpu": 4}, "cpu")
    assert place_sides(graph, design, COSTS, PROCESSORS) is design
