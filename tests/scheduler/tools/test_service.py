"""Requests of a service and of a simulation: their order, their counts and their answers."""

import asyncio
import json
from concurrent.futures import CancelledError
from math import inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler import Demand, Scheduler, Session
from scheduler.answer import read_run_answer, run_answer
from scheduler.checks.verify import compare_with_reference, random_input
from scheduler.delegates import NullDelegate
from scheduler.measure.benchmark import Effort, benchmark, throughput
from scheduler.measure.energy import MeasuredEnergy
from scheduler.simulate.admission import admit
from scheduler.simulate.answer import SimulationRequest, simulate, tracks
from scheduler.simulate.clock import predicted_trace
from scheduler.simulate.scene import Arrivals, Scene
from scheduler.tools.service import DeadlineError, OverloadedError, RequestQueue, Service, ServiceRequest
from tests.predictors.specified import specified
from tests.scheduler.doubles import Gate, numbers, whole
from tests.scheduler.simulate.test_clock import whole as whole_network


@pytest.fixture
def held(bundle_dir):
    """A waiting delegate, and a session with one inference in flight."""
    delegate = Gate()
    with Session(bundle_dir, {"gpu": "null"}, delegates={"null": delegate}, in_flight=1) as result:
        yield delegate, result
        delegate.open.set()


def test_requests_get_their_outputs_from_threads_and_an_event_loop(bundle_dir):
    xs = numbers(shape=(20, 1, 3, 8, 8))

    async def ask(service):
        return await asyncio.gather(*(service.infer(x) for x in xs))

    with Session(bundle_dir) as session, Service(session) as service:
        service.warm_up()
        futures = [service.submit(x, deadline_ms=60_000) for x in xs]
        for x, future, output in zip(xs, futures, asyncio.run(ask(service)), strict=True):
            assert np.allclose(future.result(60), whole(bundle_dir, x), atol=1e-5)
            assert np.allclose(output, whole(bundle_dir, x), atol=1e-5)
    assert service.outcomes()["done"] == 40


def test_most_urgent_request_is_served_first(held):
    delegate, session = held
    ended = []
    with Service(session) as service:
        first = service.submit(numbers())
        delegate.reached.acquire()
        order = {"none": {}, "late": {"deadline_ms": 60_000}, "soon": {"deadline_ms": 30_000}, "first": {"priority": 1}}
        for name, options in order.items():
            service.submit(numbers(), **options).add_done_callback(lambda _, name=name: ended.append(name))
        delegate.open.set()
        first.result(60)
    assert ended == ["first", "soon", "late", "none"]


def test_too_many_requests_are_refused_and_the_others_answered(held):
    delegate, session = held
    with Service(session, waiting=2) as service:
        futures = [service.submit(numbers())]
        delegate.reached.acquire()
        futures += [service.submit(numbers()) for _ in range(2)]
        with pytest.raises(OverloadedError, match="2 requests wait already"):
            service.submit(numbers())
        assert 'outcome="refused"} 1' in service.prometheus()
        assert "nn_stretch_waiting 2" in service.prometheus()
        delegate.open.set()
        assert all(future.result(60) is not None for future in futures)


def test_expired_request_is_not_begun_and_fails_at_once(held):
    delegate, session = held
    with Service(session) as service:
        running = service.submit(numbers())
        delegate.reached.acquire()
        with pytest.raises(DeadlineError, match="before it was begun"):
            service.submit(numbers(), deadline_ms=20).result(60)
        delegate.open.set()
        running.result(60)
    assert service.outcomes() == {"done": 1, "late": 0, "failed": 0, "expired": 1, "refused": 0, "cancelled": 0}


