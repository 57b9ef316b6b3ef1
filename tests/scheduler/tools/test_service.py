"""Requests of a service, their order and what is counted."""

import asyncio
import threading
from concurrent.futures import CancelledError
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler import DeadlineError, Demand, OverloadedError, Scheduler, Service, Session
from scheduler.delegates import NullDelegate
from scheduler.tools.service import ServiceRequest, Waiting
from tests.scheduler.doubles import Gate, numbers, whole


@pytest.fixture
def session(bundle_dir):
    with Session(bundle_dir) as result:
        yield result


@pytest.fixture
def held(bundle_dir):
    """A delegate that waits, and a session with room for one inference at a time."""
    delegate = Gate()
    with Session(bundle_dir, {"gpu": "null"}, delegates={"null": delegate}, in_flight=1) as result:
        yield delegate, result
        delegate.open.set()


def test_requests_get_their_outputs(bundle_dir, session):
    with Service(session) as service:
        service.warm_up()
        xs = numbers(shape=(20, 1, 3, 8, 8))
        futures = [service.submit(x, deadline_ms=60_000) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            assert np.allclose(future.result(60), whole(bundle_dir, x), atol=1e-5)
    assert service.outcomes()["done"] == 20


def test_event_loop_goes_on_meanwhile(bundle_dir, session):
    xs = numbers(shape=(8, 1, 3, 8, 8))

    async def ask(service):
        return await asyncio.gather(*(service.infer(x) for x in xs))

    with Service(session) as service:
        for x, output in zip(xs, asyncio.run(ask(service)), strict=True):
            assert np.allclose(output, whole(bundle_dir, x), atol=1e-5)


def test_the_most_urgent_goes_first(held):
    delegate, session = held
    ended = []
    with Service(session) as service:
        first = service.submit(numbers())
        delegate.reached.acquire()
        for name, options in {
            "none": {},
            "late": {"deadline_ms": 60_000},
            "soon": {"deadline_ms": 30_000},
            "first": {"priority": 1},
        }.items():
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


def test_request_whose_time_is_over_is_not_begun_and_says_so_at_once(held):
    delegate, session = held
    with Service(session) as service:
        running = service.submit(numbers())
        delegate.reached.acquire()
        with pytest.raises(DeadlineError, match="before it was begun"):
            service.submit(numbers(), deadline_ms=20).result(60)
        delegate.open.set()
        running.result(60)
    assert service.outcomes() == {"done": 1, "late": 0, "failed": 0, "expired": 1, "refused": 0, "cancelled": 0}


def test_request_that_waits_can_be_cancelled(held):
    delegate, session = held
    with Service(session) as service:
        running = service.submit(numbers())
        delegate.reached.acquire()
        waiting = service.submit(numbers())
        assert waiting.cancel()
        assert not running.cancel()
        delegate.open.set()
        running.result(60)
    assert service.outcomes()["cancelled"] == 1


def test_close_without_draining_cancels_what_waits_and_waits_for_what_runs(held):
    delegate, session = held
    service = Service(session)
    running = service.submit(numbers())
    delegate.reached.acquire()
    waiting = service.submit(numbers())
    threading.Timer(0.2, delegate.open.set).start()
    service.close(drain=False)
    assert running.result(0) is not None
    with pytest.raises(CancelledError):
        waiting.result(0)
    with pytest.raises(StretchError, match="closed"):
        service.submit(numbers())
    service.close()


@pytest.mark.parametrize("wrong", [{"sessions": {}}, {"waiting": 0}])
def test_service_that_makes_no_sense_is_refused(session, wrong):
    with pytest.raises(UsageError):
        Service(**({"sessions": session} | wrong))


def test_rates_that_can_be_held_are_told_from_those_that_cannot(folders):
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


ROOM = {"a": True, "b": True}


def request(model="a", *, priority=0, arrived=0.0, deadline=inf):
    return ServiceRequest(model, None, priority, arrived, deadline)


def order(requests, used=(), room=ROOM):
    waiting = Waiting(ROOM, 100)
    for model, seconds in used:
        waiting.used(model, seconds)
    for first in requests:
        waiting.add(first)
    result = []
    while (first := waiting.next(room)) is not None:
        result.append(requests.index(first))
    return result


def test_model_that_had_least_of_the_processors_goes_first():
    requests = [request("a", arrived=0), request("b", arrived=1)]
    assert order(requests, used=[("a", 2.0), ("b", 1.0)]) == [1, 0]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3))))
def test_nobody_goes_before_someone_of_higher_priority_or_earlier_deadline(pairs):
    requests = [
        request(priority=priority, arrived=float(number), deadline=float(deadline)) for number, (priority, deadline) in enumerate(pairs)
    ]
    result = order(requests)
    assert sorted(result) == list(range(len(pairs)))
    keys = [(-pairs[item][0], pairs[item][1], item) for item in result]
    assert keys == sorted(keys)
