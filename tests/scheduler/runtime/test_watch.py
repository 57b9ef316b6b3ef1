import _thread
import os
import sys
import threading
import time

import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.cores import available_cores
from scheduler.delegates.base import Invocation
from scheduler.delegates.null import NullDelegate
from scheduler.runtime.session import Session
from scheduler.runtime.threads import Watch, interrupt, last_hang, note_hang

X = np.zeros((1, 3, 8, 8), np.float32)


class Hears:
    def __init__(self):
        self.calls = []
        self.heard = threading.Event()

    def overdue(self, thread, call):
        self.calls.append((thread, call))
        self.heard.set()


def threads():
    return [t for t in threading.enumerate() if t.name == "nn-stretch watch"]


def test_call_that_takes_too_long_is_told_once_and_a_new_one_again():
    hears = Hears()
    watch = Watch(0.01, hears.overdue)
    for name in ("first", "second"):
        hears.heard.clear()
        call = (name, time.perf_counter_ns())
        watch.running["gpu"] = call
        assert hears.heard.wait(60)
        assert hears.calls[-1] == ("gpu", call)
    watch.close()
    assert [call[0] for _, call in hears.calls] == ["first", "second"]
    assert threads() == []


def test_calls_that_end_in_time_are_not_told():
    hears, marker = Hears(), Hears()
    watch, late = Watch(1000.0, hears.overdue), Watch(0.01, marker.overdue)
    for running in (watch.running, late.running):
        running["gpu"] = ("s1", time.perf_counter_ns())
    assert marker.heard.wait(60)
    watch.running["gpu"] = None
    watch.close()
    late.close()
    assert hears.calls == []


def test_thread_that_is_not_the_main_one_is_interrupted_between_instructions():
    started, rows = threading.Event(), []

    def work():
        try:
            started.set()
            while True:
                pass
        except KeyboardInterrupt:
            rows.append("interrupted")

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    interrupt(thread.ident)
    thread.join(60)
    assert rows == ["interrupted"]


def test_main_thread_is_interrupted_where_it_waits():
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interruption may come before the wait
        threading.Timer(0.1, interrupt, (threading.get_ident(),)).start()
        threading.Event().wait(60)


def test_last_hang_is_the_one_noted_last():
    for text in ("one", "two"):
        note_hang(StretchError(text))
    assert str(last_hang()) == "two"


class Stuck(NullDelegate):
    """Waits for an event in each call of the subgraphs it names."""

    def __init__(self, names, built=None):
        super().__init__()
        self.names, self.made, self.free = names, built or StuckInvocation, threading.Event()

    def compile(self, model):
        result = super().compile(model)
        if model.stem in self.names:
            result.bind = lambda inputs, outputs: self.made(self.free)
        return result


class StuckInvocation(Invocation):
    def __init__(self, free):
        self.free = free

    def run(self):
        self.free.wait(120)


@pytest.mark.parametrize(
    "mapping", [{"gpu": "null"}, {"gpu": "cpu", "cpu": f"null{available_cores()[0]}"}], ids=["on a thread", "on the calling thread"]
)
def test_call_that_takes_longer_than_it_may_ends_the_run_and_the_session(bundle_dir, mapping):
    stuck = Stuck({"s1.gpu", "s1.cpu"})
    with Session(bundle_dir, mapping, delegates={"null": stuck}, time_limit=1) as session:
        for _ in range(2):
            with pytest.raises(StretchError, match=r"subgraph `s1\..pu` did not end within 1 s .* \(delegate `null`\)") as error:
                session(X)
            assert "time" in error.value.hint
        with pytest.raises(StretchError, match="did not end"):
            session.time_alone("s1.gpu")
    stuck.free.set()


class Pressed(StuckInvocation):
    """Ctrl-C that wakes nobody, as one does that comes just before the calling thread goes to sleep."""

    def run(self):
        while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "_serve":
            os.sched_yield()
        _thread.interrupt_main()
        super().run()


def test_interrupt_that_wakes_nobody_is_not_lost(bundle_dir):
    stuck = Stuck({"s1.gpu"}, Pressed)
    with pytest.raises(KeyboardInterrupt), Session(bundle_dir, {"gpu": "null"}, delegates={"null": stuck}, time_limit=1000) as session:
        session(X)
    assert not stuck.free.is_set()
    stuck.free.set()


def test_hang_of_one_inference_in_flight_ends_all_of_them_and_refuses_more(bundle_dir):
    stuck = Stuck({"s1.gpu"})
    with Session(bundle_dir, {"gpu": "null"}, delegates={"null": stuck}, time_limit=1, in_flight=2) as session:
        futures = [session.submit(X) for _ in range(2)]
        for future in futures:
            with pytest.raises(StretchError, match=r"`s1\.gpu` did not end within 1 s"):
                future.result(60)
        with pytest.raises(StretchError, match="did not end"):
            session.submit(X)
        with pytest.raises(StretchError, match="did not end"):
            session(X)
    stuck.free.set()


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), float("nan")])
def test_time_limit_that_is_none_is_refused(bundle_dir, limit):
    with pytest.raises(UsageError, match="time limit"):
        Session(bundle_dir, time_limit=limit)
