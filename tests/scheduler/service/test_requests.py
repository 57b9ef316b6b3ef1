from math import inf

from hypothesis import given
from hypothesis import strategies as st

from scheduler.service.requests import Request, Waiting

ROOM = {"a": True, "b": True}


def request(model="a", *, priority=0, arrived=0.0, deadline=inf):
    return Request(model, None, priority, arrived, deadline)


def order(requests, used=(), room=ROOM):
    waiting = Waiting(ROOM, 100)
    for model, seconds in used:
        waiting.used(model, seconds)
    for each in requests:
        waiting.add(each)
    found = []
    while (each := waiting.next(room)) is not None:
        found.append(requests.index(each))
    return found


def test_priority_goes_before_deadline_and_deadline_before_arrival():
    requests = [request(arrived=0), request(arrived=1, deadline=9), request(arrived=2, deadline=5), request(arrived=3, priority=1)]
    assert order(requests) == [3, 2, 1, 0]


def test_model_that_had_least_of_the_processors_goes_first():
    requests = [request("a", arrived=0), request("b", arrived=1)]
    assert order(requests, used=[("a", 2.0), ("b", 1.0)]) == [1, 0]


def test_requests_that_are_late_are_taken_away():
    waiting = Waiting(ROOM, 9)
    early, late, never = request(deadline=1), request(deadline=2), request()
    for each in (late, never, early):
        waiting.add(each)
    assert waiting.first_deadline == 1
    assert waiting.overdue(1.5) == [early]
    assert len(waiting) == 2
    assert waiting.everything() == [late, never]
    assert waiting.first_deadline is None


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3))))
def test_nobody_goes_before_someone_of_higher_priority_or_earlier_deadline(pairs):
    requests = [
        request(priority=priority, arrived=float(number), deadline=float(deadline)) for number, (priority, deadline) in enumerate(pairs)
    ]
    found = order(requests)
    assert sorted(found) == list(range(len(pairs)))
    keys = [(-pairs[each][0], pairs[each][1], each) for each in found]
    assert keys == sorted(keys)
