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
def test_every_future_has_the_output_of_its_bundle_and_input(folders, mapping):
    with Scheduler(folders, mapping) as scheduler:
        rows = [(name, seed, scheduler.submit(numbers(seed), name)) for seed in range(6) for name in folders]
        for name, seed, future in rows:
            assert np.allclose(future.result(60), whole(folders[name], numbers(seed)), atol=1e-5)
        assert np.allclose(scheduler.run(numbers(7), "b"), whole(folders["b"], numbers(7)), atol=1e-5)


def test_the_earliest_deadline_is_served_first(folders):
    gate, ended = Gate(folders["a"]), []
    # one queue, which the first request holds until all others wait; a very long patience, so that waiting gives no priority
    core, options = f"null{available_cores()[0]}", {"delegates": {"null": gate}, "in_flight": 3, "patience_ms": 1e9}
    with Scheduler(folders, {"cpu": core, "gpu": core}, **options) as scheduler:
        first = scheduler.submit(numbers(), "a")
        assert gate.reached.acquire(timeout=60)
        for name, options in {"none": {}, "late": {"deadline_ms": 60_000}, "soon": {"deadline_ms": 30_000}}.items():
            scheduler.submit(numbers(), "b", **options).add_done_callback(lambda _, name=name: ended.append(name))
        gate.open.set()
        first.result(60)
    assert ended.index("soon") < ended.index("late") < ended.index("none")


def test_all_lost_processors_of_a_bundle_are_replaced_with_a_fault_policy(folders):
    gate = Gate(folders["a"], RuntimeError("lost"))
    gate.open.set()
    with Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate}, faults=FaultPolicy()) as scheduler:
        for seed in range(3):
            for name in folders:
                assert np.allclose(scheduler.run(numbers(seed), name), whole(folders[name], numbers(seed)), atol=1e-5)
        assert scheduler.sessions["a"].decisions
        assert not scheduler.sessions["b"].decisions


@pytest.mark.parametrize("faults", [None, FaultPolicy()])
def test_hang_in_one_bundle_does_not_stop_other_bundles(folders, faults):
    gate = Gate(folders["a"])
    options = {"delegates": {"null": gate}, "time_limit": 1.0, "faults": faults}
    try:
        with Scheduler(folders, {"cpu": "null", "gpu": "null"}, **options) as scheduler:
            hanging = scheduler.submit(numbers(), "a")
            assert gate.reached.acquire(timeout=60)
            futures = [scheduler.submit(numbers(seed), "b") for seed in range(4)]
            for seed, future in enumerate(futures):
                assert np.allclose(future.result(60), whole(folders["b"], numbers(seed)), atol=1e-5)
            if faults is None:
                with pytest.raises(StretchError, match="null"):
                    hanging.result(60)
            else:
                assert np.allclose(hanging.result(60), whole(folders["a"], numbers()), atol=1e-5)
                assert np.allclose(scheduler.run(numbers(5), "a"), whole(folders["a"], numbers(5)), atol=1e-5)
            assert np.allclose(scheduler.run(numbers(9), "b"), whole(folders["b"], numbers(9)), atol=1e-5)
    finally:
        gate.open.set()


def test_closing_ends_all_threads_and_may_be_repeated(folders, new_threads):
    scheduler = Scheduler(folders)
    future = scheduler.submit(numbers(), "a")
    scheduler.close()
    assert future.result(0) is not None
    scheduler.close()
    assert not new_threads()
    with pytest.raises(StretchError, match="closed"):
        scheduler.submit(numbers(), "a")


def test_one_bundle_may_be_served_twice(folders):
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
def test_scheduler_with_invalid_options_is_refused(folders, names, options, error, message):
    with pytest.raises(error, match=message):
        Scheduler(folders if names is None else [folders[name] for name in names], **options)


def test_invalid_request_is_refused(folders):
    with Scheduler(folders) as scheduler:
        for options in (*({"deadline_ms": ms} for ms in (-1, 0, nan, inf)), {"priority": 101}, {"priority": -101}):
            with pytest.raises(UsageError):
                scheduler.submit(numbers(), "a", **options)
        for x, name, error in ((numbers(), "c", UnknownNameError), (numbers()[:, :2], "a", UsageError)):
            with pytest.raises(error):
                scheduler.submit(x, name)


