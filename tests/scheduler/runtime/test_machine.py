"""The order of steps and the state machine that keeps it."""

from dataclasses import replace

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.runtime.machine import (
    CALLING_THREAD,
    Enqueue,
    Fail,
    Finish,
    InputReady,
    Join,
    Machine,
    Replaced,
    RunInline,
    StepDone,
    StepFailed,
    StepReturned,
    Submit,
    Wait,
)
from scheduler.runtime.plan import PlannedJoin, PlannedSubgraph, make_plan, plan_of
from tests.scheduler.runtime.plans import CPU, DSP, GPU, blocking, planned, three_processors


def machine_of(*arguments, **more):
    return Machine.of(*planned(*arguments, **more))


def after_stem():
    machine = Machine.of(*three_processors())
    machine.handle(InputReady(0))
    machine.handle(StepDone(0, "stem", "cpu0"))
    return machine


def test_meeting_point_enqueues_then_submits_then_runs_inline_then_waits_then_joins():
    machine = Machine.of(*three_processors())
    assert machine.handle(InputReady(0)) == [RunInline(0, "stem", "cpu0")]
    assert machine.handle(StepDone(0, "stem", "cpu0")) == [
        Enqueue(0, "s1.gpu", "gpu"),
        Submit(0, "s1.dsp", "cpu1"),
        RunInline(0, "s1.cpu", "cpu0"),
    ]
    assert machine.handle(StepDone(0, "s1.cpu", "cpu0")) == [Wait({"gpu": "s1.gpu", "cpu1": "s1.dsp"})]
    assert machine.handle(StepDone(0, "s1.dsp", "cpu1")) == [Wait({"gpu": "s1.gpu"})]
    assert machine.handle(StepDone(0, "s1.gpu", "gpu")) == [Join(0, "s1.join", "cpu0")]
    assert machine.handle(StepDone(0, "s1.join", "cpu0")) == [RunInline(0, "head", "cpu0")]
    assert machine.handle(StepDone(0, "head", "cpu0")) == [Finish(0)]


def test_join_waits_for_the_inline_subgraph_when_the_others_are_done_before():
    machine = after_stem()
    assert machine.handle(StepDone(0, "s1.dsp", "cpu1")) == []
    assert machine.handle(StepDone(0, "s1.gpu", "gpu")) == []
    assert machine.handle(StepDone(0, "s1.cpu", "cpu0")) == [Join(0, "s1.join", "cpu0")]


def test_subgraphs_of_one_queue_run_one_after_the_other_in_topological_order():
    machine = machine_of(
        [("a.gpu", "gpu", "x", "a"), ("a.dsp", "dsp", "x", "b")],
        [("a.join", ("a", "b"), "y")],
        placements={"gpu": blocking("gpu", 1), "dsp": DSP},
    )
    assert machine.handle(InputReady(0)) == [Submit(0, "a.gpu", "cpu1"), Wait({"cpu1": "a.gpu"})]
    assert machine.handle(StepDone(0, "a.gpu", "cpu1")) == [Submit(0, "a.dsp", "cpu1"), Wait({"cpu1": "a.dsp"})]
    assert machine.handle(StepDone(0, "a.dsp", "cpu1")) == [Join(0, "a.join", CALLING_THREAD)]
    assert machine.handle(StepDone(0, "a.join", CALLING_THREAD)) == [Finish(0)]


def test_processors_start_on_the_next_segment_without_waiting_for_a_processor_they_do_not_need():
    machine = machine_of([("a.gpu", "gpu", "x", "a"), ("a.dsp", "dsp", "x", "b"), ("b.gpu", "gpu", "a", "c")], [("join", ("c", "b"), "y")])
    first = [Enqueue(0, "a.gpu", "gpu"), Submit(0, "a.dsp", "cpu1"), Wait({"gpu": "a.gpu", "cpu1": "a.dsp"})]
    assert machine.handle(InputReady(0)) == first
    assert machine.handle(StepDone(0, "a.gpu", "gpu")) == [Enqueue(0, "b.gpu", "gpu"), Wait({"cpu1": "a.dsp", "gpu": "b.gpu"})]


