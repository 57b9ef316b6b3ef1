"""How long an inference occupies each processor."""

from functools import cache

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.cost.rates import busiest_ms, last_holder, most_occupied_ms, occupied_ms
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.predictors.specified import kept, specified
from tests.stretch.planning.spaces import LOOSE

GRAPH, MI9 = small_resnet(96), specified("mi9")


@cache
def run():
    result = plan(GRAPH, MI9, PlanConfig(processors=("cpu", "gpu"), **LOOSE))
    return timeline(GRAPH, result.design, Costs(LatencyPredictor(MI9), result.config.precision))


def test_processors_are_occupied_by_branches_with_their_transfers_and_the_host_by_joins():
    found = occupied_ms(run().segments, "cpu")
    branches = [branch for row in run().segments for branch in row.branches]
    assert found["gpu"] == pytest.approx(sum(b.total_ms for b in branches if b.scale.processor == "gpu"))
    joins = sum(row.join_ms for row in run().segments)
    assert joins > 0
    assert found["cpu"] == pytest.approx(joins + sum(b.total_ms for b in branches if b.scale.processor == "cpu"))


def test_with_many_in_flight_results_come_at_least_as_often_as_one_after_the_other():
    assert busiest_ms(run(), "cpu") <= run().makespan_ms + 1e-9
    assert sum(occupied_ms(run().segments, "cpu").values()) >= run().makespan_ms - run().output_ms - 1e-9


def test_processor_that_holds_the_output_hands_it_over():
    assert last_holder(run(), "cpu") in ("cpu", "gpu")
    assert most_occupied_ms({}) == 0.0


@pytest.mark.torch
def test_simulation_of_many_inferences_in_flight_takes_as_long_as_the_busiest_processor(tmp_path):
    pytest.importorskip("torch")
    import stretch
    from scheduler.bundle.load import load_bundle
    from scheduler.runtime.plan import make_plan
    from scheduler.simulate.clock import Clock
    from scheduler.simulate.networks import Network
    from scheduler.simulate.scene import Scene
    from scheduler.simulate.times import device_placements, step_times

    config = PlanConfig(processors=("cpu", "gpu"), alpha=5, beta=5, objective="throughput")
    plan_of = stretch.branch("tiny_resnet", kept("mi9"), out=tmp_path / "bundle", weights="none", config=config).plan
    manifest = load_bundle(tmp_path / "bundle").manifest
    runs, lanes = 300, 12
    network = Network("planned", make_plan(manifest), device_placements(manifest, MI9), step_times(manifest, MI9))
    found = Clock(network, Scene(runs=runs, in_flight=lanes)).run()
    busiest = busiest_ms(plan_of.run, "cpu")
    assert plan_of.objective.value == pytest.approx(1000 / busiest)
    assert found.elapsed_ms >= runs * busiest - 1e-6
    assert found.elapsed_ms <= runs * busiest + lanes * plan_of.run.makespan_ms
