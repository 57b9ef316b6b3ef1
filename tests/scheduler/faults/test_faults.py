"""Decisions about sites that fail, and sessions whose delegates do: nothing is lost, nothing is wrong."""

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


def told(policy, events):
    """Decisions, with the number of the event; a site on trial has its work again at once."""
    keeper, rows = FaultTracker(policy), []
    for number, event in enumerate(events):
        for item in keeper.handle(event):
            rows.append((number, item.site, item.what, item.inferences))
            if item.what == "on trial":
                assert keeper.handle(SiteReturned(item.site)) == []
    return rows


def test_inferences_count_for_a_trial_only_when_the_site_has_its_work_again():
    keeper = FaultTracker(FaultPolicy(back_off=1, trial=1))
    keeper.handle(failed())
    assert [item.what for item in keeper.handle(InferenceEnded())] == ["on trial"]
    assert [keeper.handle(InferenceEnded()) for _ in range(5)] == [[]] * 5
    keeper.handle(SiteReturned(GPU))
    assert [item.what for item in keeper.handle(InferenceEnded())] == ["restored"]


def failed(**more):
    return SiteFailed(GPU, "s1.gpu", "it broke", **more)


def test_site_that_fails_on_trial_is_left_alone_for_twice_as_long_up_to_the_longest():
    policy = FaultPolicy(back_off=2, longest=5, trial=3)
    keeper, rows = FaultTracker(policy), []
    for _ in range(4):
        rows += keeper.handle(failed())
        while keeper.is_retired(GPU):
            keeper.handle(InferenceEnded())
    assert [row.inferences for row in rows] == [2, 4, 5, 5]


def test_site_that_was_restored_begins_with_the_first_back_off_again_and_one_that_hangs_is_never_tried_again():
    events = [failed(), InferenceEnded(), failed(), *[InferenceEnded()] * 3, failed()]
    result = [item for item in told(FaultPolicy(back_off=1, trial=1), events) if item[2] == "retired"]
    assert result == [(0, GPU, "retired", 1), (2, GPU, "retired", 2), (6, GPU, "retired", 1)]
    result = told(FaultPolicy(back_off=1), [failed(), failed(for_good=True), *[InferenceEnded()] * 100])
    assert result == [(0, GPU, "retired", 1), (1, GPU, "retired", None)]


@pytest.mark.parametrize("numbers", [{"back_off": 0}, {"back_off": 9, "longest": 8}, {"trial": 0}, {"spot_every": -1}])
def test_numbers_that_make_no_sense_are_refused(numbers):
    with pytest.raises(UsageError):
        FaultPolicy(**numbers)


def test_many_threads_that_see_the_same_fault_decide_once():
    keeper = FaultTracker(FaultPolicy())
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(keeper.handle, [failed()] * 16))
    assert len(keeper.decisions) == 1


class Broken(Hooked):
    """ONNX Runtime, in which the runs of a list go wrong: by an exception, NaN, other numbers or by never ending."""

    def __init__(self, *wrong):
        super().__init__(self.go_wrong)
        self.wrong, self.runs, self.compiled = list(wrong), 0, []
        self.release, self.released = threading.Event(), threading.Event()

    def compile(self, model):
        self.compiled.append(model.stem)
        return super().compile(model)

    def go_wrong(self, model, run, outputs):
        self.runs += 1
        how = self.wrong.pop(0) if self.wrong else None
        if isinstance(how, Exception):
            raise how
        if how == "hang":
            self.release.wait(60)
            outputs[0].fill(np.nan)
            self.released.set()
            return
        run()
        if how == "nan":
            outputs[0].flat[3] = np.nan
        if how == "wrong":
            outputs[0] *= 1.5


def options(session):
    return {"run": session, "submit": lambda x: session.submit(x).result(60)}


def right(bundle_dir, session, count, way="run"):
    """Whether so many inferences are those of the model."""
    return all(np.allclose(options(session)[way](x), whole(bundle_dir, x), atol=1e-5) for x in numbers(shape=(count, 1, 3, 8, 8)))


def made(bundle_dir, broken, policy=None, **options):
    return Session(bundle_dir, {"gpu": "null"}, delegates={"null": broken}, faults=policy or FaultPolicy(back_off=2, trial=2), **options)


@pytest.mark.parametrize("way", ["run", "submit"])
@pytest.mark.parametrize("fault", [UnableError("the device is lost"), RuntimeError("it broke"), ValueError(), "nan"], ids=str)
def test_delegate_that_fails_is_retired_its_work_is_done_elsewhere_and_it_comes_back(bundle_dir, way, fault):
    # two subgraphs of an inference run there
    broken = Broken(None, None, fault)
    with made(bundle_dir, broken) as session:
        assert right(bundle_dir, session, 12, way)
        assert [(decision.inference, decision.what) for decision in session.decisions] == [(1, "retired"), (3, "on trial"), (5, "restored")]
        assert (session.decisions[0].site.delegate, "s1.gpu" in session.decisions[0].reason) == ("null", True)
        assert session.subgraph_placements["s1.gpu"].delegate == "null"
        assert broken.runs > 8
        # compiled again when it comes back
        assert sorted(broken.compiled) == ["s1.gpu", "s1.gpu", "s2.gpu", "s2.gpu"]


def test_wrong_numbers_are_found_by_spot_checks(bundle_dir):
    broken = Broken(*[None] * 4, *["wrong"] * 100)
    with made(bundle_dir, broken, FaultPolicy(back_off=2, trial=2, spot_every=3)) as session:
        assert right(bundle_dir, session, 4)
        assert "is off by" in session.decisions[0].reason
        assert session.subgraph_placements["s1.gpu"].delegate == "cpu"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("way", ["run", "submit"])
def test_call_that_hangs_is_left_behind_for_good_and_the_inference_is_done(bundle_dir, way):
    broken = Broken(None, None, "hang")
    with made(bundle_dir, broken, time_limit=1.0) as session:
        assert right(bundle_dir, session, 6, way)
        assert [(decision.what, decision.inferences) for decision in session.decisions] == [("retired", None)]
        assert session.subgraph_placements["s1.gpu"].delegate == "cpu"
        broken.release.set()
        # what it writes now, it writes into memory that nobody reads any more
        assert broken.released.wait(60)
        assert right(bundle_dir, session, 1)


class Refusing(Hooked):
    """ONNX Runtime, which takes over all subgraphs but one."""

    def __init__(self, refused):
        super().__init__(lambda model, run, outputs: run())
        self.refused = refused

    def compile(self, model):
        if model.stem == self.refused:
            raise UnableError("no kernel")
        return super().compile(model)


def test_subgraph_that_nothing_else_can_run_stays_where_it_failed_and_is_an_error_where_it_hangs(bundle_dir):
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