def test_step_that_reads_several_tensors_waits_for_all_of_them():
    machine = machine_of(
        [("a", "gpu", "x", "p"), ("b", "dsp", "z", "q"), ("c", "cpu", ("p", "q", "x"), ("y", "w"))], inputs=("x", "z"), outputs=("w", "y")
    )
    assert machine.handle(InputReady(0))[:2] == [Enqueue(0, "a", "gpu"), Submit(0, "b", "cpu1")]
    assert machine.handle(StepDone(0, "b", "cpu1")) == [Wait({"gpu": "a"})]
    assert machine.handle(StepDone(0, "a", "gpu")) == [RunInline(0, "c", "cpu0")]
    assert machine.handle(StepDone(0, "c", "cpu0")) == [Finish(0)]


def test_failure_is_reported_only_after_everything_else_has_come_to_rest():
    machine = after_stem()
    assert machine.handle(StepFailed(0, "s1.gpu", "gpu", "no memory")) == []
    assert machine.handle(StepDone(0, "s1.cpu", "cpu0")) == [Wait({"cpu1": "s1.dsp"})]
    assert machine.handle(StepFailed(0, "s1.dsp", "cpu1", "later")) == [Fail(0, "s1.gpu", "no memory")]


def test_failed_join_fails_the_inference():
    machine = after_stem()
    for step, queue in (("s1.cpu", "cpu0"), ("s1.gpu", "gpu"), ("s1.dsp", "cpu1")):
        machine.handle(StepDone(0, step, queue))
    assert machine.handle(StepFailed(0, "s1.join", "cpu0", "odd")) == [Fail(0, "s1.join", "odd")]


def test_lane_that_ended_takes_the_next_inference():
    machine = machine_of([("a", "cpu", "x", "y")])
    for end in (StepDone(0, "a", "cpu0"), StepFailed(0, "a", "cpu0", "odd"), StepDone(0, "a", "cpu0")):
        assert machine.handle(InputReady(0)) == [RunInline(0, "a", "cpu0")]
        machine.handle(end)
        assert machine.in_flight() == 0


@pytest.mark.parametrize(
    "event",
    [
        StepDone(0, "head", "cpu0"),
        StepDone(0, "unknown", "cpu0"),
        StepDone(0, "stem", "gpu"),
        StepDone(1, "stem", "cpu0"),
        StepFailed(0, "s1.cpu", "cpu0", ""),
        StepReturned(0, "s1.join", "cpu0", GPU),
    ],
)
def test_event_of_a_step_that_does_not_run_is_refused(event):
    machine = Machine.of(*three_processors())
    machine.handle(InputReady(0))
    with pytest.raises(ValueError, match="not running"):
        machine.handle(event)


@pytest.mark.parametrize("lane", [0, 1, -1])
def test_input_is_refused_where_its_lane_is_in_use_or_is_none(lane):
    machine = Machine.of(*three_processors())
    machine.handle(InputReady(0))
    with pytest.raises(ValueError, match="is not free"):
        machine.handle(InputReady(lane))


def test_machine_without_a_lane_or_with_a_subgraph_that_is_placed_nowhere_is_refused():
    plan, placements = three_processors()
    with pytest.raises(ValueError, match="needs a lane"):
        Machine.of(plan, placements, 0)
    with pytest.raises(ValueError, match="placed nowhere"):
        Machine.of(plan, {"stem": CPU})


def test_subgraph_that_is_not_started_goes_where_it_is_placed_last():
    machine = Machine.of(*three_processors())
    machine.handle(InputReady(0))
    assert machine.handle(Replaced("s1.gpu", blocking("gpu", 5))) == []
    assert Submit(0, "s1.gpu", "cpu5") in machine.handle(StepDone(0, "stem", "cpu0"))


def test_subgraph_that_waits_for_its_queue_starts_at_once_where_it_is_placed_now():
    machine = machine_of([("a", "gpu", "x", "p"), ("b", "gpu", "x", "q"), ("c", "cpu", ("p", "q"), "y")])
    assert machine.handle(InputReady(0))[0] == Enqueue(0, "a", "gpu")
    assert machine.handle(Replaced("b", DSP))[0] == Submit(0, "b", "cpu1")


