"""Threads of queues and how they tell of what they did."""

import threading
from concurrent.futures import Future
from queue import Empty

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.delegates.null import NullInvocation
from scheduler.placement.place import Placement
from scheduler.runtime.executor import REST_S, Queues
from scheduler.runtime.failures import HangError
from scheduler.runtime.mailbox import KEPT, LEAST, LONG_NS, SPIN_NS, WAKE_NS, Expectation, Mailbox
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
    return Mailbox()


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


def test_thread_that_is_woken_early_runs_nothing(completions):
    worker = Worker("w", (), completions)
    worker.wake()
    worker.submit("a", lambda: None)
    assert completions.get()[0] == "a"
    worker.close()
    assert completions.qsize() == 0


WAITS = st.lists(st.integers(0, 2 * LONG_NS), max_size=3 * KEPT)


def expecting(*waits):
    found = Expectation()
    for ns in waits:
        found.add(ns)
    return found


@given(WAITS)
def test_no_spin_is_longer_than_allowed_and_none_begins_before_the_wait(waits):
    rest, spin = expecting(*waits).advice
    assert 0 <= spin <= SPIN_NS
    assert rest >= 0
    assert spin > 0 or rest == 0
    if len(waits) < LEAST:
        assert (rest, spin) == (0, 0)


@given(st.integers(0, LONG_NS))
def test_wait_that_is_always_the_same_ends_in_the_spin_or_is_slept_through(ns):
    rest, spin = expecting(*[ns] * KEPT).advice
    assert spin == 0 or rest <= ns <= rest + spin


def test_long_wait_is_slept_until_shortly_before_its_end():
    rest, spin = expecting(*[10_000_000] * LEAST).advice
    assert rest == 10_000_000 - WAKE_NS
    assert spin == 2 * WAKE_NS


def test_one_wait_that_is_far_from_the_others_changes_nothing():
    usual = expecting(*[10_000_000] * KEPT).advice
    assert expecting(*[10_000_000] * (KEPT - 1), 90_000_000).advice == usual
    assert expecting(*[10_000_000] * (KEPT - 1), 0).advice == usual


def test_waits_that_are_all_over_the_place_are_slept_through():
    assert expecting(*range(0, 80_000_000, 10_000_000)).advice == (0, 0)


def test_only_the_last_waits_count():
    assert expecting(*[90_000_000] * KEPT, *[5_000_000] * KEPT).advice == expecting(*[5_000_000] * KEPT).advice


@pytest.fixture(params=[False, True], ids=["sleeps", "spins"])
def mailbox(request):
    return Mailbox(spins=request.param)


def test_items_come_in_order(mailbox):
    for each in range(5):
        mailbox.put(each)
    assert mailbox.qsize() == 5
    assert [mailbox.get("a") for _ in range(4)] == [0, 1, 2, 3]
    assert mailbox.get_nowait() == 4
    with pytest.raises(Empty):
        mailbox.get_nowait()


def test_wait_ends_after_its_time(mailbox):
    for _ in range(2 * LEAST):
        with pytest.raises(Empty):
            mailbox.get("a", 0.001)


def test_nothing_is_an_item_too(mailbox):
    """What ends a thread is None, and must not look like a wait that missed."""
    for _ in range(2 * LEAST):
        threading.Timer(0.002, mailbox.put, (None,)).start()
        assert mailbox.get("a", 60) is None


def test_what_is_remembered_is_bounded():
    mailbox = Mailbox(spins=True)
    for each in range(3 * 4096):
        mailbox._waits.append((each, 1))
        mailbox._learn()
    assert len(mailbox._expected) <= 4096


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
