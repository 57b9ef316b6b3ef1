"""Several clients of the same processors, and whose turn it is."""

from dataclasses import replace
from heapq import heappop, heappush
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.runtime.events import Fail, Finish, Replaced, Start, StepDone, StepFailed, StepReturned
from scheduler.runtime.multi_tenant import Client, ClientRemoved, Command, MultiTenantMachine, QueueReleased, RequestArrived, StepEvent
from scheduler.runtime.turns import Turns
from tests.scheduler.runtime.plans import blocking, planned, plans

ONE = planned([("one", "gpu", "x", "t"), ("two", "gpu", "t", "y")])


def client(plan_and_places=ONE, lanes=2, weight=1.0):
    return Client(*plan_and_places, lanes, weight)


def two(**options):
    return MultiTenantMachine({"a": client(), "b": client()}, **options)


def started(answer):
    starts = [(command.client, command.instruction) for command in answer if isinstance(command.instruction, Start)]
    return [(client, start.lane, start.step) for client, start in starts]


def test_between_two_steps_of_one_inference_another_user_comes_first_if_it_is_more_urgent():
    machine = two()
    machine.handle(RequestArrived("a", 0, 0.0))
    machine.handle(RequestArrived("b", 0, 1.0, deadline_ms=20.0))
    assert started(machine.handle(StepEvent("a", 5.0, StepDone(0, "one", "gpu")))) == [("b", 0, "one")]
    assert started(machine.handle(StepEvent("b", 6.0, StepDone(0, "one", "gpu")))) == [("b", 0, "two")]
    ended = machine.handle(StepEvent("b", 7.0, StepDone(0, "two", "gpu")))
    assert started(ended) == [("a", 0, "two")]
    assert ended[-1] == Command("b", Finish(0))


def test_without_deadlines_users_take_turns_by_what_they_were_given():
    machine = two()
    machine.handle(RequestArrived("a", 0, 0.0))
    machine.handle(RequestArrived("b", 0, 0.0))
    assert started(machine.handle(StepEvent("a", 5.0, StepDone(0, "one", "gpu")))) == [("b", 0, "one")]
    assert started(machine.handle(StepEvent("b", 6.0, StepDone(0, "one", "gpu")))) == [("b", 0, "two")]


def test_lane_may_be_used_again_once_its_inference_is_over_and_not_before():
    machine = two()
    machine.handle(RequestArrived("a", 0, 0.0))
    with pytest.raises(ValueError, match="cannot begin"):
        machine.handle(RequestArrived("a", 0, 0.0))
    with pytest.raises(ValueError, match="has no lane 2"):
        machine.handle(RequestArrived("a", 2, 0.0))
    machine.handle(StepEvent("a", 1.0, StepDone(0, "one", "gpu")))
    assert machine.handle(StepEvent("a", 2.0, StepDone(0, "two", "gpu"))) == [Command("a", Finish(0))]
    assert started(machine.handle(RequestArrived("a", 0, 3.0))) == [("a", 0, "one")]


def test_failure_ends_its_inference_and_nothing_of_others():
    machine = two()
    machine.handle(RequestArrived("a", 0, 0.0))
    machine.handle(RequestArrived("b", 0, 0.0))
    answer = machine.handle(StepEvent("a", 1.0, StepFailed(0, "one", "gpu", "broken")))
    assert started(answer) == [("b", 0, "one")]
    assert answer[-1] == Command("a", Fail(0, "one", "broken"))
    assert machine.in_flight("a") == 0


def test_step_that_comes_back_waits_where_it_is_placed_now_and_the_others_go_along():
    machine = two()
    there = replace(blocking("gpu", 3), reason="elsewhere")
    machine.handle(RequestArrived("a", 0, 0.0))
    machine.handle(RequestArrived("a", 1, 0.0))
    machine.handle(RequestArrived("b", 0, 0.0))
    answer = machine.handle(StepEvent("a", 1.0, StepReturned(0, "one", "gpu", there)))
    assert [(each.client, each.instruction.lane, each.instruction.queue) for each in answer] == [("b", 0, "gpu"), ("a", 0, "cpu3")]
    assert machine.placements("a")["one"].queue == "cpu3"
    # the other one waits where it was placed when it began to
    assert machine.turns.waiting("gpu") == ((("a", 1), "one"),)