def test_subgraph_that_runs_ends_where_it_runs():
    machine = after_stem()
    assert machine.handle(Replaced("s1.gpu", DSP)) == []
    with pytest.raises(ValueError, match="not running on `cpu1`"):
        machine.handle(StepDone(0, "s1.gpu", "cpu1"))
    machine.handle(StepDone(0, "s1.gpu", "gpu"))


def test_subgraph_that_came_back_is_run_again_where_it_is_placed_now():
    machine = after_stem()
    assert machine.handle(StepReturned(0, "s1.gpu", "gpu", DSP)) == []
    assert machine.handle(StepDone(0, "s1.dsp", "cpu1")) == [Submit(0, "s1.gpu", "cpu1")]
    machine.handle(StepDone(0, "s1.cpu", "cpu0"))
    assert machine.handle(StepDone(0, "s1.gpu", "cpu1")) == [Join(0, "s1.join", "cpu0")]


@pytest.mark.parametrize("place", [replace(GPU, queue="cpu1"), replace(CPU, queue="cpu7"), replace(DSP, dispatch="inline")])
def test_placement_that_does_not_go_with_the_others_is_refused_and_nothing_has_changed(place):
    machine = after_stem()
    before = machine.key()
    with pytest.raises((StretchError, ValueError)):
        machine.handle(Replaced("head", place))
    assert machine.key() == before


def test_join_cannot_be_placed():
    with pytest.raises(ValueError, match="no subgraph"):
        after_stem().handle(Replaced("s1.join", CPU))


# Without a calling thread: several inferences in flight.


def pipeline(lanes, movable=()):
    plan, _ = planned(
        [("stem", "cpu", "x", "t"), ("s1.cpu", "cpu", "t", "a"), ("s1.gpu", "gpu", "t", "b"), ("head", "cpu", "u", "y")],
        [("s1.join", ("a", "b"), "u")],
    )
    places = {name: blocking(s.processor, 0 if s.processor == "cpu" else 1) for name, s in plan.subgraphs.items()}
    return Machine.of(plan, places, lanes, caller=False, movable=movable)


def test_second_inference_fills_a_processor_that_waits_at_a_meeting_point():
    machine = pipeline(2)
    assert machine.handle(InputReady(0)) == [Submit(0, "stem", "cpu0")]
    assert machine.handle(InputReady(1)) == []
    assert machine.handle(StepDone(0, "stem", "cpu0")) == [Submit(0, "s1.cpu", "cpu0"), Submit(0, "s1.gpu", "cpu1")]
    assert machine.handle(StepDone(0, "s1.cpu", "cpu0")) == [Submit(1, "stem", "cpu0")]


def test_join_runs_on_the_queue_that_has_just_become_free_and_before_its_subgraphs():
    machine = pipeline(2)
    for event in (InputReady(0), InputReady(1), StepDone(0, "stem", "cpu0"), StepDone(0, "s1.cpu", "cpu0"), StepDone(1, "stem", "cpu0")):
        machine.handle(event)
    assert machine.waiting() == {"cpu0": 0, "cpu1": 1}
    assert machine.handle(StepDone(0, "s1.gpu", "cpu1")) == [Join(0, "s1.join", "cpu1")]
    assert machine.handle(StepDone(0, "s1.join", "cpu1")) == [Submit(1, "s1.gpu", "cpu1")]


def test_queue_of_the_same_kind_helps_with_the_oldest_inference_once_its_own_work_is_done():
    machine = pipeline(2, movable=("cpu",))
    assert machine.handle(InputReady(0)) == [Submit(0, "stem", "cpu0")]
    assert machine.handle(InputReady(1)) == [Submit(1, "stem", "cpu1")]
    assert machine.handle(StepDone(1, "stem", "cpu1")) == [Submit(1, "s1.gpu", "cpu1")]
    assert machine.handle(StepDone(0, "stem", "cpu0")) == [Submit(0, "s1.cpu", "cpu0")]
    assert machine.handle(StepDone(1, "s1.gpu", "cpu1")) == [Submit(0, "s1.gpu", "cpu1")]
    assert machine.handle(StepDone(0, "s1.cpu", "cpu0")) == [Submit(1, "s1.cpu", "cpu0")]


