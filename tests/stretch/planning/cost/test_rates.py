from functools import cache
from itertools import pairwise

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import busiest_ms, occupied_ms, timeline
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.predictors.specified import kept, specified
from tests.stretch.planning.spaces import LOOSE

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from predictors.devices import load_device  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.runtime.plan import make_plan  # noqa: E402
from scheduler.simulate.clock import Clock  # noqa: E402
from scheduler.simulate.networks import Network, device_placements, step_times  # noqa: E402
from scheduler.simulate.scene import Scene  # noqa: E402
from stretch.network.capture.trace import capture_traced  # noqa: E402
from stretch.planning.design.branch_design import DesignDraft, SideDesign  # noqa: E402
from stretch.planning.design.scale import resolve_design  # noqa: E402
from stretch.planning.network.segments import backbone_of  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.stretch.several import networks, shapes  # noqa: E402

GRAPH, MI9 = small_resnet(96), specified("mi9")


@cache
def run():
    result = plan(GRAPH, MI9, PlanConfig(processors=("cpu", "gpu"), **LOOSE))
    return timeline(GRAPH, result.design, Costs(LatencyPredictor(MI9), result.config.precision))


def test_processors_are_occupied_by_branches_and_the_host_by_joins_and_results_come_as_often_as_the_busiest_allows():
    result = occupied_ms(run().segments, "cpu", 0.0)
    branches = [branch for row in run().segments for branch in row.branches]
    assert result["gpu"] == pytest.approx(sum(b.total_ms for b in branches if b.scale.processor == "gpu"))
    joins = sum(row.join_ms for row in run().segments)
    assert joins > 0
    assert result["cpu"] == pytest.approx(joins + sum(b.total_ms for b in branches if b.scale.processor == "cpu"))
    assert busiest_ms(run(), "cpu") <= run().makespan_ms + 1e-9
    occupied = occupied_ms(run().segments, "cpu", run().handover.ms)
    assert sum(occupied.values()) >= run().makespan_ms - run().output_ms - 1e-9


@pytest.mark.torch
@pytest.mark.slow
def test_simulation_of_many_inferences_in_flight_takes_as_long_as_the_busiest_processor(tmp_path):
    import stretch

    config = PlanConfig(processors=("cpu", "gpu"), alpha=100, beta=5, objective="throughput")
    plan_of = stretch.branch("tiny_resnet", kept("mi9"), out=tmp_path / "bundle", weights="none", config=config).plan
    manifest = load_bundle(tmp_path / "bundle").manifest
    runs, lanes = 300, 12
    network = Network("planned", make_plan(manifest), device_placements(manifest, MI9), step_times(manifest, MI9))
    run_result = Clock(network, Scene(runs=runs, in_flight=lanes)).run()
    busiest = busiest_ms(plan_of.run, "cpu")
    assert plan_of.objective.value == pytest.approx(1000 / busiest)
    assert run_result.elapsed_ms >= runs * busiest - 1e-6
    assert run_result.elapsed_ms <= runs * busiest + lanes * plan_of.run.makespan_ms


COSTS = Costs(LatencyPredictor(load_device("mi9")), {"cpu": "fp32", "gpu": "fp16"})
ALIGN = {"cpu": 4, "gpu": 4}


def run_of(graph, places):
    sides = [SideDesign(side.name, places[i % len(places)]) for i, side in enumerate(backbone_of(graph).sides)]
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
    out_ms = 0 if run.sides or len(graph.outputs) > 1 else run.output_ms
    assert run.makespan_ms == pytest.approx(max(b for _, _, b in busy) + out_ms + run.handover.ms)
