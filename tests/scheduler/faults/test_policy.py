import pytest

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


def test_site_that_hangs_is_never_tried_again():
    found = told(FaultPolicy(back_off=1), [failed(), failed(for_good=True), *[Ended()] * 100])
    assert found == [(0, GPU, "retired", 1), (1, GPU, "retired", None)]


@pytest.mark.parametrize("numbers", [{"back_off": 0}, {"back_off": 9, "longest": 8}, {"trial": 0}, {"spot_every": -1}])
def test_numbers_that_make_no_sense_are_refused(numbers):
    with pytest.raises(UsageError):
        FaultPolicy(**numbers)
