"""Threads of queues, interrupted runs, and second tries after a hang."""

import _thread
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates.base import Invocation
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.placement.place import Placement
from scheduler.runtime.session import Session, again_after_a_hang
from scheduler.runtime.threads import HangError, QueueThreads
from tests import onnx_runtime


def test_jobs_run_in_order_on_one_thread_that_is_not_the_callers():
    threads, seen, done = QueueThreads(), [], threading.Event()
    threads.open("cpu1", ())
    for number in range(5):
        threads.inbox("cpu1").put(lambda number=number: seen.append((number, threading.current_thread().name, threads.calling("cpu1"))))
    threads.inbox("cpu1").put(done.set)
    assert done.wait(60)
    assert seen == [(number, "nn-stretch cpu1", True) for number in range(5)]
    assert not threads.calling()
    assert threads.close()


def test_thread_that_hangs_gives_its_jobs_to_another_and_ends_when_it_comes_back():
    threads, free, begun, done = QueueThreads(), threading.Event(), threading.Event(), threading.Event()
    threads.open("cpu1", ())
    threads.inbox("cpu1").put(lambda: (begun.set(), free.wait(60)))
    threads.inbox("cpu1").put(done.set)
    assert begun.wait(60)
    (hung,) = [thread for thread in threading.enumerate() if thread.name == "nn-stretch cpu1"]
    threads.renew("cpu1")
    assert done.wait(60)
    free.set()
    hung.join(60)
    assert not hung.is_alive()
    assert threads.close()


def test_threads_that_nobody_holds_any_more_end():
    threads = QueueThreads()
    threads.open("cpu1", ())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "nn-stretch cpu1"]
    del threads
    thread.join(60)
    assert not thread.is_alive()


class Interrupting(ReferenceDelegate):
    """The reference delegate, of which one subgraph on a thread presses Ctrl-C and waits until it is let go."""

    def __init__(self):
        super().__init__()
        self.armed, self.free = False, threading.Event()

    def compile(self, model):
        compiled = super().compile(model)
        bind = compiled.bind
        if model.stem == "s1.gpu":
            compiled.bind = lambda inputs, outputs: InterruptingInvocation(bind(inputs, outputs), self)
        return compiled


class InterruptingInvocation(Invocation):
    def __init__(self, inner, delegate):
        self.inner, self.delegate = inner, delegate

    def run(self):
        if self.delegate.armed:
            self.delegate.armed = False
            _thread.interrupt_main()
            assert self.delegate.free.wait(60)
        self.inner.run()


@pytest.mark.parametrize("late", [False, True])
def test_run_after_an_interrupted_one_waits_for_what_that_left_behind_and_is_whole(bundle_dir, late):
    delegate = Interrupting()
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": delegate}) as session:
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)
            delegate.armed = True
            if not late:
                delegate.free.set()
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come behind the run
                session(x)
                threading.Event().wait(60)
            timer = threading.Timer(0.1, delegate.free.set)
            timer.start()
            assert np.allclose(session(x), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-6)
            assert [span.name for span in session.trace.spans].count("s1.gpu") == 1
            timer.join()
            delegate.free.clear()


def test_run_is_refused_while_what_an_interrupted_one_left_behind_does_not_end(bundle_dir):
    delegate = Interrupting()
    x = np.zeros((1, 3, 8, 8), np.float32)
    with Session(bundle_dir, {"gpu": "reference"}, delegates={"reference": delegate}, time_limit=1000) as session:
        session(x)
        delegate.armed = True
        with pytest.raises(KeyboardInterrupt):
            session(x)
        session._executor._limit_s = 0.05
        with pytest.raises(StretchError, match="left behind does not end"):
            session(x)
        delegate.free.set()
        session._executor._limit_s = 60.0
        assert np.allclose(session(x), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-6)


GPU = Placement("gpu", "cpu", (), "gpu", "blocking", True, "")


def test_other_errors_are_handed_on():
    first = Future()
    result = again_after_a_hang(first, lambda: pytest.fail("there is nothing to try again"))
    first.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        result.result(1)


def test_hang_is_tried_again_on_a_thread_of_its_own():
    first, threads = Future(), []

    def run():
        threads.append(threading.current_thread())
        return 4

    result = again_after_a_hang(first, run)
    first.set_exception(HangError.of("s1.gpu", GPU, 1.0))
    assert result.result(60) == 4
    assert threads != [threading.current_thread()]


def test_second_try_that_fails_is_the_error():
    first = Future()
    result = again_after_a_hang(first, lambda: 1 / 0)
    first.set_exception(HangError.of("s1.gpu", GPU, 1.0))
    with pytest.raises(ZeroDivisionError):
        result.result(60)
