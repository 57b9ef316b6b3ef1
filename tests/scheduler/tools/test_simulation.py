"""What a simulation answers."""

import msgspec
import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.simulate.clock import predicted_trace
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Arrivals, Scene
from scheduler.tools.admission import Demand, admit
from scheduler.tools.simulation import SimulationRequest, simulate, tracks
from tests.predictors.specified import specified
from tests.scheduler.simulate.plans import single

PIXEL6 = specified("pixel6")


def test_undisturbed_inferences_all_take_what_the_plan_says(bundle):
    answer, result = simulate(bundle, PIXEL6, Scene(runs=7, traced=2), SimulationRequest())
    planned = predicted_trace(bundle.manifest, PIXEL6)
    assert answer.makespan_ms == pytest.approx(planned.makespan_ms, abs=1e-6)
    assert [answer.p50_ms, answer.p90_ms, answer.p99_ms] == pytest.approx([answer.makespan_ms] * 3)
    assert answer.elapsed_ms == pytest.approx(7 * answer.makespan_ms)
    assert answer.per_second == pytest.approx(1e3 / answer.makespan_ms)
    assert {name: busy.ms for name, busy in answer.busy.items()} == pytest.approx(planned.busy_ms())
    moved = sum(span.ms for span in planned.spans if span.kind != "subgraph")
    assert answer.communication_ms == pytest.approx(moved, abs=1e-5)
    assert tracks(answer, result) == {"simulated on pixel6": result.traces}
    assert (answer.source, answer.missed, answer.warnings) == ("simulated", None, [])


def test_percentiles_and_missed_deadlines_are_those_of_the_latencies(bundle):
    scene = Scene(runs=200, jitter=0.3, arrivals=Arrivals("poisson", 9.0), seed=4)
    answer, result = simulate(bundle, PIXEL6, scene, SimulationRequest(deadline_ms=8.0))
    latencies = sorted(result.latencies_ms)
    assert answer.p50_ms == pytest.approx((latencies[99] + latencies[100]) / 2)
    assert latencies[178] <= answer.p90_ms <= latencies[181]
    assert answer.missed == int((np.array(latencies) > 8).sum()) > 0
    assert sum(busy.share for busy in answer.busy.values()) == pytest.approx(
        sum(busy.ms for busy in answer.busy.values()) * 200 / answer.elapsed_ms
    )


def whole(name, processor, ms):
    return Network(name, *single(processor, ms))


def test_rates_that_leave_time_are_held_and_the_busiest_processor_is_named():
    result = admit([whole("a", "cpu", 4.0), whole("b", "gpu", 2.0)], [Demand(100, 20.0), Demand(100, 20.0)])
    assert result.holds
    assert result.busy == pytest.approx({"cpu0": 0.4, "gpu": 0.2})
    assert "the busiest is `cpu0`, 40 %" in result.reason
    assert result.factor == pytest.approx(2.5)
    assert {name: item.missed for name, item in result.kept.items()} == {"a": 0, "b": 0}


def test_deadline_that_the_network_alone_misses_is_refused_and_named():
    result = admit([whole("a", "cpu", 6.0)], [Demand(10, 5.0)])
    assert not result.holds
    assert result.reason == "an inference of `a` takes 6.00 ms without a concurrent workload, more than its deadline of 5 ms"
    assert result.factor == 0


@pytest.mark.slow
def test_a_hundred_per_second_for_the_first_does_not_starve_the_rare_one():
    result = admit([whole("often", "cpu", 5.0), whole("rare", "cpu", 20.0)], [Demand(100, 40.0), Demand(2, 300.0)])
    assert result.holds
    assert result.kept["rare"].requests >= 90


def test_what_makes_no_sense_is_refused():
    current = whole("a", "cpu", 1.0)
    with pytest.raises(UsageError, match="distinct names"):
        admit([current, current], [Demand(1), Demand(1)])
    with pytest.raises(UsageError, match="distinct names"):
        admit([], [])
    with pytest.raises(UsageError, match="do not go together"):
        admit([current], [])
    with pytest.raises(UsageError, match="deadline"):
        Demand(1, 0.0)
    with pytest.raises(UsageError, match="priority"):
        Demand(1, priority=101)


def spans(trace):
    return {span.name: span for span in trace.spans}


def test_branches_overlap_and_the_meeting_point_waits_for_the_slower(bundle):
    manifest = bundle.manifest
    slow = tuple(msgspec.structs.replace(s, predicted_ms=5.0) if s.name == "s1.gpu" else s for s in manifest.subgraphs)
    result = spans(predicted_trace(msgspec.structs.replace(manifest, subgraphs=slow), specified("pixel6")))
    assert result["s1.cpu"].start_ns < result["s1.gpu"].end_ns
    assert result["s1.join"].start_ns == result["s1.gpu out"].end_ns > result["s1.cpu"].end_ns
    assert result["s1.gpu in"].end_ns == result["s1.gpu"].start_ns


def test_bundle_without_predicted_times_has_no_predicted_trace(bundle):
    manifest = bundle.manifest
    unknown = tuple(msgspec.structs.replace(s, predicted_ms=None) if s.name == "head" else s for s in manifest.subgraphs)
    assert predicted_trace(msgspec.structs.replace(manifest, subgraphs=unknown), specified("pixel6")) is None
