from dataclasses import replace
from math import inf, isfinite, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler import FaultPolicy, Scheduler
from scheduler.cores import available_cores
from scheduler.runtime import machine as m
from tests.scheduler.doubles import Gate, numbers, whole
from tests.scheduler.runtime.plans import blocking, planned


@pytest.mark.parametrize("mapping", [None, {"gpu": "reference"}])
def test_every_future_holds_the_output_of_its_own_bundle_and_input(folders, mapping):
    with Scheduler(folders, mapping) as scheduler:
        rows = [(name, seed, scheduler.submit(numbers(seed), name)) for seed in range(6) for name in folders]
        for name, seed, future in rows:
            assert np.allclose(future.result(60), whole(folders[name], numbers(seed)), atol=1e-5)
        assert np.allclose(scheduler.run(numbers(7), "b"), whole(folders["b"], numbers(7)), atol=1e-5)


def test_the_earliest_deadline_is_served_first(folders):
    gate, ended = Gate(folders["a"]), []
    # one queue, which work holds that is released when all others wait, and nobody who waits for long is preferred
    core, options = f"null{available_cores()[0]}", {"delegates": {"null": gate}, "in_flight": 3, "patience_ms": 1e9}
    with Scheduler(folders, {"cpu": core, "gpu": core}, **options) as scheduler:
        first = scheduler.submit(numbers(), "a")
        assert gate.reached.acquire(timeout=60)
        for name, options in {"none": {}, "late": {"deadline_ms": 60_000}, "soon": {"deadline_ms": 30_000}}.items():
            scheduler.submit(numbers(), "b", **options).add_done_callback(lambda _, name=name: ended.append(name))
        gate.open.set()
        first.result(60)
    assert ended.index("soon") < ended.index("late") < ended.index("none")


def test_all_processors_of_a_bundle_lost_are_replaced_where_faults_are_minded(folders):
    gate = Gate(folders["a"], RuntimeError("lost"))
    gate.open.set()
    with Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate}, faults=FaultPolicy()) as scheduler:
        for seed in range(3):
            for name in folders:
                assert np.allclose(scheduler.run(numbers(seed), name), whole(folders[name], numbers(seed)), atol=1e-5)
        assert scheduler.sessions["a"].decisions
        assert not scheduler.sessions["b"].decisions


@pytest.mark.parametrize("faults", [None, FaultPolicy()])
def test_what_hangs_of_one_bundle_stops_no_other(folders, faults):
    gate = Gate(folders["a"])
    options = {"delegates": {"null": gate}, "time_limit": 1.0, "faults": faults}
    try:
        with Scheduler(folders, {"cpu": "null", "gpu": "null"}, **options) as scheduler:
            hung = scheduler.submit(numbers(), "a")
            assert gate.reached.acquire(timeout=60)
            futures = [scheduler.submit(numbers(seed), "b") for seed in range(4)]
            for seed, future in enumerate(futures):
                assert np.allclose(future.result(60), whole(folders["b"], numbers(seed)), atol=1e-5)
            if faults is None:
                with pytest.raises(StretchError, match="null"):
                    hung.result(60)
            else:
                assert np.allclose(hung.result(60), whole(folders["a"], numbers()), atol=1e-5)
                assert np.allclose(scheduler.run(numbers(5), "a"), whole(folders["a"], numbers(5)), atol=1e-5)
            assert np.allclose(scheduler.run(numbers(9), "b"), whole(folders["b"], numbers(9)), atol=1e-5)
    finally:
        gate.open.set()


def test_threads_end_with_it_and_closing_twice_is_fine(folders, new_threads):
    scheduler = Scheduler(folders)
    future = scheduler.submit(numbers(), "a")
    scheduler.close()
    assert future.result(0) is not None
    scheduler.close()
    assert not new_threads()
    with pytest.raises(StretchError, match="closed"):
        scheduler.submit(numbers(), "a")


def test_the_same_bundle_twice_shares_the_processors_with_itself(folders):
    with Scheduler({"one": folders["a"], "other": folders["a"]}) as scheduler:
        one, other = scheduler.submit(numbers(), "one"), scheduler.submit(numbers(), "other")
        assert np.array_equal(one.result(60), other.result(60))


