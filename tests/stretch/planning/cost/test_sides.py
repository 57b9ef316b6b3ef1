from itertools import pairwise

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from predictors.devices import load_device  # noqa: E402
from stretch.network.capture.trace import capture_traced  # noqa: E402
from stretch.planning.design.branch_design import DesignDraft, SideDesign  # noqa: E402
from stretch.planning.design.scale import resolve_design  # noqa: E402
from stretch.planning.network.segments import backbone_of  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.stretch.several import networks, shapes  # noqa: E402

COSTS = Costs(LatencyPredictor(load_device("mi9")), {"cpu": "fp32", "gpu": "fp16"})
ALIGN = {"cpu": 4, "gpu": 4}


def run_of(graph, places):
    sides = [SideDesign(side.name, places[i % len(places)]) for i, side in enumerate(backbone_of(graph).sides)]
    return timeline(graph, resolve_design(DesignDraft([], sides=sides), graph, "mi9", ALIGN, "cpu"), COSTS)


@pytest.mark.slow
@given(networks(), st.lists(st.sampled_from(["cpu", "gpu"]), min_size=1, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_part_starts_after_its_inputs_and_alone_on_its_processor(module, places):
    graph = capture_traced(module, shapes(module)).graph
    run = run_of(graph, places)
    written = {op.name: 0.0 for op in graph.inputs}
    busy = []
    for row in run.segments:
        start = row.start_ms + row.branches[0].start_ms
        written[row.design.end] = start + row.branches[0].total_ms
        busy.append((row.branches[0].scale.processor, start, written[row.design.end]))
    for side, time in run.sides:
        written.update(dict.fromkeys(side.outputs, time.start_ms + time.total_ms))
        busy.append((time.scale.processor, time.start_ms, time.start_ms + time.total_ms))
    for row in run.segments:
        assert row.start_ms + row.branches[0].start_ms >= written[row.design.start] - 1e-9
    for side, time in run.sides:
        assert all(time.start_ms >= written[op.name] - 1e-9 for op in side.inputs)
    for processor in ("cpu", "gpu"):
        spans = sorted((a, b) for place, a, b in busy if place == processor)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))
    out_ms = 0 if run.sides or len(graph.outputs) > 1 else run.output_ms
    assert run.makespan_ms == pytest.approx(max(b for _, _, b in busy) + out_ms + run.handover.ms)
