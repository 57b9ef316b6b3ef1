"""Delegates for tests that call a hook in place of each run, and inputs and expected outputs of the small bundles."""

import gc
import threading
from functools import partial
from pathlib import Path

import numpy as np

from scheduler.delegates import delegates
from scheduler.delegates.base import AsyncInvocation, Delegate, Invocation
from tests import onnx_runtime


def numbers(seed=0, shape=(1, 3, 8, 8)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(path, x):
    return onnx_runtime.output(path / "model.onnx", x)


def threads():
    # garbage collection ends the threads of unreferenced sessions of other tests
    gc.collect()
    return [thread for thread in threading.enumerate() if thread.name.startswith("nn-stretch")]


class HookedInvocation(Invocation):
    def __init__(self, hooked):
        self._hooked = hooked

    def run(self):
        self._hooked()


class Hooked(Delegate):
    """Calls `hook` in place of each run, with the subgraph's file, a function that does the run, and the outputs."""

    def __init__(self, hook, inner="cpu", falls_back_on=None):
        self.hook, self.inner, self.falls_back_on = hook, delegates.get(inner)(), falls_back_on
        self.computes = self.inner.computes

    def compile(self, model):
        compiled, hook = self.inner.compile(model), self.hook
        bind = compiled.bind
        compiled.bind = lambda inputs, outputs: HookedInvocation(partial(hook, model, bind(inputs, outputs).run, outputs))
        return compiled


class QueuedInvocation(AsyncInvocation):
    def __init__(self, hooked):
        self._hooked = hooked

    def enqueue(self):
        self._hooked("enqueue")

    def wait(self):
        self._hooked("wait")


class HookedQueue(Hooked):
    """Like `Hooked`, but asynchronous: the first argument of `hook` is "enqueue" or "wait"."""

    asynchronous = True

    def compile(self, model):
        compiled, hook = self.inner.compile(model), self.hook
        bind = compiled.bind

        def bound(inputs, outputs):
            run = bind(inputs, outputs).run
            return QueuedInvocation(lambda at: hook(at, model, run, outputs))

        compiled.bind = bound
        return compiled


class Gate(Hooked):
    """ONNX Runtime that waits at one subgraph, or at all of a bundle, until `open` is set, and then raises `error` once."""

    def __init__(self, target=None, error=None):
        super().__init__(self.pass_through)
        self.who, self.error = target.resolve() if isinstance(target, Path) else target, error
        self.reached, self.open = threading.Semaphore(0), threading.Event()

    def pass_through(self, model, run, outputs):
        if self.who in (None, model.stem, *model.resolve().parents):
            self.reached.release()
            assert self.open.wait(60)
            error, self.error = self.error, None
            if error is not None:
                raise error
        run()


def flaky(armed, *inner):
    """A delegate whose subgraphs raise the errors, or first call the functions, of `armed` by name; `begun` lists all runs."""

    def hook(model, run, outputs):
        delegate.begun.append(model.stem)
        action = armed.get(model.stem)
        if isinstance(action, BaseException):
            raise action
        if action is not None:
            action()
        run()

    delegate = Hooked(hook, *inner)
    delegate.begun = []
    return delegate