@pytest.mark.parametrize(
    ("names", "options", "error", "message"),
    [
        ("", {}, UsageError, "no bundle"),
        ("aa", {}, UsageError, "`a`"),
        (None, {"weights": {"c": 1.0}}, UnknownNameError, "`c`"),
        (None, {"weights": {"a": 0.0}}, UsageError, "weight of 0"),
        (None, {"patience_ms": 0}, UsageError, "patience"),
        (None, {"mapping": {"npu": "cpu"}}, UsageError, "`npu`"),
        (None, {"in_flight": 0}, UsageError, "0 inferences"),
    ],
)
def test_scheduler_that_makes_no_sense_is_refused(folders, names, options, error, message):
    with pytest.raises(error, match=message):
        Scheduler(folders if names is None else [folders[name] for name in names], **options)


def test_request_that_makes_no_sense_is_refused(folders):
    with Scheduler(folders) as scheduler:
        for options in (*({"deadline_ms": ms} for ms in (-1, 0, nan, inf)), {"priority": 101}, {"priority": -101}):
            with pytest.raises(UsageError):
                scheduler.submit(numbers(), "a", **options)
        for x, name, error in ((numbers(), "c", UnknownNameError), (numbers()[:, :2], "a", UsageError)):
            with pytest.raises(error):
                scheduler.submit(x, name)


def test_interrupted_scheduler_waits_for_nothing_and_its_threads_end_by_themselves(folders, new_threads):
    gate = Gate(folders["a"])
    scheduler = Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate})
    future = scheduler.submit(numbers(), "a")
    assert gate.reached.acquire(timeout=60)
    scheduler.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(StretchError, match="closed"):
        future.result(0)
    left = new_threads()
    gate.open.set()
    for item in left:
        item.join(30)
        assert not item.is_alive()


ONE = planned([("one", "gpu", "x", "t"), ("two", "gpu", "t", "y")])


def two(**began):
    """A machine of two clients, of which some inferences have begun, by lanes and clients."""
    machine = m.Machine({"a": m.Client(*ONE, 2, 1.0), "b": m.Client(*ONE, 2, 1.0)})
    for name, lanes in began.items():
        for lane in range(lanes):
            machine.handle(m.InputReady(lane, name, 0.0))
    return machine


def started(answer):
    return [(start.client, start.lane, start.step) for start in answer if isinstance(start, m.Start)]


def test_between_two_steps_of_one_inference_another_client_comes_first_if_it_is_more_urgent():
    machine = two(a=1)
    machine.handle(m.InputReady(0, "b", 1.0, deadline_ms=20.0))
    assert started(machine.handle(m.StepDone(0, "one", "gpu", "a", 5.0))) == [("b", 0, "one")]
    assert started(machine.handle(m.StepDone(0, "one", "gpu", "b", 6.0))) == [("b", 0, "two")]
    ended = machine.handle(m.StepDone(0, "two", "gpu", "b", 7.0))
    assert (started(ended), ended[-1]) == ([("a", 0, "two")], m.Finish(0, "b"))


def test_lane_may_be_used_again_once_its_inference_is_over_and_not_before():
    machine = two(a=1)
    for lane in (0, 2):
        with pytest.raises(ValueError, match=f"lane {lane} of `a`"):
            machine.handle(m.InputReady(lane, "a", 0.0))
    machine.handle(m.StepDone(0, "one", "gpu", "a", 1.0))
    assert machine.handle(m.StepDone(0, "two", "gpu", "a", 2.0)) == [m.Finish(0, "a")]
    assert started(machine.handle(m.InputReady(0, "a", 3.0))) == [("a", 0, "one")]


def test_step_that_comes_back_waits_where_it_is_placed_now_and_the_others_go_along():
    machine, there = two(a=2, b=1), replace(blocking("gpu", 3), reason="elsewhere")
    answer = machine.handle(m.StepReturned(0, "one", "gpu", there, "a", 1.0))
    assert answer == [m.Submit(0, "one", "gpu", "b"), m.Submit(0, "one", "cpu3", "a")]
    assert (machine.clients["a"].placements["one"].queue, machine.waiting("a")) == ("cpu3", {"cpu3": 1, "gpu": 0})
    assert machine.handle(m.StepDone(0, "one", "cpu3", "a", 2.0)) == [m.Submit(1, "one", "cpu3", "a")]


