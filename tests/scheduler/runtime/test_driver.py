"""What drivers of the state machine do alike, with code that is really compiled."""

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.delegates.base import UnableError
from scheduler.delegates.null import NullDelegate
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.placement.mapping import place_processors
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import Code
from scheduler.runtime.driver import Driver, Lane
from scheduler.runtime.events import StepFailed, StepReturned
from scheduler.runtime.plan import make_plan

STEM = "stem"


class Falling(ReferenceDelegate):
    """Computes, and says what runs instead where it cannot."""

    falls_back_on = "cpu"


class Standing(Driver[Lane]):
    """Starts nothing; notes which queues it was to open."""

    def __init__(self, path, lanes=1, delegate=None):
        bundle = load_bundle(path)
        plan = make_plan(bundle.manifest)
        buffers = [Buffers(plan, bundle.manifest.tensors) for _ in range(lanes)]
        super().__init__(plan, [Lane(each) for each in buffers], Code(bundle, {"reference": delegate or Falling()}), None)
        self.places = place_subgraphs(
            bundle.manifest.subgraphs, place_processors(["cpu", "gpu"], dict.fromkeys(("cpu", "gpu"), "reference"))
        )
        self.opened = []

    def _open(self, place):
        self.opened.append(place.queue)

    def _placed(self):
        return self.places


def test_code_is_bound_once_to_every_lanes_own_buffers(bundle_dir):
    driver = Standing(bundle_dir, lanes=3)
    place = driver.places[STEM]
    for _ in range(2):
        driver._add(STEM, place)
    calls = [lane.calls[STEM, place] for lane in driver._lanes]
    assert len(set(map(id, calls))) == 3
    out = driver.plan.subgraphs[STEM].outputs[0]
    for number, lane in enumerate(driver._lanes):
        lane.buffers.arrays["x"][...] = number
        lane.calls[STEM, place].run()
    results = [lane.buffers.arrays[out].copy() for lane in driver._lanes]
    assert not np.allclose(results[1], results[2])
    driver._add(STEM, place)
    assert [lane.calls[STEM, place] for lane in driver._lanes] == calls


def test_invocations_that_are_not_asynchronous_as_they_should_be_are_refused(bundle_dir):
    driver = Standing(bundle_dir)
    place = Placement("gpu", "reference", (), "reference:gpu", "async", True, "")
    with pytest.raises(StretchError, match="`reference` says that it is asynchronous"):
        driver._add(STEM, place)
    assert (STEM, place) not in driver._lanes[0].calls
    assert driver.opened == []


def test_step_that_cannot_run_goes_where_its_delegate_falls_back_on(bundle_dir):
    driver = Standing(bundle_dir)
    place = driver.places[STEM]
    with pytest.warns(UserWarning, match="subgraph `stem` of the cpu runs on the CPU: lost"):
        event = driver._lost(0, STEM, place.queue, place, UnableError("lost"))
    assert isinstance(event, StepReturned)
    assert event.placement.delegate == "cpu"
    assert (STEM, event.placement) in driver._lanes[0].calls
    assert driver._replaced == {STEM: event.placement.reason}
    assert driver._lanes[0].errors == {}


def test_step_that_another_inference_has_placed_anew_is_not_placed_again(bundle_dir):
    driver = Standing(bundle_dir)
    before = driver.places[STEM]
    elsewhere = Placement("cpu", "cpu", (), "elsewhere", "blocking", True, "found before")
    driver.places = {**driver.places, STEM: elsewhere}
    event = driver._lost(0, STEM, before.queue, before, UnableError("lost"))
    assert event == StepReturned(0, STEM, before.queue, elsewhere)
    assert driver.opened == []


@pytest.mark.parametrize("error", [ValueError("broken"), UnableError("lost")])
def test_step_that_has_nowhere_to_go_fails_with_its_own_error(bundle_dir, error):
    driver = Standing(bundle_dir, delegate=NullDelegate())
    place = driver.places[STEM]
    event = driver._lost(0, STEM, place.queue, place, error)
    assert event == StepFailed(0, STEM, place.queue, str(error))
    assert driver._lanes[0].errors == {STEM: error}
