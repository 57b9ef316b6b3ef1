import threading

import numpy as np
import pytest

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler import FaultPolicy, Scheduler
from scheduler.delegates import CpuDelegate
from scheduler.delegates.base import Compiled, Invocation
from tests import onnx_runtime


def numbers(seed=0):
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)


def wanted(path, x):
    return onnx_runtime.output(path / "model.onnx", x)


def threads():
    return [item for item in threading.enumerate() if item.name.startswith("nn-stretch")]


@pytest.fixture
def folders(bundles, tmp_path):
    """Two bundles of networks with other weights."""
    return {"a": bundles.two_branches(tmp_path / "a"), "b": bundles.two_branches(tmp_path / "b", seed=1)}


class Gate(CpuDelegate):
    """ONNX Runtime that waits at subgraphs of one bundle until it is let through, or raises."""

    def __init__(self, folder, error=None):
        super().__init__()
        self.folder, self.error = folder, error
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def compile(self, model):
        inner = super().compile(model)
        return GateCompiled(inner, self) if self.folder.resolve() in model.resolve().parents else inner


class GateCompiled(Compiled):
    def __init__(self, inner, gate):
        super().__init__(inner.inputs, inner.outputs)
        self.inner, self.gate = inner, gate

    def bind(self, inputs, outputs):
        return GateInvocation(self.inner.bind(inputs, outputs), self.gate)


class GateInvocation(Invocation):
    def __init__(self, inner, gate):
        self.inner, self.gate = inner, gate

    def run(self):
        self.gate.begun.release()
        if self.gate.error is not None:
            raise self.gate.error
        assert self.gate.go.wait(60)
        self.inner.run()


@pytest.mark.parametrize("mapping", [None, {"gpu": "reference"}])
def test_every_future_holds_the_output_of_its_own_bundle_and_input(folders, mapping):
    with Scheduler(folders, mapping) as scheduler:
        rows = [(name, seed, scheduler.submit(numbers(seed), name)) for seed in range(6) for name in folders]
        for name, seed, future in rows:
            assert np.allclose(future.result(60), wanted(folders[name], numbers(seed)), atol=1e-5)
        assert np.allclose(scheduler.run(numbers(7), "b"), wanted(folders["b"], numbers(7)), atol=1e-5)


def test_the_earliest_deadline_is_served_first(folders):
    gate = Gate(folders["a"])
    ended = []
    with Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate}, in_flight=3) as scheduler:
        # what holds a queue is let go when all others wait
        first = scheduler.submit(numbers(), "a")
        assert gate.begun.acquire(timeout=60)
        for name, options in {"none": {}, "late": {"deadline_ms": 60_000}, "soon": {"deadline_ms": 30_000}}.items():
            scheduler.submit(numbers(), "b", **options).add_done_callback(lambda _, name=name: ended.append(name))
        gate.go.set()
        first.result(60)
    assert ended.index("soon") < ended.index("late") < ended.index("none")


def test_all_processors_of_a_bundle_lost_are_replaced_where_faults_are_minded(folders):
    gate = Gate(folders["a"], RuntimeError("lost"))
    with Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate}, faults=FaultPolicy()) as scheduler:
        for seed in range(3):
            for name in folders:
                assert np.allclose(scheduler.run(numbers(seed), name), wanted(folders[name], numbers(seed)), atol=1e-5)
        assert scheduler.sessions["a"].decisions
        assert not scheduler.sessions["b"].decisions


@pytest.mark.parametrize("faults", [None, FaultPolicy()])
def test_what_hangs_of_one_bundle_stops_no_other(folders, faults):
    gate = Gate(folders["a"])
    options = {"delegates": {"null": gate}, "time_limit": 0.3, "faults": faults}
    try:
        with Scheduler(folders, {"cpu": "null", "gpu": "null"}, **options) as scheduler:
            hung = scheduler.submit(numbers(), "a")
            assert gate.begun.acquire(timeout=60)
            futures = [scheduler.submit(numbers(seed), "b") for seed in range(4)]
            for seed, future in enumerate(futures):
                assert np.allclose(future.result(60), wanted(folders["b"], numbers(seed)), atol=1e-5)
            if faults is None:
                with pytest.raises(StretchError, match="null"):
                    hung.result(60)
            else:
                assert np.allclose(hung.result(60), wanted(folders["a"], numbers()), atol=1e-5)
                assert np.allclose(scheduler.run(numbers(5), "a"), wanted(folders["a"], numbers(5)), atol=1e-5)
            assert np.allclose(scheduler.run(numbers(9), "b"), wanted(folders["b"], numbers(9)), atol=1e-5)
    finally:
        gate.go.set()


def test_threads_end_with_it_and_closing_twice_is_fine(folders):
    before = len(threads())
    scheduler = Scheduler(folders)
    future = scheduler.submit(numbers(), "a")
    scheduler.close()
    assert future.result(0) is not None
    scheduler.close()
    assert len(threads()) == before
    with pytest.raises(StretchError, match="closed"):
        scheduler.submit(numbers(), "a")


def test_the_same_bundle_twice_needs_names_and_then_shares_the_processors_with_itself(folders):
    with pytest.raises(UsageError, match="two bundles would be called `a`"):
        Scheduler([folders["a"], folders["a"]])
    with Scheduler({"one": folders["a"], "other": folders["a"]}) as scheduler:
        one, other = scheduler.submit(numbers(), "one"), scheduler.submit(numbers(), "other")
        assert np.array_equal(one.result(60), other.result(60))


def test_what_makes_no_sense_is_refused(folders):
    with pytest.raises(UsageError, match="no bundle has nothing"):
        Scheduler([])
    with pytest.raises(UnknownNameError, match="`c`"):
        Scheduler(folders, weights={"c": 1.0})
    with pytest.raises(UsageError, match="weight of 0"):
        Scheduler(folders, weights={"a": 0.0})
    with pytest.raises(UsageError, match="patience"):
        Scheduler(folders, patience_ms=0)
    with pytest.raises(UsageError, match="`npu` is mapped, but no bundle uses it"):
        Scheduler(folders, {"npu": "cpu"})
    with pytest.raises(UsageError, match="keep 0 inferences"):
        Scheduler(folders, in_flight=0)
    with Scheduler(folders) as scheduler:
        for options in ({"deadline_ms": -1}, {"deadline_ms": 0}, {"priority": 101}):
            with pytest.raises(UsageError):
                scheduler.submit(numbers(), "a", **options)
        with pytest.raises(UnknownNameError, match="`c`"):
            scheduler.submit(numbers(), "c")
        with pytest.raises(UsageError):
            scheduler.submit(numbers()[:, :2], "a")


def test_interrupted_scheduler_waits_for_nothing_and_its_threads_end_by_themselves(folders):
    gate = Gate(folders["a"])
    before = set(threads())
    scheduler = Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate})
    future = scheduler.submit(numbers(), "a")
    assert gate.begun.acquire(timeout=60)
    scheduler.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(StretchError, match="closed before the inference was over"):
        future.result(0)
    left = [thread for thread in threads() if thread not in before]
    gate.go.set()
    for item in left:
        item.join(30)
    assert not any(item.is_alive() for item in left)
