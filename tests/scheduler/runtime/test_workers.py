import threading

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


def test_thread_that_is_woken_early_runs_nothing(completions):
    worker = Worker("w", (), completions)
    worker.wake()
    worker.submit("a", lambda: None)
    assert completions.get()[0] == "a"
    worker.close()
    assert completions.qsize() == 0
