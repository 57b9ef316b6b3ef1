import threading

import pytest

from scheduler.measure.together import time_together


def test_works_that_need_the_same_thing_slow_each_other_down():
    # a lock that is held for a fixed time, whatever else this machine does
    lock, never = threading.Lock(), threading.Event()

    def work() -> None:
        with lock:
            never.wait(0.02)
        never.wait(0.002)

    together = time_together(work, work, runs=3, phases=2)
    assert together.first > 1.1
    assert together.second > 1.1


def test_an_error_ends_the_other_work():
    before = threading.active_count()
    calls = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        time_together(fail, lambda: None, runs=3, phases=2)
    assert threading.active_count() == before
