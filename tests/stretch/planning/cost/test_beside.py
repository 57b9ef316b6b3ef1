from itertools import pairwise

import pytest

pytest.importorskip("torch")
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.capture.trace import capture_traced
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import DesignDraft, SideDraft
from stretch.planning.design.resolve import resolve_design
from stretch.planning.network.trunk import trunk_of
from tests.effort import examples
from tests.stretch.several import networks, shapes

pytestmark = pytest.mark.torch

COSTS = Costs(LatencyPredictor(load_device("mi9")), {"cpu": "fp32", "gpu": "fp16"})
ALIGN = {"cpu": 4, "gpu": 4}


def run_of(graph, places):
    sides = [SideDraft(side.name, places[i % len(places)]) for i, side in enumerate(trunk_of(graph).sides)]
    return timeline(graph, resolve_design(DesignDraft([], sides=sides), graph, "mi9", ALIGN, "cpu"), COSTS)


@pytest.mark.slow
@given(networks(), st.lists(st.sampled_from(["cpu", "gpu"]), min_size=1, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_nothing_starts_before_what_it_reads_nor_beside_another_on_its_processor(module, places):
    graph = capture_traced(module, shapes(module)).graph
    run = run_of(graph, places)
    written = {op.name: 0.0 for op in graph.inputs}
    busy = []
    for row in run.segments:
        start = row.start_ms + row.branches[0].start_ms
        written[row.design.end] = start + row.branches[0].total_ms
        busy.append((row.branches[0].scale.processor, start, written[row.design.end]))
    for side in run.sides:
        written.update(dict.fromkeys(side.graph.outputs, side.end_ms))
        busy.append((side.time.scale.processor, side.time.start_ms, side.end_ms))
    for row in run.segments:
        assert row.start_ms + row.branches[0].start_ms >= written[row.design.start] - 1e-9
    for side in run.sides:
        assert all(side.time.start_ms >= written[op.name] - 1e-9 for op in side.graph.inputs)
    for processor in ("cpu", "gpu"):
        spans = sorted((a, b) for place, a, b in busy if place == processor)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))
    assert run.makespan_ms == pytest.approx(max(b for _, _, b in busy) + (0 if run.sides or len(graph.outputs) > 1 else run.output_ms))