def test_subgraph_that_is_placed_elsewhere_starts_there_in_inferences_to_come():
    machine = two()
    machine.handle(StepEvent("a", 0.0, Replaced("one", blocking("gpu", 3))))
    (command,) = machine.handle(RequestArrived("a", 0, 1.0))
    assert command.instruction.queue == command.place.queue == "cpu3"
    assert machine.placements("b")["one"].queue == "gpu"


def test_user_who_is_gone_holds_a_queue_until_it_is_left_and_may_come_back():
    machine = two()
    machine.handle(RequestArrived("a", 0, 0.0))
    machine.handle(RequestArrived("a", 1, 0.0))
    machine.handle(RequestArrived("b", 0, 0.0))
    assert machine.handle(ClientRemoved("a", 1.0)) == []
    assert (machine.in_flight("a"), machine.in_flight("b")) == (0, 1)
    with pytest.raises(ValueError, match="not running"):
        machine.handle(StepEvent("a", 2.0, StepDone(0, "one", "gpu")))
    machine.add("a", client(lanes=1))
    assert machine.handle(RequestArrived("a", 0, 3.0)) == []
    assert started(machine.handle(QueueReleased("gpu", 4.0))) == [("b", 0, "one")]
    assert started(machine.handle(StepEvent("b", 5.0, StepDone(0, "one", "gpu")))) == [("b", 0, "two")]
    ended = machine.handle(StepEvent("b", 6.0, StepDone(0, "two", "gpu")))
    assert started(ended) == [("a", 0, "one")]


def test_users_are_checked():
    with pytest.raises(UsageError, match="weight"):
        MultiTenantMachine({"a": client(weight=0.0)})
    with pytest.raises(ValueError, match="needs a lane"):
        MultiTenantMachine({"a": client(lanes=0)})
    machine = two()
    machine.handle(RequestArrived("a", 0, 0.0))
    with pytest.raises(ValueError, match="in flight"):
        machine.add("a", client())
    with pytest.raises(ValueError, match="has no lane"):
        machine.handle(RequestArrived("nobody", 0, 0.0))
    with pytest.raises(ValueError, match="not running"):
        machine.handle(StepEvent("b", 0.0, StepDone(0, "one", "gpu")))


@st.composite
def worlds(draw):
    """Clients with plans of their own, and inferences of (client, arrival, deadline, priority, seed of its times)."""
    clients = {
        name: Client(*draw(plans()), draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 2.0])))
        for name in ("a", "b", "c")[: draw(st.integers(1, 3))]
    }
    asked = draw(
        st.lists(
            st.tuples(st.sampled_from([*clients]), st.integers(0, 60), st.one_of(st.just(inf), st.integers(1, 80)), st.integers(-3, 3)),
            min_size=1,
            max_size=12,
        )
    )
    return clients, sorted(asked, key=lambda each: each[1]), draw(st.lists(st.integers(0, 9), min_size=8, max_size=8))


def play(clients, asked, lengths, machine):
    """Run all of it on a clock that is a number; gives events, answers and what was told of each inference."""
    free = {name: list(range(each.lanes)) for name, each in clients.items()}
    pending, ends, log, number = list(asked), [], [], 0
    count = 0

    def tell(event, now):
        nonlocal count
        answer = machine.handle(event)
        log.append((event, answer))
        for command in answer:
            if isinstance(command.instruction, Start):
                count += 1
                ms = lengths[(len(command.instruction.step) + command.instruction.lane + count) % len(lengths)]
                heappush(ends, (now + ms, count, command.client, command.instruction))
            elif isinstance(command.instruction, Finish):
                free[command.client].append(command.instruction.lane)

    now = 0.0
    while pending or ends:
        for each in [each for each in pending if each[1] <= now and free[each[0]]]:
            if free[each[0]]:
                pending.remove(each)
                number += 1
                name, at, deadline, priority = each
                tell(RequestArrived(name, free[name].pop(0), now, at + deadline, priority), now)
        coming = [each[1] for each in pending if each[1] > now]
        if not ends:
            now = min(coming) if coming else now
            continue
        if coming and min(coming) < ends[0][0]:
            now = min(coming)
            continue
        now, _, name, start = heappop(ends)
        tell(StepEvent(name, now, StepDone(start.lane, start.step, start.queue)), now)
    return log


