import numpy as np
import pytest

from scheduler.bundle.load import load_bundle
from scheduler.simulate.answer import Request, simulate, tracks
from scheduler.simulate.arrivals import Arrivals
from scheduler.simulate.load import Load
from scheduler.simulate.predicted import predicted_trace
from scheduler.simulate.scene import Scene
from tests.predictors.specified import specified

PIXEL6 = specified("pixel6")


@pytest.fixture
def bundle(bundle_dir):
    return load_bundle(bundle_dir)


def edited(bundles, bundle_dir, change):
    """The bundle after a change to its manifest."""
    bundles.edit(bundle_dir, change)
    return load_bundle(bundle_dir)


def test_undisturbed_inferences_all_take_what_the_plan_says(bundle):
    answer, found = simulate(bundle, PIXEL6, Scene(runs=7, traced=2), Request(), [])
    planned = predicted_trace(bundle.manifest, PIXEL6)
    assert answer.makespan_ms == pytest.approx(planned.makespan_ms, abs=1e-6)
    assert [answer.p50_ms, answer.p90_ms, answer.p99_ms] == pytest.approx([answer.makespan_ms] * 3)
    assert answer.elapsed_ms == pytest.approx(7 * answer.makespan_ms)
    assert answer.per_second == pytest.approx(1e3 / answer.makespan_ms)
    assert {name: busy.ms for name, busy in answer.busy.items()} == pytest.approx(planned.busy_ms())
    moved = sum(span.ms for span in planned.spans if span.kind != "subgraph")
    assert answer.communication_ms == pytest.approx(moved, abs=1e-5)
    assert tracks(answer, found) == {"simulated on pixel6": found.traces}
    assert (answer.source, answer.missed, answer.warnings) == ("simulated", None, [])


def test_percentiles_and_missed_deadlines_are_those_of_the_latencies(bundle):
    scene = Scene(runs=200, jitter=0.3, arrivals=Arrivals("poisson", 9.0), seed=4)
    answer, found = simulate(bundle, PIXEL6, scene, Request(deadline_ms=8.0), [])
    latencies = sorted(found.latencies_ms)
    assert answer.p50_ms == pytest.approx((latencies[99] + latencies[100]) / 2)
    assert latencies[178] <= answer.p90_ms <= latencies[181]
    assert answer.missed == int((np.array(latencies) > 8).sum()) > 0
    assert sum(busy.share for busy in answer.busy.values()) == pytest.approx(
        sum(busy.ms for busy in answer.busy.values()) * 200 / answer.elapsed_ms
    )


def test_efficiency_is_the_plans_where_nothing_disturbs_and_falls_with_latency(bundles, bundle_dir):
    planned = predicted_trace(load_bundle(bundle_dir).manifest, PIXEL6).makespan_ms
    figures = {"makespan_ms": planned, "efficiency": 0.8, "ideal_split_ms": planned / 2}
    bundle = edited(bundles, bundle_dir, lambda data: data.update(predicted=figures))
    calm, _ = simulate(bundle, PIXEL6, Scene(), Request(), [])
    assert (calm.efficiency, calm.ideal_fraction) == pytest.approx((0.8, 0.5), rel=1e-5)
    assert calm.ideal_split_ms == planned / 2
    slowed, _ = simulate(bundle, PIXEL6, Scene(loads=(Load("cpu", 0.5, 0, 1e6),)), Request(), [])
    assert slowed.efficiency == pytest.approx(0.8 * planned / slowed.p50_ms, rel=1e-5)
