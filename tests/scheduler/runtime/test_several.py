"""The state machine of several users, as lists of events."""

from dataclasses import replace
from heapq import heappop, heappush
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.runtime.events import Fail, Finish, Replaced, Start, StepDone, StepFailed, StepReturned
from scheduler.runtime.several import Begins, Go, Gone, Left, Several, Told, User
from tests.scheduler.runtime.plans import blocking, planned, plans

ONE = planned([("one", "gpu", "x", "t"), ("two", "gpu", "t", "y")])


def user(plan_and_places=ONE, lanes=2, weight=1.0):
    return User(*plan_and_places, lanes, weight)


def two(**options):
    return Several({"a": user(), "b": user()}, **options)


def started(answer):
    return [(go.user, go.instruction.lane, go.instruction.step) for go in answer if isinstance(go.instruction, Start)]


def test_between_two_steps_of_one_inference_another_user_comes_first_if_it_is_more_urgent():
    several = two()
    several.handle(Begins("a", 0, 0.0))
    several.handle(Begins("b", 0, 1.0, deadline_ms=20.0))
    assert started(several.handle(Told("a", 5.0, StepDone(0, "one", "gpu")))) == [("b", 0, "one")]
    assert started(several.handle(Told("b", 6.0, StepDone(0, "one", "gpu")))) == [("b", 0, "two")]
    ended = several.handle(Told("b", 7.0, StepDone(0, "two", "gpu")))
    assert started(ended) == [("a", 0, "two")]
    assert ended[-1] == Go("b", Finish(0))


def test_without_deadlines_users_take_turns_by_what_they_were_given():
    several = two()
    several.handle(Begins("a", 0, 0.0))
    several.handle(Begins("b", 0, 0.0))
    assert started(several.handle(Told("a", 5.0, StepDone(0, "one", "gpu")))) == [("b", 0, "one")]
    assert started(several.handle(Told("b", 6.0, StepDone(0, "one", "gpu")))) == [("b", 0, "two")]


def test_lane_may_be_used_again_once_its_inference_is_over_and_not_before():
    several = two()
    several.handle(Begins("a", 0, 0.0))
    with pytest.raises(ValueError, match="cannot begin"):
        several.handle(Begins("a", 0, 0.0))
    with pytest.raises(ValueError, match="has no lane 2"):
        several.handle(Begins("a", 2, 0.0))
    several.handle(Told("a", 1.0, StepDone(0, "one", "gpu")))
    assert several.handle(Told("a", 2.0, StepDone(0, "two", "gpu"))) == [Go("a", Finish(0))]
    assert started(several.handle(Begins("a", 0, 3.0))) == [("a", 0, "one")]


def test_failure_ends_its_inference_and_nothing_of_others():
    several = two()
    several.handle(Begins("a", 0, 0.0))
    several.handle(Begins("b", 0, 0.0))
    answer = several.handle(Told("a", 1.0, StepFailed(0, "one", "gpu", "broken")))
    assert started(answer) == [("b", 0, "one")]
    assert answer[-1] == Go("a", Fail(0, "one", "broken"))
    assert several.in_flight("a") == 0


def test_step_that_comes_back_waits_where_it_is_placed_now_and_the_others_go_along():
    several = two()
    there = replace(blocking("gpu", 3), reason="elsewhere")
    several.handle(Begins("a", 0, 0.0))
    several.handle(Begins("a", 1, 0.0))
    several.handle(Begins("b", 0, 0.0))
    answer = several.handle(Told("a", 1.0, StepReturned(0, "one", "gpu", there)))
    assert [(go.user, go.instruction.lane, go.instruction.queue) for go in answer] == [("b", 0, "gpu"), ("a", 0, "cpu3")]
    assert several.placements("a")["one"].queue == "cpu3"
    # the other one waits where it was placed when it began to
    assert several.turns.waiting("gpu") == ((("a", 1), "one"),)


def test_subgraph_that_is_placed_elsewhere_starts_there_in_inferences_to_come():
    several = two()
    several.handle(Told("a", 0.0, Replaced("one", blocking("gpu", 3))))
    (go,) = several.handle(Begins("a", 0, 1.0))
    assert go.instruction.queue == go.place.queue == "cpu3"
    assert several.placements("b")["one"].queue == "gpu"


def test_user_who_is_gone_holds_a_queue_until_it_is_left_and_may_come_back():
    several = two()
    several.handle(Begins("a", 0, 0.0))
    several.handle(Begins("a", 1, 0.0))
    several.handle(Begins("b", 0, 0.0))
    assert several.handle(Gone("a", 1.0)) == []
    assert (several.in_flight("a"), several.in_flight("b")) == (0, 1)
    with pytest.raises(ValueError, match="not running"):
        several.handle(Told("a", 2.0, StepDone(0, "one", "gpu")))
    several.add("a", user(lanes=1))
    assert several.handle(Begins("a", 0, 3.0)) == []
    assert started(several.handle(Left("gpu", 4.0))) == [("b", 0, "one")]
    assert started(several.handle(Told("b", 5.0, StepDone(0, "one", "gpu")))) == [("b", 0, "two")]
    ended = several.handle(Told("b", 6.0, StepDone(0, "two", "gpu")))
    assert started(ended) == [("a", 0, "one")]