def test_interrupted_scheduler_does_not_wait_and_its_threads_end_later(folders, new_threads):
    gate = Gate(folders["a"])
    scheduler = Scheduler(folders, {"cpu": "null", "gpu": "null"}, delegates={"null": gate})
    future = scheduler.submit(numbers(), "a")
    assert gate.reached.acquire(timeout=60)
    scheduler.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(StretchError, match="closed"):
        future.result(0)
    threads = new_threads()
    gate.open.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


ONE = planned([("one", "gpu", "x", "t"), ("two", "gpu", "t", "y")])


def machine_of_two(**began):
    """A machine with two clients, `a` and `b`, with this number of inferences begun in each."""
    machine = m.Machine({"a": m.Client(*ONE, 2, 1.0), "b": m.Client(*ONE, 2, 1.0)})
    for name, lanes in began.items():
        for lane in range(lanes):
            machine.handle(m.InputReady(lane, name, 0.0))
    return machine


def started(answer):
    return [(start.client, start.lane, start.step) for start in answer if isinstance(start, m.Start)]


def test_more_urgent_client_runs_between_two_steps_of_an_inference():
    machine = machine_of_two(a=1)
    machine.handle(m.InputReady(0, "b", 1.0, deadline_ms=20.0))
    assert started(machine.handle(m.StepDone(0, "one", "gpu", "a", 5.0))) == [("b", 0, "one")]
    assert started(machine.handle(m.StepDone(0, "one", "gpu", "b", 6.0))) == [("b", 0, "two")]
    ended = machine.handle(m.StepDone(0, "two", "gpu", "b", 7.0))
    assert (started(ended), ended[-1]) == ([("a", 0, "two")], m.Finish(0, "b"))


def test_lane_can_be_reused_only_after_its_inference_ended():
    machine = machine_of_two(a=1)
    for lane in (0, 2):
        with pytest.raises(ValueError, match=f"lane {lane} of `a`"):
            machine.handle(m.InputReady(lane, "a", 0.0))
    machine.handle(m.StepDone(0, "one", "gpu", "a", 1.0))
    assert machine.handle(m.StepDone(0, "two", "gpu", "a", 2.0)) == [m.Finish(0, "a")]
    assert started(machine.handle(m.InputReady(0, "a", 3.0))) == [("a", 0, "one")]


def test_returned_step_waits_at_its_new_placement_which_later_inferences_also_use():
    machine, elsewhere = machine_of_two(a=2, b=1), replace(blocking("gpu", 3), reason="elsewhere")
    answer = machine.handle(m.StepReturned(0, "one", "gpu", elsewhere, "a", 1.0))
    assert answer == [m.Submit(0, "one", "gpu", "b"), m.Submit(0, "one", "cpu3", "a")]
    assert (machine.clients["a"].placements["one"].queue, machine.waiting("a")) == ("cpu3", {"cpu3": 1, "gpu": 0})
    assert machine.handle(m.StepDone(0, "one", "cpu3", "a", 2.0)) == [m.Submit(1, "one", "cpu3", "a")]


def test_removed_client_keeps_its_queue_until_the_release_and_may_be_added_again():
    machine = machine_of_two(a=2, b=1)
    assert machine.handle(m.ClientRemoved("a", 1.0)) == []
    assert (machine.in_flight("a"), machine.in_flight("b")) == (0, 1)
    with pytest.raises(ValueError, match="not running"):
        machine.handle(m.StepDone(0, "one", "gpu", "a", 2.0))
    machine.add("a", m.Client(*ONE, 1, 1.0))
    assert machine.handle(m.InputReady(0, "a", 3.0)) == []
    assert started(machine.handle(m.QueueReleased("gpu", 4.0))) == [("b", 0, "one")]
    assert started(machine.handle(m.StepDone(0, "one", "gpu", "b", 5.0))) == [("b", 0, "two")]
    assert started(machine.handle(m.StepDone(0, "two", "gpu", "b", 6.0))) == [("a", 0, "one")]


