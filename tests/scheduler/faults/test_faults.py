"""Decisions about failing sites, and sessions with failing delegates: no inference is lost or wrong."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.delegates.base import UnableError
from scheduler.faults.policy import FaultPolicy, FaultTracker, InferenceEnded, Site, SiteFailed, SiteReturned
from scheduler.runtime.session import Session
from tests.scheduler.doubles import Hooked, numbers, whole

GPU = Site("opencl", ())


def decisions_after(policy, events):
    """Decisions with the number of the event; a site on trial gets its work back at once."""
    tracker, rows = FaultTracker(policy), []
    for number, event in enumerate(events):
        for item in tracker.handle(event):
            rows.append((number, item.site, item.what, item.inferences))
            if item.what == "on trial":
                assert tracker.handle(SiteReturned(item.site)) == []
    return rows


def test_inferences_count_for_a_trial_only_after_the_site_got_its_work_back():
    tracker = FaultTracker(FaultPolicy(back_off=1, trial=1))
    tracker.handle(failed())
    assert [item.what for item in tracker.handle(InferenceEnded())] == ["on trial"]
    assert [tracker.handle(InferenceEnded()) for _ in range(5)] == [[]] * 5
    tracker.handle(SiteReturned(GPU))
    assert [item.what for item in tracker.handle(InferenceEnded())] == ["restored"]


def failed(**more):
    return SiteFailed(GPU, "s1.gpu", "it broke", **more)


def test_back_off_doubles_up_to_the_longest_if_a_site_fails_on_trial():
    policy = FaultPolicy(back_off=2, longest=5, trial=3)
    tracker, rows = FaultTracker(policy), []
    for _ in range(4):
        rows += tracker.handle(failed())
        while tracker.is_retired(GPU):
            tracker.handle(InferenceEnded())
    assert [row.inferences for row in rows] == [2, 4, 5, 5]


def test_restored_site_starts_with_the_first_back_off_and_a_hanging_site_is_never_tried_again():
    events = [failed(), InferenceEnded(), failed(), *[InferenceEnded()] * 3, failed()]
    result = [item for item in decisions_after(FaultPolicy(back_off=1, trial=1), events) if item[2] == "retired"]
    assert result == [(0, GPU, "retired", 1), (2, GPU, "retired", 2), (6, GPU, "retired", 1)]
    result = decisions_after(FaultPolicy(back_off=1), [failed(), failed(for_good=True), *[InferenceEnded()] * 100])
    assert result == [(0, GPU, "retired", 1), (1, GPU, "retired", None)]


@pytest.mark.parametrize("numbers", [{"back_off": 0}, {"back_off": 9, "longest": 8}, {"trial": 0}, {"spot_every": -1}])
def test_policy_with_impossible_numbers_is_refused(numbers):
    with pytest.raises(UsageError):
        FaultPolicy(**numbers)


def test_same_fault_in_many_threads_is_decided_once():
    tracker = FaultTracker(FaultPolicy())
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(tracker.handle, [failed()] * 16))
    assert len(tracker.decisions) == 1


class Broken(Hooked):
    """ONNX Runtime with a fault per run from a list: an exception, NaN, wrong numbers, a hang or None."""

    def __init__(self, *wrong):
        super().__init__(self.go_wrong)
        self.wrong, self.runs, self.compiled = list(wrong), 0, []
        self.release, self.released = threading.Event(), threading.Event()

    def compile(self, model):
        self.compiled.append(model.stem)
        return super().compile(model)

    def go_wrong(self, model, run, outputs):
        self.runs += 1
        fault = self.wrong.pop(0) if self.wrong else None
        if isinstance(fault, Exception):
            raise fault
        if fault == "hang":
            self.release.wait(60)
            outputs[0].fill(np.nan)
            self.released.set()
            return
        run()
        if fault == "nan":
            outputs[0].flat[3] = np.nan
        if fault == "wrong":
            outputs[0] *= 1.5


def run_methods(session):
    return {"run": session, "submit": lambda x: session.submit(x).result(60)}


def right(bundle_dir, session, count, method="run"):
    """Whether `count` inferences agree with the whole model."""
    return all(np.allclose(run_methods(session)[method](x), whole(bundle_dir, x), atol=1e-5) for x in numbers(shape=(count, 1, 3, 8, 8)))


def opened(bundle_dir, broken, policy=None, **options):
    return Session(bundle_dir, {"gpu": "null"}, delegates={"null": broken}, faults=policy or FaultPolicy(back_off=2, trial=2), **options)


@pytest.mark.parametrize("method", ["run", "submit"])
@pytest.mark.parametrize("fault", [UnableError("the device is lost"), RuntimeError("it broke"), ValueError(), "nan"], ids=str)
def test_failing_delegate_is_retired_replaced_and_later_restored(bundle_dir, method, fault):
    # each inference runs two subgraphs on this delegate
    broken = Broken(None, None, fault)
    with opened(bundle_dir, broken) as session:
        assert right(bundle_dir, session, 12, method)
        assert [(decision.inference, decision.what) for decision in session.decisions] == [(1, "retired"), (3, "on trial"), (5, "restored")]
        assert (session.decisions[0].site.delegate, "s1.gpu" in session.decisions[0].reason) == ("null", True)
        assert session.subgraph_placements["s1.gpu"].delegate == "null"
        assert broken.runs > 8
        # the subgraphs are compiled again when the delegate is restored
        assert sorted(broken.compiled) == ["s1.gpu", "s1.gpu", "s2.gpu", "s2.gpu"]


def test_wrong_numbers_are_found_by_spot_checks(bundle_dir):
    broken = Broken(*[None] * 4, *["wrong"] * 100)
    with opened(bundle_dir, broken, FaultPolicy(back_off=2, trial=2, spot_every=3)) as session:
        assert right(bundle_dir, session, 4)
        assert "is off by" in session.decisions[0].reason
        assert session.subgraph_placements["s1.gpu"].delegate == "cpu"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("method", ["run", "submit"])
def test_delegate_of_a_hanging_call_is_retired_for_good_and_the_inference_ends(bundle_dir, method):
    broken = Broken(None, None, "hang")
    with opened(bundle_dir, broken, time_limit=1.0) as session:
        assert right(bundle_dir, session, 6, method)
        assert [(decision.what, decision.inferences) for decision in session.decisions] == [("retired", None)]
        assert session.subgraph_placements["s1.gpu"].delegate == "cpu"
        broken.release.set()
        # the hanging call now writes to memory without readers
        assert broken.released.wait(60)
        assert right(bundle_dir, session, 1)


class Refusing(Hooked):
    """ONNX Runtime that refuses one subgraph."""

    def __init__(self, refused):
        super().__init__(lambda model, run, outputs: run())
        self.refused = refused

    def compile(self, model):
        if model.stem == self.refused:
            raise UnableError("no kernel")
        return super().compile(model)


def test_subgraph_without_another_delegate_stays_after_a_failure_and_is_an_error_after_a_hang(bundle_dir):
    for fault, refused in ((UnableError("the device is lost"), "s2.gpu"), ("hang", "s1.gpu")):
        broken = Broken(None, None, fault)
        others = dict.fromkeys(("cpu", "reference"), Refusing(refused))
        options = {"delegates": {"null": broken, **others}, "faults": FaultPolicy(back_off=99), "time_limit": 1.0}
        with Session(bundle_dir, {"gpu": "null"}, **options) as session:
            assert right(bundle_dir, session, 1)
            if fault == "hang":
                with pytest.raises(StretchError, match="did not end"):
                    session(numbers())
                broken.release.set()
            else:
                assert right(bundle_dir, session, 2)
                assert {name: session.subgraph_placements[name].delegate for name in ("s1.gpu", "s2.gpu")} == {
                    "s1.gpu": "cpu",
                    "s2.gpu": "null",
                }
