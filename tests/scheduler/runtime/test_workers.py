import gc
import os
import threading
import weakref

import pytest

from scheduler.runtime.mailbox import Mailbox
from scheduler.runtime.workers import Worker


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


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin threads")
def test_the_thread_is_pinned(completions):
    seen = []
    core = max(os.sched_getaffinity(0))
    worker = Worker("w", (core,), completions)
    worker.submit("a", lambda: seen.append(os.sched_getaffinity(0)))
    completions.get()
    worker.close()
    assert seen == [{core}]


def test_close_runs_what_was_submitted_and_may_be_called_twice(completions):
    worker = Worker("w", (), completions)
    for i in range(100):
        worker.submit(str(i), lambda: None)
    worker.close()
    worker.close()
    assert completions.qsize() == 100


def test_call_that_nobody_waits_for_is_reported_with_the_next(completions):
    seen = []
    worker = Worker("w", (), completions)
    worker.submitter([("a", lambda: None, False), ("b", lambda: seen.append(completions.qsize()), True), ("c", lambda: None, True)])()
    names = [completions.get()[0] for _ in range(3)]
    worker.close()
    assert names == ["a", "b", "c"]
    assert seen == [0]


def test_thread_that_is_woken_early_runs_nothing(completions):
    worker = Worker("w", (), completions)
    worker.wake()
    worker.submit("a", lambda: None)
    assert completions.get()[0] == "a"
    worker.close()
    assert completions.qsize() == 0


def test_error_is_gone_when_its_report_is(completions):
    class Broken(Exception):
        pass

    def broken():
        raise Broken

    worker = Worker("w", (), completions)
    gc.disable()
    try:
        worker.submit("a", broken)
        gone = weakref.ref(completions.get()[1])
        worker.submit("b", lambda: None)
        completions.get()
        assert gone() is None
    finally:
        gc.enable()
        worker.close()