def test_waiting_request_can_be_cancelled_and_close_without_draining_cancels_all(held):
    delegate, session = held
    service = Service(session)
    running = service.submit(numbers())
    delegate.reached.acquire()
    cancelled, waiting = service.submit(numbers()), service.submit(numbers())
    assert cancelled.cancel()
    assert not running.cancel()
    # the running inference ends only after the cancellation
    waiting.add_done_callback(lambda _: delegate.open.set())
    service.close(drain=False)
    assert running.result(0) is not None
    with pytest.raises(CancelledError):
        waiting.result(0)
    assert service.outcomes()["cancelled"] == 2
    with pytest.raises(StretchError, match="closed"):
        service.submit(numbers())
    service.close()


def test_admission_distinguishes_sustainable_rates_from_others(folders):
    null = NullDelegate({"head": 0.02})
    with Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": null}) as scheduler, Service(scheduler) as service:
        admit = service.admit({"a": Demand(2.0, 400), "b": Demand(1.0)})
        assert admit.busy["null:cpu"] >= 0.06
        assert admit.factor >= 1
        with pytest.raises(OverloadedError, match=r"cannot be held: `null:cpu` would have") as caught:
            service.admit({"a": Demand(40.0), "b": Demand(40.0)})
        assert "times these rates are held" in caught.value.hint
        with pytest.raises(OverloadedError, match="without a concurrent workload, more than its deadline of 1 ms"):
            service.admit({"a": Demand(1.0, 1)})


def order(*requests, used=()):
    """Order in which the queue takes requests (model, priority, arrival, deadline)."""
    room, result = {"a": True, "b": True}, []
    waiting = RequestQueue(room, 100)
    for model, seconds in used:
        waiting.add_seconds(model, seconds)
    requests = [ServiceRequest(model, None, *more) for model, *more in requests]
    for first in requests:
        waiting.add(first)
    while (first := waiting.take_next(room)) is not None:
        result.append(requests.index(first))
    return result


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3))))
def test_requests_are_taken_by_priority_then_deadline(pairs):
    result = order(*(("a", priority, float(number), float(deadline)) for number, (priority, deadline) in enumerate(pairs)))
    assert result == sorted(range(len(pairs)), key=lambda item: (-pairs[item][0], pairs[item][1], item))
    # of two models, the model that has used the processors less
    assert order(("a", 0, 0.0, inf), ("b", 0, 1.0, inf), used=[("a", 2.0), ("b", 1.0)]) == [1, 0]


WHOLE = whole_network("a", "cpu", 1.0)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Service, ({},), "no session"),
        (lambda waiting: Service({"a": None}, waiting=waiting), (0,), "0 requests"),
        *((admit, arguments, "distinct names") for arguments in (([WHOLE, WHOLE], [Demand(1), Demand(1)]), ([], []))),
        (admit, ([WHOLE], []), "go together"),
        (Demand, (1, 0.0), "deadline"),
        (Demand, (1, None, 101), "priority"),
    ],
)
def test_invalid_requests_and_options_are_refused(make, arguments, message):
    with pytest.raises(UsageError, match=message):
        make(*arguments)


PIXEL6 = specified("pixel6")


def test_undisturbed_inferences_take_the_planned_time(bundle):
    answer, result = simulate(bundle, PIXEL6, Scene(runs=7, traced=2), SimulationRequest())
    planned = predicted_trace(bundle.manifest, PIXEL6)
    assert answer.makespan_ms == pytest.approx(planned.makespan_ms, abs=1e-6)
    assert [answer.p50_ms, answer.p90_ms, answer.p99_ms, answer.elapsed_ms / 7] == pytest.approx([answer.makespan_ms] * 4)
    assert answer.per_second == pytest.approx(1e3 / answer.makespan_ms)
    assert {name: busy.ms for name, busy in answer.busy.items()} == pytest.approx(planned.busy_ms())
    moved = sum(span.ms for span in planned.spans if span.kind != "subgraph")
    assert answer.communication_ms == pytest.approx(moved, abs=1e-5)
    assert tracks(answer, result) == {"simulated on pixel6": result.traces}
    assert (answer.source, answer.missed, answer.warnings) == ("simulated", None, [])


