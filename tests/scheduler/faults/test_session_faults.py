"""Sessions whose delegates fail: nothing is lost, nothing is wrong, and what is decided is told."""

import threading
import time

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates import CpuDelegate
from scheduler.delegates.base import Compiled, Invocation, UnableError
from scheduler.faults.policy import FaultPolicy
from scheduler.runtime.session import Session
from tests import onnx_runtime

POLICY = FaultPolicy(back_off=2, trial=2)


class Broken(CpuDelegate):
    """ONNX Runtime, in which the runs of a list go wrong: by an exception, NaN, other numbers or by never ending."""

    def __init__(self, *wrong):
        super().__init__()
        self.wrong, self.runs, self.release = list(wrong), 0, threading.Event()

    def compile(self, model):
        return BrokenCompiled(super().compile(model), self)

    def how(self):
        self.runs += 1
        return self.wrong.pop(0) if self.wrong else None


class BrokenCompiled(Compiled):
    def __init__(self, inner, delegate):
        super().__init__(inner.inputs, inner.outputs)
        self.inner, self.delegate = inner, delegate

    def bind(self, inputs, outputs):
        return BrokenInvocation(self.inner.bind(inputs, outputs), outputs, self.delegate)


class BrokenInvocation(Invocation):
    def __init__(self, inner, outputs, delegate):
        self.inner, self.outputs, self.delegate = inner, outputs, delegate

    def run(self):
        how = self.delegate.how()
        if isinstance(how, Exception):
            raise how
        if how == "hang":
            self.delegate.release.wait(60)
            return
        self.inner.run()
        if how == "nan":
            self.outputs[0].flat[3] = np.nan
        if how == "wrong":
            self.outputs[0] *= 1.5


def options(session):
    return {"run": session, "submit": lambda x: session.submit(x).result(60)}


def made(bundle_dir, broken, policy=POLICY, **options):
    return Session(bundle_dir, {"gpu": "null"}, delegates={"null": broken}, faults=policy, **options)


def inputs(count):
    return np.random.default_rng(0).standard_normal((count, 1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("way", ["run", "submit"])
@pytest.mark.parametrize("fault", [UnableError("the device is lost"), RuntimeError("it broke"), ValueError(), "nan"], ids=str)
def test_delegate_that_fails_is_retired_its_work_is_done_elsewhere_and_it_comes_back(bundle_dir, way, fault):
    # two subgraphs of an inference run there
    broken = Broken(None, None, fault)
    with made(bundle_dir, broken) as session:
        for x in inputs(12):
            assert np.allclose(options(session)[way](x), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-5)
        assert [(decision.inference, decision.what) for decision in session.decisions] == [(1, "retired"), (3, "on trial"), (5, "restored")]
        assert session.decisions[0].site.delegate == "null"
        assert "s1.gpu" in session.decisions[0].reason
        assert session.places["s1.gpu"].delegate == "null"
        assert broken.runs > 8


def test_without_a_policy_the_inference_fails_and_names_the_delegate(bundle_dir):
    with Session(bundle_dir, {"gpu": "null"}, delegates={"null": Broken(RuntimeError("it broke"))}) as session:
        with pytest.raises(StretchError, match=r"s1.gpu.*null.*it broke"):
            session(inputs(1)[0])
        assert session.decisions == ()


def test_wrong_numbers_are_found_by_spot_checks(bundle_dir):
    broken = Broken(*[None] * 4, *["wrong"] * 100)
    with made(bundle_dir, broken, FaultPolicy(back_off=2, trial=2, spot_every=3)) as session:
        x = inputs(1)[0]
        want = onnx_runtime.output(bundle_dir / "model.onnx", x)
        for _ in range(4):
            assert np.allclose(session(x), want, atol=1e-5)
        assert "is off by" in session.decisions[0].reason
        assert session.places["s1.gpu"].delegate == "cpu"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("way", ["run", "submit"])
def test_call_that_hangs_is_left_behind_for_good_and_the_inference_is_done(bundle_dir, way):
    broken = Broken(None, None, "hang")
    with made(bundle_dir, broken, time_limit=1.0) as session:
        for x in inputs(6):
            assert np.allclose(options(session)[way](x), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-5)
        assert [(decision.what, decision.inferences) for decision in session.decisions] == [("retired", None)]
        assert session.places["s1.gpu"].delegate == "cpu"
        broken.release.set()
        # what it writes now, it writes into memory that nobody reads any more
        time.sleep(0.1)
        x = inputs(1)[0]
        assert np.allclose(session(x), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-5)
