import time

import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.adapt.policy import Policy, Rules
from scheduler.delegates import CpuDelegate
from scheduler.delegates.base import Compiled, Invocation
from scheduler.runtime.adaptive import AdaptiveSession
from scheduler.runtime.session import Session
from tests import onnx_runtime
from tests.scheduler import bundles

#: Seconds of a subgraph on a processor that nobody else uses: far above what a busy machine adds.
USUAL = 0.03
RULES = Rules(contended=3.0, free=2.0, inferences=2, probe_after=3, probe_most=3)


class Paced(CpuDelegate):
    """ONNX Runtime that takes as long as it is told."""

    def __init__(self):
        super().__init__()
        self.seconds = USUAL

    def compile(self, model):
        return PacedCompiled(super().compile(model), self)


class PacedCompiled(Compiled):
    def __init__(self, inner, delegate):
        super().__init__(inner.inputs, inner.outputs)
        self.inner, self.delegate = inner, delegate

    def bind(self, inputs, outputs):
        return PacedInvocation(self.inner.bind(inputs, outputs), self.delegate)


class PacedInvocation(Invocation):
    def __init__(self, inner, delegate):
        self.inner, self.delegate = inner, delegate

    def run(self):
        time.sleep(self.delegate.seconds)
        self.inner.run()


X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def sessions(bundle_dir):
    """Both processors, of which the GPU's pace can be changed, and a CPU that alone takes longer."""
    gpu, cpu = Paced(), Paced()
    cpu.seconds = 2 * USUAL
    with (
        Session(bundle_dir, {"gpu": "null"}, delegates={"null": gpu}) as both,
        Session(bundle_dir, {"cpu": "null"}, processors=["cpu"], delegates={"null": cpu}) as alone,
    ):
        yield gpu, {"both": both, "cpu alone": alone}


@pytest.mark.slow
def test_policy_that_is_told_the_same_decides_the_same(sessions):
    gpu, both = sessions
    session = AdaptiveSession(both, RULES, quiet=3)
    for factor in (1, 1, 12, 12, 12, 12, 1, 1, 1, 1, 1):
        gpu.seconds = factor * USUAL
        session(X)
    policy, decisions = Policy(list(session.alternatives.values()), RULES), []
    state = policy.begin()
    for event in session.events:
        state, decision = policy.after(state, event)
        decisions += [decision] if decision is not None else []
    assert tuple(decisions) == session.decisions
    assert state.present == session.present


def test_one_plan_is_run_whatever_happens(bundle_dir):
    with Session(bundle_dir) as alone:
        session = AdaptiveSession({"alone": alone}, quiet=1)
        assert np.allclose(session(X), onnx_runtime.output(bundle_dir / "model.onnx", X), atol=1e-5)
        assert session.present == "alone"


def test_what_makes_no_sense_is_refused(bundle_dir, tmp_path):
    with pytest.raises(UsageError, match="no session"):
        AdaptiveSession({})
    other = bundles.several_ends(tmp_path / "other")
    with Session(bundle_dir) as one, Session(other) as two:
        with pytest.raises(UsageError, match="`two` has other inputs or outputs than `one`"):
            AdaptiveSession({"one": one, "two": two})
        with pytest.raises(UsageError, match="what is usual"):
            AdaptiveSession({"one": one}, quiet=0)