def test_percentiles_and_missed_deadlines_agree_with_the_latencies(bundle):
    scene = Scene(runs=200, jitter=0.3, arrivals=Arrivals("poisson", 9.0), seed=4)
    answer, result = simulate(bundle, PIXEL6, scene, SimulationRequest(deadline_ms=8.0))
    latencies = sorted(result.latencies_ms)
    assert answer.p50_ms == pytest.approx((latencies[99] + latencies[100]) / 2)
    assert latencies[178] <= answer.p90_ms <= latencies[181]
    assert answer.missed == int((np.array(latencies) > 8).sum()) > 0
    shares, busy_ms = (sum(getattr(busy, key) for busy in answer.busy.values()) for key in ("share", "ms"))
    assert shares == pytest.approx(busy_ms * 200 / answer.elapsed_ms)


def test_sustainable_rates_are_admitted_with_the_busiest_processor():
    result = admit([whole_network("a", "cpu", 4.0), whole_network("b", "gpu", 2.0)], [Demand(100, 20.0), Demand(100, 20.0)])
    assert (result.holds, result.factor, {item.bundle: item.missed for item in result.demands}) == (
        True,
        pytest.approx(2.5),
        {"a": 0, "b": 0},
    )
    assert result.busy == pytest.approx({"cpu0": 0.4, "gpu": 0.2})
    assert "`cpu0`, 40 %" in result.reason


def test_branches_overlap_and_their_join_waits_for_the_slower(bundle):
    def changed_times(manifest, **ms):
        entries = [msgspec.structs.replace(s, predicted_ms=ms.get(s.name.replace(".", "_"), s.predicted_ms)) for s in manifest.subgraphs]
        return predicted_trace(msgspec.structs.replace(manifest, subgraphs=tuple(entries)), PIXEL6)

    result = {span.name: span for span in changed_times(bundle.manifest, s1_gpu=5.0).spans}
    assert result["s1.cpu"].start_ns < result["s1.gpu"].end_ns
    assert result["s1.join"].start_ns == result["s1.gpu out"].end_ns > result["s1.cpu"].end_ns
    assert result["s1.gpu in"].end_ns == result["s1.gpu"].start_ns
    assert changed_times(bundle.manifest, head=None) is None


NOTHING = MeasuredEnergy(None, None, "no counter")


def run(path, in_flight=None, energy=NOTHING, **changes):
    """Answer of a run, and its benchmark."""
    with Session(path, in_flight=in_flight or 1) as session:
        x = random_input(session.bundle)
        result = benchmark(session, x, Effort(3, warmup=0))
        rates = None if in_flight is None else throughput(session, x, in_flight, rounds=1)
        answer = run_answer(session, result, compare_with_reference(session, x), rates, energy)
        return msgspec.structs.replace(answer, warnings=[], **changes), result


def test_busy_time_is_the_sum_of_subgraphs_and_energy_is_measured_or_has_a_reason(bundle_dir):
    for energy in (MeasuredEnergy(2.5, "RAPL: package-0", None), NOTHING):
        answer, result = run(bundle_dir, energy=energy)
        assert (answer.energy_mj, answer.energy_counter, answer.energy_reason) == (energy.mj, energy.counter, energy.reason)
    for name, processor in answer.processors.items():
        assert processor.busy_ms == sorted(trace.busy_ms()[name] for trace in result.traces)[1]
    assert {name: p.stand_in for name, p in answer.processors.items()} == {"cpu": False, "gpu": True}


def test_answer_of_a_board_survives_json_and_an_invalid_one_is_refused(bundle_dir, tmp_path):
    answer, _ = run(bundle_dir, in_flight=2, trace=tmp_path / "trace.json")
    assert read_run_answer(json.loads(json.dumps(msgspec.to_builtins(answer, enc_hook=str)))) == answer
    for message in (None, {}, {"median_ms": "fast"}, []):
        with pytest.raises(StretchError, match="answer of the board"):
            read_run_answer(message)
