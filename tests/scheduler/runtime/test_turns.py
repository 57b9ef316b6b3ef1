"""The order of what waits for queues, as lists of events."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.turns import Turns


def turns(*users, patience_ms=1e9, **weights):
    found = Turns(patience_ms)
    for user in users or ("a", "b"):
        found.add(user, weights.get(user, 1.0))
    return found


def asked(found, *inferences, queue="q", at=0.0):
    """Begin inferences of (user, lane, deadline, priority), each with a step for the queue."""
    for user, lane, *rest in inferences:
        found.begin((user, lane), at, *rest)
        found.ask((user, lane), "s", queue)


def drained(found, queue="q", at=0.0, ms=1.0):
    """Who gets the queue, one after the other."""
    order = []
    while (turn := found.next(queue, at)) is not None:
        order.append(turn[0])
        at += ms
        found.leave(queue, at)
    return order


def test_earliest_deadline_goes_first_then_priority_then_whoever_began_first():
    found = turns()
    asked(found, ("a", 0), ("a", 1, 50.0), ("b", 0, 20.0), ("a", 2, inf, 3), ("b", 1, inf, 3), ("b", 2, 20.0, 1))
    assert drained(found) == [("b", 2), ("b", 0), ("a", 1), ("a", 2), ("b", 1), ("a", 0)]


def test_queue_that_is_held_or_not_wanted_is_given_to_nobody():
    found = turns()
    assert found.next("q", 0.0) is None
    asked(found, ("a", 0), ("b", 0))
    assert found.next("q", 0.0) == (("a", 0), "s")
    assert found.next("q", 0.0) is None
    assert found.holder("q") == (("a", 0), "s")
    assert found.waiting("q") == ((("b", 0), "s"),)


def test_who_was_given_less_goes_first_and_weights_count():
    found = turns(a=2.0)
    given_to = {"a": 0, "b": 0}
    for user in given_to:
        for lane in range(40):
            asked(found, (user, lane))
    for number in range(30):
        turn = found.next("q", float(number))
        given_to[turn[0][0]] += 1
        found.leave("q", number + 1.0)
    assert given_to == {"a": 20, "b": 10}


def test_who_wanted_nothing_for_long_is_owed_nothing():
    found = turns()
    asked(found, *(("a", lane) for lane in range(60)))
    for number in range(20):
        found.next("q", float(number))
        found.leave("q", number + 1.0)
    asked(found, *(("b", lane) for lane in range(40)), at=20.0)
    order = [user for user, _ in drained(found, at=20.0)]
    # from now on in turns, not b alone until it has had twenty
    assert abs(order[:20].count("a") - order[:20].count("b")) <= 1


def test_inference_without_a_deadline_becomes_the_most_urgent_when_it_has_waited_long_enough():
    found = turns(patience_ms=10.0)
    asked(found, ("a", 0, inf, -100))
    order = []
    at = 0.0
    for lane in range(30):  # of b, whose deadlines are always near
        asked(found, ("b", lane, at + 3.0), at=at)
        turn = found.next("q", at)
        order.append(turn[0])
        at += 1.0
        found.leave("q", at)
        if turn[0] == ("a", 0):
            break
    assert order.index(("a", 0)) == 10


def test_events_that_cannot_follow_are_refused():
    found = turns()
    with pytest.raises(ValueError, match="not begun"):
        found.ask(("a", 0), "s", "q")
    with pytest.raises(ValueError, match="cannot begin"):
        found.begin(("nobody", 0), 0.0)
    found.begin(("a", 0), 0.0)
    with pytest.raises(ValueError, match="cannot begin"):
        found.begin(("a", 0), 0.0)
    with pytest.raises(ValueError, match="nothing runs"):
        found.leave("q", 0.0)


def test_what_waits_of_an_inference_that_is_over_does_not_run():
    found = turns()
    asked(found, ("a", 0), ("b", 0))
    found.end(("a", 0))
    assert drained(found) == [("b", 0)]
    assert found.given_ms("q", "b") == 1.0
    assert found.given_ms("elsewhere", "b") == 0.0


SOME = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.just(inf), st.integers(1, 50).map(float)), st.integers(-2, 2), st.integers(1, 9)),
    min_size=1,
    max_size=30,
)


@given(SOME)
def test_each_that_waits_gets_its_turn_once_in_the_order_of_deadlines_and_priorities(inferences):
    found = turns("a", "b", "c")
    keys = {}
    for lane, (user, deadline, priority, _) in enumerate(inferences):
        asked(found, (user, lane, deadline, priority))
        keys[user, lane] = (deadline, -priority)
    order = drained(found)
    assert sorted(order) == sorted(keys)
    assert [keys[each] for each in order] == sorted(keys.values())


@pytest.mark.slow
@given(st.lists(st.integers(1, 20), min_size=20, max_size=80), st.lists(st.integers(1, 20), min_size=20, max_size=80), st.integers(1, 4))
def test_two_who_always_want_a_queue_differ_by_one_step_each_at_most(one, other, weight):
    found = turns(a=float(weight))
    lengths = {"a": list(one), "b": list(other)}
    for user, steps in lengths.items():
        asked(found, *((user, lane) for lane in range(len(steps))))
    at, had = 0.0, {"a": 0.0, "b": 0.0}
    while all(lengths.values()):
        (user, _), _ = found.next("q", at)
        ms = lengths[user].pop()
        at += ms
        found.leave("q", at)
        had[user] += ms
        assert abs(had["a"] / weight - had["b"]) <= 20 / weight + 20 + 1e-9
