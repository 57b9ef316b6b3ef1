"""Steps that follow each other on one queue, and what becomes of them if one fails."""

import threading
import warnings
from collections import Counter

import numpy as np
import pytest

from scheduler.cores import available_cores
from scheduler.delegates.base import Invocation, UnableError
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.session import Session
from tests import onnx_runtime
from tests.scheduler.bundles import Builder, one_after_the_other

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


class Failing(Invocation):
    """Computes, but for the runs in which it raises; notes all that were begun."""

    def __init__(self, inner, name, begun, broken):
        self._inner, self._name, self._begun, self._broken = inner, name, begun, broken

    def run(self):
        self._begun.append(self._name)
        if self._name in self._broken:
            raise UnableError("it cannot any more")
        self._inner.run()


class Noting(ReferenceDelegate):
    """The reference delegate, some of whose subgraphs fail."""

    falls_back_on = "cpu"

    def __init__(self, *broken):
        super().__init__()
        self.begun, self.broken = [], set(broken)

    def compile(self, model):
        compiled = super().compile(model)
        bind = compiled.bind
        compiled.bind = lambda inputs, outputs: Failing(bind(inputs, outputs), model.stem, self.begun, self.broken)
        return compiled


@pytest.fixture
def path(tmp_path):
    return one_after_the_other(tmp_path / "bundle")


def test_steps_that_a_queue_goes_on_with_are_run_once_and_give_the_networks_output(path):
    noting = Noting()
    with Session(path, {"gpu": "reference"}, delegates={"reference": noting}) as session:
        for number in range(5):
            x = X * (number + 1)
            assert np.allclose(session(x), onnx_runtime.output(path / "model.onnx", x), atol=1e-5)
            assert [span.name for span in session.trace.spans] == ["stem", "s1.gpu", "s2.gpu", "s3.gpu", "head"]
    assert noting.begun == ["s1.gpu", "s2.gpu", "s3.gpu"] * 5


@pytest.mark.parametrize("broken", ["s1.gpu", "s2.gpu", "s3.gpu"])
def test_step_that_fails_is_redone_elsewhere_and_what_follows_runs_after_it(path, broken):
    noting = Noting()
    with Session(path, {"gpu": "reference"}, delegates={"reference": noting}) as session:
        session(X)
        noting.broken.add(broken)
        with warnings.catch_warnings(action="ignore"):
            for number in range(3):
                x = X * (number + 1)
                assert np.allclose(session(x), onnx_runtime.output(path / "model.onnx", x), atol=1e-5)
        assert session.places[broken].delegate == "cpu"
    counts = Counter(noting.begun)
    assert counts.pop(broken) == 2
    assert set(counts.values()) == {4}


class Waiting(ReferenceDelegate):
    """The reference delegate, one of whose subgraphs does not end before another one has begun."""

    def __init__(self, waiting, awaited):
        super().__init__()
        self.waiting, self.awaited, self.begun = waiting, awaited, threading.Event()

    def compile(self, model):
        compiled = super().compile(model)
        bind = compiled.bind
        compiled.bind = lambda inputs, outputs: WaitingInvocation(bind(inputs, outputs), model.stem, self)
        return compiled


class WaitingInvocation(Invocation):
    def __init__(self, inner, name, delegate):
        self._inner, self._name, self._delegate = inner, name, delegate

    def run(self):
        if self._name == self._delegate.awaited:
            self._delegate.begun.set()
        if self._name == self._delegate.waiting:
            assert self._delegate.begun.wait(60)
        self._inner.run()


@pytest.mark.parametrize("reads", [("t", "a"), ("t", "t")], ids=["one after the other", "side by side"])
def test_queue_goes_on_with_its_next_step_while_the_calling_thread_is_at_work(tmp_path, reads):
    builder = Builder(tmp_path / "bundle")
    builder.conv("stem", "stem", "cpu", "x", "t", 4)
    builder.conv("s1.cpu", "s1", "cpu", "t", "c", 4)
    for name, source, target in zip(("s1.gpu", "s2.gpu"), reads, "ab", strict=True):
        builder.conv(name, "s1", "gpu", source, target, 4)
    builder.join("s1.join", "s1", "sum", ["c", "b", "a"], "y")
    path = builder.write("y")
    waiting = Waiting("s1.cpu", "s2.gpu")
    with Session(path, {"cpu": f"reference{available_cores()[0]}", "gpu": "reference"}, delegates={"reference": waiting}) as session:
        for number in range(3):
            waiting.begun.clear()
            assert np.allclose(session(X * number), onnx_runtime.output(path / "model.onnx", X * number), atol=1e-5)
