import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.faults.policy import Ended, Failed, FaultPolicy, Probation, Returned, Site

GPU, CPU = Site("opencl", ()), Site("cpu", (1,))


def told(policy, events):
    """What is decided, with the number of the event; what is on trial has its work again at once."""
    probation, found = Probation(policy), []
    for number, event in enumerate(events):
        for each in probation.handle(event):
            found.append((number, each.site, each.what, each.inferences))
            if each.what == "on trial":
                assert probation.handle(Returned(each.site)) == []
    return found


def test_inferences_count_for_a_trial_only_when_the_site_has_its_work_again():
    probation = Probation(FaultPolicy(back_off=1, trial=1))
    probation.handle(failed())
    assert [each.what for each in probation.handle(Ended())] == ["on trial"]
    assert [probation.handle(Ended()) for _ in range(5)] == [[]] * 5
    probation.handle(Returned(GPU))
    assert [each.what for each in probation.handle(Ended())] == ["restored"]


def failed(site=GPU, **more):
    return Failed(site, "s1.gpu", "it broke", **more)


def test_site_that_fails_is_left_alone_tried_and_restored():
    policy = FaultPolicy(back_off=3, trial=2)
    events = [Ended(), failed(), *[Ended()] * 6]
    assert told(policy, events) == [(1, GPU, "retired", 3), (4, GPU, "on trial", None), (6, GPU, "restored", None)]


def test_site_that_fails_on_trial_is_left_alone_for_twice_as_long_up_to_the_longest():
    policy = FaultPolicy(back_off=2, longest=5, trial=3)
    probation, found = Probation(policy), []
    for _ in range(4):
        found += probation.handle(failed())
        while probation.retired(GPU):
            probation.handle(Ended())
    assert [each.inferences for each in found] == [2, 4, 5, 5]


def test_site_that_was_restored_begins_with_the_first_back_off_again():
    policy = FaultPolicy(back_off=1, trial=1)
    found = told(policy, [failed(), Ended(), failed(), Ended(), Ended(), Ended(), failed()])
    assert [each for each in found if each[2] == "retired"] == [(0, GPU, "retired", 1), (2, GPU, "retired", 2), (6, GPU, "retired", 1)]


def test_of_several_that_fail_at_once_the_first_tells():
    assert told(FaultPolicy(), [failed(), failed(), failed(CPU)]) == [(0, GPU, "retired", 8), (2, CPU, "retired", 8)]


def test_site_that_hangs_is_never_tried_again():
    found = told(FaultPolicy(back_off=1), [failed(), failed(for_good=True), *[Ended()] * 100])
    assert found == [(0, GPU, "retired", 1), (1, GPU, "retired", None)]


@given(st.lists(st.sampled_from([Ended(), failed(), failed(CPU), failed(for_good=True)])))
def test_what_is_decided_of_a_site_follows_what_was_decided_before(events):
    last = {}
    for _, site, what, inferences in told(FaultPolicy(back_off=2, trial=2), events):
        before, for_good = last.get(site, ("restored", False))
        assert what in {"restored": ("retired",), "retired": ("on trial", "retired"), "on trial": ("restored", "retired")}[before]
        assert not for_good
        assert before != "retired" or what != "retired" or inferences is None
        last[site] = (what, what == "retired" and inferences is None)


def test_same_events_come_to_the_same_decisions():
    events = [failed(), *[Ended()] * 9, failed(CPU), *[Ended()] * 30]
    assert told(FaultPolicy(), events) == told(FaultPolicy(), events)


@pytest.mark.parametrize("numbers", [{"back_off": 0}, {"back_off": 9, "longest": 8}, {"trial": 0}, {"spot_every": -1}])
def test_numbers_that_make_no_sense_are_refused(numbers):
    with pytest.raises(UsageError):
        FaultPolicy(**numbers)
