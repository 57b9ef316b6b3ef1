import numpy as np
import pytest

from predictors.errors import StretchError, UnknownNameError, UsageError
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


@pytest.mark.parametrize("predicted", [{}, {"makespan_ms": "3", "efficiency": None, "ideal_split_ms": -1.0}])
def test_bundle_that_states_no_figures_has_no_efficiency(bundles, bundle_dir, predicted):
    answer, _ = simulate(edited(bundles, bundle_dir, lambda data: data.update(predicted=predicted)), PIXEL6, Scene(), Request(), [])
    assert answer.efficiency is answer.ideal_split_ms is answer.ideal_fraction is None


def test_subgraphs_without_planned_times_are_named(bundles, bundle_dir):
    def silence(data):
        for entry in data["subgraphs"]:
            entry["predicted_ms"] = None if entry["name"] in ("stem", "head") else entry["predicted_ms"]

    told = []
    answer, _ = simulate(edited(bundles, bundle_dir, silence), PIXEL6, Scene(), Request(), answers := [], told.append)
    assert told == ["the plan states no time of stem, head: predicted from the bundle's files"]
    assert answer.warnings is answers
    assert answer.makespan_ms > 2


def test_bundle_that_takes_no_time_is_refused(bundles, tmp_path):
    def stop(data):
        for entry in data["subgraphs"]:
            entry["predicted_ms"] = 0.0

    builder = bundles.Builder(tmp_path / "b")
    builder.conv("stem", "stem", "cpu", "x", "y", 2)
    bundle = edited(bundles, builder.write("y"), stop)
    with pytest.raises(StretchError, match="are zero, so there is nothing to simulate"):
        simulate(bundle, PIXEL6, Scene(), Request(), [])


def test_load_that_comes_too_late_is_told(bundle):
    answer, _ = simulate(bundle, PIXEL6, Scene(loads=(Load("gpu", 0.5, 1e5, 2e5),)), Request(), [])
    assert answer.warnings == ["the load on gpu begins at 100000 ms, when all inferences have ended"]


def test_load_on_a_processor_that_the_bundle_does_not_use_is_refused(bundle):
    with pytest.raises(UnknownNameError, match="dsp"):
        simulate(bundle, PIXEL6, Scene(loads=(Load("dsp", 0.5, 0, 1),)), Request(), [])


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), float("inf")])
def test_deadline_that_makes_no_sense_is_refused(deadline):
    with pytest.raises(UsageError, match="not positive and finite"):
        Request(deadline_ms=deadline)


def test_more_in_flight_gives_more_a_second_where_processors_were_idle(bundle):
    alone, _ = simulate(bundle, PIXEL6, Scene(runs=50), Request(), [])
    both, _ = simulate(bundle, PIXEL6, Scene(runs=50, in_flight=2), Request(), [])
    assert both.per_second > 1.2 * alone.per_second
    assert both.p50_ms >= alone.p50_ms


def test_timeline_shows_what_others_take_while_inferences_are_traced(bundle):
    loads = (Load("gpu", 0.5, 2, 1e8), Load("cpu", 0.25, 1, 3), Load("cpu", 0.5, 500, 600))
    scene = Scene(runs=100, loads=loads, traced=2, arrivals=Arrivals("poisson", 1.0), seed=1)
    answer, found = simulate(bundle, PIXEL6, scene, Request(), [])
    groups = tracks(answer, found)
    assert groups["simulated on pixel6"] == found.traces
    (taken,) = groups["taken by others"]
    assert (taken.start_ns, taken.end_ns) == (found.traces[0].start_ns, found.traces[1].end_ns)
    assert [(span.name, span.processor, span.kind) for span in taken.spans] == [
        ("0.5 of gpu", "gpu", "load"),
        ("0.25 of cpu", "cpu", "load"),
    ]
    assert [(span.start_ns, span.end_ns) for span in taken.spans] == [
        (max(2_000_000, taken.start_ns), taken.end_ns),
        (max(1_000_000, taken.start_ns), 3_000_000),
    ]