def test_queue_that_helps_nobody_waits():
    machine = pipeline(2)
    machine.handle(InputReady(0))
    assert machine.handle(InputReady(1)) == []
    assert machine.waiting() == {"cpu0": 1, "cpu1": 0}


def test_failed_inference_starts_nothing_more_and_leaves_the_others_alone():
    machine = pipeline(2)
    for event in (InputReady(0), InputReady(1), StepDone(0, "stem", "cpu0")):
        machine.handle(event)
    assert machine.handle(StepFailed(0, "s1.cpu", "cpu0", "x")) == [Submit(1, "stem", "cpu0")]
    assert machine.handle(StepDone(0, "s1.gpu", "cpu1")) == [Fail(0, "s1.cpu", "x")]
    assert machine.handle(InputReady(0)) == []
    assert machine.handle(StepDone(1, "stem", "cpu0")) == [Submit(1, "s1.cpu", "cpu0"), Submit(1, "s1.gpu", "cpu1")]


def test_every_queue_has_a_thread_where_the_calling_one_does_not_work():
    machine = Machine.of(*three_processors(), caller=False)
    assert machine.handle(InputReady(0)) == [Submit(0, "stem", "cpu0")]
    assert machine.handle(StepDone(0, "stem", "cpu0")) == [
        Submit(0, "s1.cpu", "cpu0"),
        Submit(0, "s1.gpu", "gpu"),
        Submit(0, "s1.dsp", "cpu1"),
    ]


def test_plan_knows_order_readers_and_how_many_inputs_are_missing(bundle_dir):
    plan = make_plan(load_bundle(bundle_dir).manifest)
    assert plan.readers == {
        "x": ("stem",),
        "t0": ("s1.cpu", "s1.gpu"),
        "s1.cpu.y": ("s1.join",),
        "s1.gpu.y": ("s1.join",),
        "t1": ("s2.cpu", "s2.gpu"),
        "s2.cpu.y": ("s2.join",),
        "s2.gpu.y": ("s2.join",),
        "t2": ("head",),
    }
    assert plan.missing == {"stem": 1, "s1.cpu": 1, "s1.gpu": 1, "s1.join": 2, "s2.cpu": 1, "s2.gpu": 1, "s2.join": 2, "head": 1}
    assert sorted(plan.order, key=plan.order.get)[0] == "stem"
    assert (plan.inputs, plan.outputs) == (("x",), ("y",))
    assert {name: subgraph.processor for name, subgraph in plan.subgraphs.items()}["s1.gpu"] == "gpu"


def subgraph(name, inputs, outputs):
    return PlannedSubgraph(name, name, f"{name}.onnx", "cpu", inputs, outputs)


def test_steps_of_several_tensors_are_ordered_by_all_they_read():
    last = subgraph("last", ("p", "x", "j"), ("y",))
    plan = plan_of(
        ["x", "z"], ["y", "q"], [last, subgraph("first", ("z",), ("p", "q"))], [PlannedJoin("j", "j", "sum", ("q", "z"), "j", "cpu")]
    )
    assert list(plan.subgraphs) == ["first", "last"]
    assert sorted(plan.order, key=plan.order.get) == ["first", "j", "last"]
    assert plan.missing == {"first": 1, "j": 2, "last": 3}
    assert plan.readers["z"] == ("first", "j")
    assert plan.step("last") == last
    assert plan.step("j").outputs == ("j",)


def test_steps_that_wait_for_each_other_are_refused():
    with pytest.raises(StretchError, match="waits for a tensor that nothing writes before it"):
        plan_of(["x"], ["y"], [subgraph("a", ("x", "b"), ("a",)), subgraph("b", ("a",), ("b",))], [])


def test_first_step_that_waits_for_what_nothing_writes_is_named():
    steps = [subgraph("a", ("x",), ("a",)), subgraph("b", ("lost", "a"), ("b",)), subgraph("c", ("b",), ("c",))]
    with pytest.raises(StretchError, match="`b` waits for a tensor"):
        plan_of(["x"], ["c"], steps, [])
