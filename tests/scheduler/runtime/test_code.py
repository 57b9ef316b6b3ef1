"""Compiled subgraphs by where they are placed, and sessions that change between plans."""

import threading
import time

import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.adapt.policy import Policy, Rules
from scheduler.bundle.load import load_bundle
from scheduler.cores import available_cores
from scheduler.delegates.base import UnableError
from scheduler.placement.place import Placement
from scheduler.runtime.adaptive import AdaptiveSession
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.record import replay
from scheduler.runtime.session import Session
from tests.scheduler import bundles
from tests.scheduler.doubles import Hooked, HookedQueue, numbers, whole

#: A core that this process may use.
CORE = available_cores()[0]

GPU = Placement("gpu", "null_async", (), "null_async:gpu", "async", True, "")


class Losing(HookedQueue):
    """Computes on ONNX Runtime behind a command queue until its device is lost; refuses some subgraphs from the start."""

    def __init__(self, refused=(), at="wait"):
        super().__init__(self.check, "cpu", "cpu")
        self.refused, self.at = refused, at
        self.lost = threading.Event()
        self.compiled = []

    def compile(self, model):
        self.compiled.append(model.stem)
        if model.stem in self.refused:
            raise UnableError(f"no kernel computes {model.stem}")
        return super().compile(model)

    def check(self, at, model, run, outputs):
        if self.lost.is_set() and self.at == at:
            for output in outputs:
                output.fill(np.nan)  # half-written
            raise UnableError("the device was lost")
        if at == "wait":
            run()


def right(path, y, seed=0):
    return np.allclose(y, whole(path, numbers(seed)), atol=1e-6)


def session_of(path, delegate, **more):
    return Session(path, {"gpu": "null_async"}, delegates={"null_async": delegate}, **more)


def test_subgraph_is_compiled_once_for_each_placement(bundle_dir):
    delegate = Losing()
    code = CompiledSubgraphs(load_bundle(bundle_dir), {"null_async": delegate})
    first = code.get("s1.gpu", GPU)
    assert code.get("s1.gpu", GPU) is first
    assert code.get("s1.gpu", Placement("gpu", "cpu", (0,), "cpu0", "inline", True, "")) is not first
    assert delegate.compiled == ["s1.gpu"]
    code.close()


def test_refused_subgraph_is_placed_elsewhere_with_a_warning_and_a_reason(bundle_dir):
    with pytest.warns(UserWarning, match=r"subgraph `s1\.gpu` of the gpu runs on the CPU: no kernel computes s1\.gpu"):
        session = session_of(bundle_dir, Losing(refused=("s1.gpu",)))
    with session:
        assert right(bundle_dir, session(numbers()))
        assert list(session.replaced) == ["s1.gpu"]
        place = session.replaced["s1.gpu"]
        assert (place.delegate, place.processor) == ("cpu", "gpu")
        assert place.reason == "the null_async delegate cannot run it: no kernel computes s1.gpu"
        queues = {span.name: span.queue for span in session.trace.spans}
        assert queues["s1.gpu"] == place.queue != queues["s2.gpu"] == "null_async:gpu"


def test_refusal_without_a_delegate_to_fall_back_on_is_an_error(bundle_dir):
    delegate = Losing(refused=("s1.gpu",))
    delegate.falls_back_on = None
    with pytest.raises(StretchError, match=r"no kernel computes s1\.gpu"):
        session_of(bundle_dir, delegate)


@pytest.mark.parametrize("at", ["enqueue", "wait"])
@pytest.mark.parametrize("tell", [False, True])
def test_device_lost_in_a_run_loses_no_inference(bundle_dir, tmp_path, at, tell):
    delegate, record = Losing(at=at), tmp_path / "run.jsonl" if tell else None
    with session_of(bundle_dir, delegate, record=record) as session:
        assert right(bundle_dir, session(numbers(1)), 1)
        assert session.trace.replaced == {}
        delegate.lost.set()
        with pytest.warns(UserWarning, match="runs on the CPU: the device was lost"):
            assert right(bundle_dir, session(numbers(2)), 2)
        reason = "the null_async delegate cannot run it: the device was lost"
        assert session.trace.replaced == {"s1.gpu": reason, "s2.gpu": reason}
        assert {span.queue for span in session.trace.spans if span.name == "s1.gpu"} == {session.places["s1.gpu"].queue}
        for seed in range(3):
            assert right(bundle_dir, session(numbers(seed)), seed)
    if record is not None:
        assert replay(record).finished == 5


def test_device_lost_with_several_in_flight_loses_no_inference(bundle_dir, tmp_path):
    delegate = Losing()
    with session_of(bundle_dir, delegate, in_flight=3, record=tmp_path / "run.jsonl") as session:
        assert right(bundle_dir, session.submit(numbers(9)).result(60), 9)
        delegate.lost.set()
        with pytest.warns(UserWarning, match="runs on the CPU: the device was lost"):
            results = [future.result(60) for future in [session.submit(numbers(seed)) for seed in range(8)]]
        assert all(right(bundle_dir, y, seed) for seed, y in enumerate(results))
        assert session.submitted_traces[-1].replaced.keys() == {"s1.gpu", "s2.gpu"}
    assert replay(tmp_path / "run.jsonl").finished == 9


def test_subgraph_moves_between_runs_and_its_code_is_made_while_the_session_lives(bundle_dir):
    with Session(bundle_dir, {"gpu": "reference"}) as session:
        assert right(bundle_dir, session(numbers()))
        session.replace("s1.gpu", f"cpu{CORE}")
        session.replace("head", f"reference{available_cores()[-1]}")
        assert right(bundle_dir, session(numbers()))
        spans = {span.name: span.queue for span in session.trace.spans}
        assert spans["s1.gpu"] == f"cpu{CORE}"
        assert session.trace.replaced["s1.gpu"] == f"mapped to cpu{CORE}"
        with pytest.raises(StretchError, match="unknown subgraph"):
            session.replace("s9.gpu", f"cpu{CORE}")


#: Seconds of a subgraph on a processor that nobody else uses: far above what a busy machine adds.
USUAL = 0.03
RULES = Rules(contended=3.0, free=2.0, inferences=2, probe_after=3, probe_most=3)


class Paced(Hooked):
    """ONNX Runtime that takes as long as it is told."""

    def __init__(self):
        super().__init__(self.pace)
        self.seconds = USUAL

    def pace(self, model, run, outputs):
        time.sleep(self.seconds)
        run()


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
        session(numbers())
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
        assert np.allclose(session(numbers()), whole(bundle_dir, numbers()), atol=1e-5)
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