def test_client_that_is_gone_holds_a_queue_until_it_is_left_and_may_come_back():
    machine = two(a=2, b=1)
    assert machine.handle(m.ClientRemoved("a", 1.0)) == []
    assert (machine.in_flight("a"), machine.in_flight("b")) == (0, 1)
    with pytest.raises(ValueError, match="not running"):
        machine.handle(m.StepDone(0, "one", "gpu", "a", 2.0))
    machine.add("a", m.Client(*ONE, 1, 1.0))
    assert machine.handle(m.InputReady(0, "a", 3.0)) == []
    assert started(machine.handle(m.QueueReleased("gpu", 4.0))) == [("b", 0, "one")]
    assert started(machine.handle(m.StepDone(0, "one", "gpu", "b", 5.0))) == [("b", 0, "two")]
    assert started(machine.handle(m.StepDone(0, "two", "gpu", "b", 6.0))) == [("a", 0, "one")]


def shared(*clients, patience_ms=1e9, **weights):
    """A machine of clients who need one step of one queue, which another client holds."""
    one, names = planned([("s", "gpu", "x", "y")]), (*(clients or ("a", "b")), "holder")
    machine = m.Machine({name: m.Client(*one, 100, weights.get(name, 1.0)) for name in names}, patience_ms=patience_ms)
    machine.handle(m.InputReady(0, "holder"))
    return machine


def asked(machine, *inferences, at=0.0):
    """Begin inferences of (client, lane, deadline, priority), each with a step for the queue."""
    for client, lane, *rest in inferences:
        deadline, priority = (*rest, *(inf, 0)[len(rest) :])
        assert machine.handle(m.InputReady(lane, client, at, deadline if isfinite(deadline) else None, priority)) == []


def next_turn(machine, running, at):
    """Who gets the queue when the inference that has it ends; None for nobody."""
    turns = started(machine.handle(m.StepDone(running[1], "s", "gpu", running[0], at)))
    return turns[0][:2] if turns else None


def test_client_that_was_idle_for_long_gets_no_compensation():
    machine = shared()
    asked(machine, *(("a", lane) for lane in range(60)))
    running = next_turn(machine, ("holder", 0), 0.0)
    for at in range(1, 20):
        running = next_turn(machine, running, float(at))
    asked(machine, *(("b", lane) for lane in range(40)), at=19.5)
    order = []
    for at in range(20, 40):
        running = next_turn(machine, running, float(at))
        order.append(running[0])
    # from now on in turns, not b alone until it has had twenty
    assert abs(order.count("a") - order.count("b")) <= 1


def test_inference_without_a_deadline_becomes_the_most_urgent_when_it_has_waited_long_enough():
    machine = shared(patience_ms=10.0)
    asked(machine, ("a", 0, inf, -100))
    order, running = [], ("holder", 0)
    for lane in range(30):  # of b, whose deadlines are always near
        asked(machine, ("b", lane, lane + 3.0), at=float(lane))
        running = next_turn(machine, running, float(lane))
        order.append(running)
    assert order.index(("a", 0)) == 10


SOME = st.tuples(st.sampled_from("abc"), st.just(inf) | st.integers(1, 50).map(float), st.integers(-2, 2))


@given(st.lists(SOME, min_size=1, max_size=30))
def test_each_that_waits_gets_its_turn_once_in_the_order_of_deadlines_and_priorities(inferences):
    machine = shared("a", "b", "c")
    keys = {(client, lane): (deadline, -priority) for lane, (client, deadline, priority) in enumerate(inferences)}
    asked(machine, *((*key, deadline, -turned) for key, (deadline, turned) in keys.items()))
    order, running = [], ("holder", 0)
    while (running := next_turn(machine, running, float(len(order)))) is not None:
        order.append(running)
    assert (sorted(order), [keys[item] for item in order]) == (sorted(keys), sorted(keys.values()))


@given(st.lists(st.integers(1, 20), min_size=20, max_size=80), st.lists(st.integers(1, 20), min_size=20, max_size=80), st.integers(1, 4))
def test_two_who_always_want_a_queue_differ_by_one_step_each_at_most(one, other, weight):
    machine = shared(a=float(weight))
    lengths = {"a": list(one), "b": list(other)}
    for client, steps in lengths.items():
        asked(machine, *((client, lane) for lane in range(len(steps))))
    at, had = 0.0, {"a": 0.0, "b": 0.0}
    running = next_turn(machine, ("holder", 0), at)
    while all(lengths.values()):
        client, ms = running[0], lengths[running[0]].pop()
        at += ms
        running = next_turn(machine, running, at)
        had[client] += ms
        assert abs(had["a"] / weight - had["b"]) <= 20 / weight + 20 + 1e-9