@pytest.mark.slow
@given(worlds())
def test_nothing_is_lost_steps_come_in_order_and_the_same_events_have_the_same_answers(world):
    clients, asked, lengths = world
    log = play(clients, asked, lengths, MultiTenantMachine(clients))
    begun = [event for event, _ in log if isinstance(event, RequestArrived)]
    finished = [command for _, answer in log for command in answer if isinstance(command.instruction, Finish)]
    assert len(begun) == len(finished) == len(asked)
    _check_steps(clients, log)
    again = MultiTenantMachine(clients)
    assert [again.handle(event) for event, _ in log] == [answer for _, answer in log]


def _check_steps(clients, log):
    """Each step runs once an inference, after what it reads, on a queue that runs nothing else."""
    running, there, done = {}, {}, {}
    for event, answer in log:
        if isinstance(event, RequestArrived):
            there[event.client, event.lane] = set(clients[event.client].plan.inputs)
            done[event.client, event.lane] = set()
        else:
            step = event.event
            assert running.pop(step.queue) == (event.client, step.lane, step.step)
            there[event.client, step.lane] |= set(clients[event.client].plan.step(step.step).outputs)
            done[event.client, step.lane].add(step.step)
        for command in answer:
            plan = clients[command.client].plan
            key = (command.client, command.instruction.lane)
            if isinstance(command.instruction, Finish):
                assert done[key] == set(plan.order)
                continue
            start = command.instruction
            assert set(plan.step(start.step).inputs) <= there[key]
            assert start.step not in done[key]
            assert start.queue not in running
            running[start.queue] = (*key, start.step)


def turns(*clients, patience_ms=1e9, **weights):
    found = Turns(patience_ms)
    for client in clients or ("a", "b"):
        found.add(client, weights.get(client, 1.0))
    return found


def asked(found, *inferences, queue="q", at=0.0):
    """Begin inferences of (client, lane, deadline, priority), each with a step for the queue."""
    for client, lane, *rest in inferences:
        found.begin((client, lane), at, *rest)
        found.ask((client, lane), "s", queue)


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
    for client in given_to:
        for lane in range(40):
            asked(found, (client, lane))
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
    order = [client for client, _ in drained(found, at=20.0)]
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
    for lane, (client, deadline, priority, _) in enumerate(inferences):
        asked(found, (client, lane, deadline, priority))
        keys[client, lane] = (deadline, -priority)
    order = drained(found)
    assert sorted(order) == sorted(keys)
    assert [keys[each] for each in order] == sorted(keys.values())


@pytest.mark.slow
@given(st.lists(st.integers(1, 20), min_size=20, max_size=80), st.lists(st.integers(1, 20), min_size=20, max_size=80), st.integers(1, 4))
def test_two_who_always_want_a_queue_differ_by_one_step_each_at_most(one, other, weight):
    found = turns(a=float(weight))
    lengths = {"a": list(one), "b": list(other)}
    for client, steps in lengths.items():
        asked(found, *((client, lane) for lane in range(len(steps))))
    at, had = 0.0, {"a": 0.0, "b": 0.0}
    while all(lengths.values()):
        (client, _), _ = found.next("q", at)
        ms = lengths[client].pop()
        at += ms
        found.leave("q", at)
        had[client] += ms
        assert abs(had["a"] / weight - had["b"]) <= 20 / weight + 20 + 1e-9