def machine_with_one_queue(*clients, patience_ms=1e9, **weights):
    """A machine whose clients need one step on one queue, which the client `holder` occupies."""
    one, names = planned([("s", "gpu", "x", "y")]), (*(clients or ("a", "b")), "holder")
    machine = m.Machine({name: m.Client(*one, 100, weights.get(name, 1.0)) for name in names}, patience_ms=patience_ms)
    machine.handle(m.InputReady(0, "holder"))
    return machine


def begin(machine, *inferences, at=0.0):
    """Begin inferences (client, lane, deadline, priority), which wait for the queue."""
    for client, lane, *rest in inferences:
        deadline, priority = (*rest, *(inf, 0)[len(rest) :])
        assert machine.handle(m.InputReady(lane, client, at, deadline if isfinite(deadline) else None, priority)) == []


def next_turn(machine, running, at):
    """Client and lane that get the queue after the running inference; None if none waits."""
    turns = started(machine.handle(m.StepDone(running[1], "s", "gpu", running[0], at)))
    return turns[0][:2] if turns else None


def test_client_that_was_idle_for_long_gets_no_compensation():
    machine = machine_with_one_queue()
    begin(machine, *(("a", lane) for lane in range(60)))
    running = next_turn(machine, ("holder", 0), 0.0)
    for at in range(1, 20):
        running = next_turn(machine, running, float(at))
    begin(machine, *(("b", lane) for lane in range(40)), at=19.5)
    order = []
    for at in range(20, 40):
        running = next_turn(machine, running, float(at))
        order.append(running[0])
    # both clients take turns; b does not first catch up on the turns that it missed
    assert abs(order.count("a") - order.count("b")) <= 1


def test_inference_without_a_deadline_becomes_the_most_urgent_after_the_patience_time():
    machine = machine_with_one_queue(patience_ms=10.0)
    begin(machine, ("a", 0, inf, -100))
    order, running = [], ("holder", 0)
    for lane in range(30):  # the deadlines of b are always near
        begin(machine, ("b", lane, lane + 3.0), at=float(lane))
        running = next_turn(machine, running, float(lane))
        order.append(running)
    assert order.index(("a", 0)) == 10


INFERENCES = st.tuples(st.sampled_from("abc"), st.just(inf) | st.integers(1, 50).map(float), st.integers(-2, 2))


@given(st.lists(INFERENCES, min_size=1, max_size=30))
def test_each_waiting_inference_gets_one_turn_in_the_order_of_deadlines_and_priorities(inferences):
    machine = machine_with_one_queue("a", "b", "c")
    keys = {(client, lane): (deadline, -priority) for lane, (client, deadline, priority) in enumerate(inferences)}
    begin(machine, *((*key, deadline, -turned) for key, (deadline, turned) in keys.items()))
    order, running = [], ("holder", 0)
    while (running := next_turn(machine, running, float(len(order)))) is not None:
        order.append(running)
    assert (sorted(order), [keys[item] for item in order]) == (sorted(keys), sorted(keys.values()))


@given(st.lists(st.integers(1, 20), min_size=20, max_size=80), st.lists(st.integers(1, 20), min_size=20, max_size=80), st.integers(1, 4))
def test_two_clients_that_always_need_a_queue_differ_by_at_most_one_step_each(one, other, weight):
    machine = machine_with_one_queue(a=float(weight))
    lengths = {"a": list(one), "b": list(other)}
    for client, steps in lengths.items():
        begin(machine, *((client, lane) for lane in range(len(steps))))
    at, served = 0.0, {"a": 0.0, "b": 0.0}
    running = next_turn(machine, ("holder", 0), at)
    while all(lengths.values()):
        client, ms = running[0], lengths[running[0]].pop()
        at += ms
        running = next_turn(machine, running, at)
        served[client] += ms
        assert abs(served["a"] / weight - served["b"]) <= 20 / weight + 20 + 1e-9
