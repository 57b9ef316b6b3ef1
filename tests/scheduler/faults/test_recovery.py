"""Where subgraphs go and come back to, with code that compiles or refuses; sessions that do it are in test_session_faults."""

import pytest

from predictors.errors import StretchError
from scheduler.faults.keeper import Keeper
from scheduler.faults.policy import FaultPolicy, Site
from scheduler.faults.recovery import Recovery
from scheduler.placement.fallback import fallback_placement
from scheduler.placement.place import Placement

GPU = Placement("gpu", "opencl", (), "gpu", "async", True, "")
CPU = Placement("cpu", "cpu", (0,), "cpu0", "inline", False, "")
HOME = {"a": GPU, "b": GPU, "c": CPU}


class Code:
    """Compiles all but what it is told to refuse."""

    def __init__(self, *refused):
        self.refused, self.forgotten = refused, []

    def stand_in(self, name, place, error, queues):
        if name in self.refused:
            raise error
        return fallback_placement(place, "cpu", str(error), queues)

    def forget(self, site):
        self.forgotten.append(site)


class Runner:
    """Says where it was told to run what; refuses what it is told to refuse."""

    def __init__(self, places, *refused):
        self.places, self.refused, self.forgotten = dict(places), refused, []

    def replace(self, name, place):
        if name in self.refused:
            raise StretchError("it does not compile")
        self.places[name] = place

    def forget(self, site):
        self.forgotten.append(site)


def recovery(code):
    return Recovery(HOME, Keeper(FaultPolicy(back_off=1, trial=1)), code)


def test_everything_on_a_retired_site_leaves_and_comes_back_made_anew():
    code, runner = Code(), Runner(HOME)
    found = recovery(code)
    found.keeper.failed(GPU, "a", "it broke")
    found.carry_out(runner.places, runner)
    assert {name: place.delegate for name, place in runner.places.items()} == dict.fromkeys("abc", "cpu")
    assert code.forgotten == []
    found.keeper.ended()
    found.carry_out(runner.places, runner)
    assert runner.places == HOME
    assert code.forgotten == runner.forgotten == [Site.of(GPU)]


def test_of_what_was_decided_while_nothing_was_carried_out_the_last_word_counts():
    runner = Runner(HOME)
    found = recovery(Code())
    found.keeper.failed(GPU, "a", "it broke")
    found.keeper.ended()
    found.carry_out(runner.places, runner)
    assert runner.places == HOME
    assert [each.what for each in found.keeper.decisions] == ["retired", "on trial"]


def test_what_nothing_else_can_run_stays():
    runner = Runner(HOME)
    found = recovery(Code("b"))
    found.keeper.failed(GPU, "a", "it broke")
    found.carry_out(runner.places, runner)
    assert {name: place.delegate for name, place in runner.places.items()} == {"a": "cpu", "b": "opencl", "c": "cpu"}


def test_site_that_cannot_even_compile_on_trial_has_failed_again():
    runner = Runner(HOME, "a")
    found = recovery(Code())
    found.keeper.failed(GPU, "a", "it broke")
    found.keeper.ended()
    found.carry_out(runner.places, runner)
    assert [(each.what, each.inferences) for each in found.keeper.decisions] == [("retired", 1), ("on trial", None), ("retired", 2)]


def test_site_that_hangs_is_left_by_all_or_said_to_be_needed():
    assert {place.delegate for place in recovery(Code()).without(Site.of(GPU), "it hangs", HOME).values()} == {"cpu"}
    with pytest.raises(StretchError, match="it hangs"):
        recovery(Code("a")).without(Site.of(GPU), "it hangs", HOME)
