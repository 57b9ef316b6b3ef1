"""Threads of queues and how they tell of what they did."""

import threading
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates.null import NullInvocation
from scheduler.placement.place import Placement
from scheduler.runtime.executor import REST_S, Queues
from scheduler.runtime.failures import HangError
from scheduler.runtime.session import again_after_a_hang
from scheduler.runtime.workers import Worker

PLACE = Placement("gpu", "cpu", (), "cpu1", "blocking", True, "")


@pytest.fixture
def queues():
    made = Queues(60.0, lambda name: PLACE)
    made.open(PLACE)
    yield made
    made.close()


def fail():
    raise ValueError("broken")


def test_call_on_a_thread_of_its_own_is_reported_with_its_times(queues):
    ran = []
    queues.submitter("cpu1", ("a", lambda: ran.append(threading.current_thread().name), True))()
    name, error, start, end = queues.wait()
    assert (name, error, ran) == ("a", None, ["nn-stretch cpu1"])
    assert start <= end


def test_enqueued_call_is_waited_for_in_turn_and_a_refusal_is_found(queues):
    class Refusing(NullInvocation):
        def enqueue(self):
            fail()

    queues.enqueue("a", NullInvocation(0.0))
    queues.enqueue("b", NullInvocation(0.0))
    queues.enqueue("c", Refusing(0.0))
    assert [queues.wait()[0] for _ in range(3)] == ["c", "a", "b"]


def test_completions_of_an_interrupted_run_are_forgotten(queues):
    free, seen = threading.Event(), np.zeros(1)
    queues.begin(tuple)
    queues.submitter("cpu1", ("left behind", lambda: (free.wait(60), seen.fill(1)), True))()
    assert not queues.settle(0.01, tuple)
    free.set()
    queues.begin(tuple)  # waits for it
    assert seen[0] == 1
    queues.submitter("cpu1", ("next", lambda: None, True))()
    assert queues.wait()[0] == "next"
    queues.end()
    assert not queues.disturbed


def test_hang_is_raised_wherever_somebody_waits_and_nothing_begins_after_it():
    queues, free = Queues(0.05, lambda name: PLACE), threading.Event()
    queues.open(PLACE)
    queues.begin(tuple)
    queues.submitter("cpu1", ("a", lambda: free.wait(60), True))()
    with pytest.raises(StretchError, match=r"subgraph `a` did not end within 0.05 s"):
        queues.wait()
    with pytest.raises(StretchError, match="did not end"):
        queues.begin(tuple)
    assert not queues.settle(REST_S, tuple)
    free.set()
    queues.close()


def test_steps_handed_together_run_in_order_until_one_raises(queues):
    ran = []
    queues.submitter("cpu1", ("a", lambda: ran.append("a"), False), ("b", fail, False), ("c", lambda: ran.append("c"), True))()
    queues.submitter("cpu1", ("d", lambda: ran.append("d"), True))()
    found = [queues.wait() for _ in range(3)]
    assert [name for name, *_ in found] == ["a", "b", "d"]
    assert [type(error) for _, error, *_ in found] == [type(None), ValueError, type(None)]
    assert ran == ["a", "d"]


@pytest.fixture
def completions():
    return SimpleQueue()


def test_calls_run_in_order_on_one_thread_that_is_not_the_callers(completions):
    seen = []
    worker = Worker("w", (), completions)
    for i in range(5):
        worker.submit(str(i), lambda i=i: seen.append((i, threading.get_ident())))
    names = [completions.get()[0] for _ in range(5)]
    worker.close()
    assert names == ["0", "1", "2", "3", "4"]
    assert [i for i, _ in seen] == [0, 1, 2, 3, 4]
    assert len({ident for _, ident in seen} - {threading.get_ident()}) == 1


def test_what_a_call_raises_is_reported_and_the_next_one_runs(completions):
    def broken():
        raise SystemExit("no")

    worker = Worker("w", (), completions)
    worker.submit("bad", broken)
    worker.submit("good", lambda: None)
    bad, good = completions.get(), completions.get()
    worker.close()
    assert isinstance(bad[1], SystemExit)
    assert good[:2] == ("good", None)
    assert bad[2] <= bad[3] <= good[2]


GPU = Placement("gpu", "cpu", (), "gpu", "blocking", True, "")


def test_other_errors_are_handed_on():
    first = Future()
    found = again_after_a_hang(first, lambda: pytest.fail("there is nothing to try again"))
    first.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        found.result(1)


def test_hang_is_tried_again_on_a_thread_of_its_own():
    first, threads = Future(), []

    def run():
        threads.append(threading.current_thread())
        return 4

    found = again_after_a_hang(first, run)
    first.set_exception(HangError.of("s1.gpu", GPU, 1.0))
    assert found.result(60) == 4
    assert threads != [threading.current_thread()]


def test_second_try_that_fails_is_the_error():
    first = Future()
    found = again_after_a_hang(first, lambda: 1 / 0)
    first.set_exception(HangError.of("s1.gpu", GPU, 1.0))
    with pytest.raises(ZeroDivisionError):
        found.result(60)