def test_users_are_checked():
    with pytest.raises(UsageError, match="weight"):
        Several({"a": user(weight=0.0)})
    with pytest.raises(ValueError, match="needs a lane"):
        Several({"a": user(lanes=0)})
    several = two()
    several.handle(Begins("a", 0, 0.0))
    with pytest.raises(ValueError, match="in flight"):
        several.add("a", user())
    with pytest.raises(ValueError, match="has no lane"):
        several.handle(Begins("nobody", 0, 0.0))
    with pytest.raises(ValueError, match="not running"):
        several.handle(Told("b", 0.0, StepDone(0, "one", "gpu")))


@st.composite
def worlds(draw):
    """Users with plans of their own, and inferences of (user, arrival, deadline, priority, seed of its times)."""
    users = {
        name: User(*draw(plans()), draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 2.0])))
        for name in ("a", "b", "c")[: draw(st.integers(1, 3))]
    }
    asked = draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(users)), st.integers(0, 60), st.one_of(st.just(inf), st.integers(1, 80)), st.integers(-3, 3)),
            min_size=1,
            max_size=12,
        )
    )
    return users, sorted(asked, key=lambda each: each[1]), draw(st.lists(st.integers(0, 9), min_size=8, max_size=8))


def play(users, asked, lengths, several):
    """Run all of it on a clock that is a number; gives events, answers and what was told of each inference."""
    free = {name: list(range(each.lanes)) for name, each in users.items()}
    pending, ends, log, number = list(asked), [], [], 0
    count = 0

    def tell(event, now):
        nonlocal count
        answer = several.handle(event)
        log.append((event, answer))
        for go in answer:
            if isinstance(go.instruction, Start):
                count += 1
                ms = lengths[(len(go.instruction.step) + go.instruction.lane + count) % len(lengths)]
                heappush(ends, (now + ms, count, go.user, go.instruction))
            elif isinstance(go.instruction, Finish):
                free[go.user].append(go.instruction.lane)

    now = 0.0
    while pending or ends:
        for each in [each for each in pending if each[1] <= now and free[each[0]]]:
            if free[each[0]]:
                pending.remove(each)
                number += 1
                name, at, deadline, priority = each
                tell(Begins(name, free[name].pop(0), now, at + deadline, priority), now)
        coming = [each[1] for each in pending if each[1] > now]
        if not ends:
            now = min(coming) if coming else now
            continue
        if coming and min(coming) < ends[0][0]:
            now = min(coming)
            continue
        now, _, name, start = heappop(ends)
        tell(Told(name, now, StepDone(start.lane, start.step, start.queue)), now)
    return log


@pytest.mark.slow
@given(worlds())
def test_nothing_is_lost_steps_come_in_order_and_the_same_events_have_the_same_answers(world):
    users, asked, lengths = world
    log = play(users, asked, lengths, Several(users))
    begun = [event for event, _ in log if isinstance(event, Begins)]
    finished = [go for _, answer in log for go in answer if isinstance(go.instruction, Finish)]
    assert len(begun) == len(finished) == len(asked)
    _check_steps(users, log)
    again = Several(users)
    assert [again.handle(event) for event, _ in log] == [answer for _, answer in log]


def _check_steps(users, log):
    """Each step runs once an inference, after what it reads, on a queue that runs nothing else."""
    running, there, done = {}, {}, {}
    for event, answer in log:
        if isinstance(event, Begins):
            there[event.user, event.lane] = set(users[event.user].plan.inputs)
            done[event.user, event.lane] = set()
        else:
            step = event.event
            assert running.pop(step.queue) == (event.user, step.lane, step.step)
            there[event.user, step.lane] |= set(users[event.user].plan.step(step.step).outputs)
            done[event.user, step.lane].add(step.step)
        for go in answer:
            plan = users[go.user].plan
            key = (go.user, go.instruction.lane)
            if isinstance(go.instruction, Finish):
                assert done[key] == set(plan.order)
                continue
            start = go.instruction
            assert set(plan.step(start.step).inputs) <= there[key]
            assert start.step not in done[key]
            assert start.queue not in running
            running[start.queue] = (*key, start.step)


@pytest.mark.slow
@given(worlds())
def test_no_step_starts_while_one_with_an_earlier_deadline_waits_for_the_same_queue(world):
    users, asked, lengths = world
    several = Several(users, patience_ms=1e9)
    deadlines, late = {}, []
    handle = several.handle

    def watched(event):
        if isinstance(event, Begins):
            deadlines[event.user, event.lane] = event.deadline_ms
        answer = handle(event)
        for go in answer:
            if isinstance(go.instruction, Start):
                own = deadlines[go.user, go.instruction.lane]
                late.extend(one for one, _ in several.turns.waiting(go.instruction.queue) if deadlines[one] < own)
        return answer

    several.handle = watched
    play(users, asked, lengths, several)
    assert not late
