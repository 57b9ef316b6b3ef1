import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.runtime.pipeline_state import PipelineState, Task
from scheduler.runtime.plan import make_plan


@pytest.fixture(scope="module")
def plan(bundles, tmp_path_factory):
    manifest = load_bundle(bundles.two_branches(tmp_path_factory.mktemp("b"))).manifest
    return make_plan(manifest, place_processors(["cpu", "gpu"], cores=(0, 1)))


def started(state, count=1):
    lanes = [state.reserve() for _ in range(count)]
    for lane in lanes:
        state.arrive(lane)
    return lanes


def test_one_inference_goes_through_its_segments_as_in_algorithm_1(plan):
    state = PipelineState(plan, 1)
    started(state)
    asked = [state.take(queue) for queue in ("cpu1", "cpu0", "cpu1")]
    assert asked == [None, Task(0, "stem"), None]
    state.done(asked[1])
    both = [state.take("cpu0"), state.take("cpu1")]
    assert both == [Task(0, "s1.cpu"), Task(0, "s1.gpu")]
    state.done(both[0])
    assert state.take("cpu0") is None
    state.done(both[1])
    assert state.take("cpu1") == Task(0, "s1.join")


def test_second_inference_fills_a_processor_that_waits_at_a_meeting_point(plan):
    state = PipelineState(plan, 2)
    started(state, 2)
    state.done(state.take("cpu0"))
    assert state.take("cpu1") == Task(0, "s1.gpu")
    state.done(state.take("cpu0"))  # s1.cpu of the first
    assert state.take("cpu0") == Task(1, "stem")


def test_oldest_inference_goes_first_and_own_work_before_that_of_others(plan):
    state = PipelineState(plan, 2, {"cpu1": ("cpu0",), "cpu0": ("cpu1",)})
    started(state, 2)
    assert state.take("cpu1") == Task(0, "stem")
    assert state.take("cpu0") == Task(1, "stem")
    state.done(Task(1, "stem"))
    assert state.take("cpu0") == Task(1, "s1.cpu")
    state.done(Task(0, "stem"))
    assert state.take("cpu1") == Task(0, "s1.gpu")


def test_queue_that_helps_nobody_waits(plan):
    state = PipelineState(plan, 2)
    started(state, 2)
    assert state.take("cpu1") is None
    assert state.waiting() == {"cpu0": 2, "cpu1": 0}


def test_failed_inference_starts_nothing_more_and_ends_when_its_steps_have(plan):
    state = PipelineState(plan, 2)
    started(state, 2)
    state.done(state.take("cpu0"))
    one, other = state.take("cpu0"), state.take("cpu1")
    error = ValueError("x")
    assert not state.failed(one, error)
    assert state.take("cpu0") == Task(1, "stem")
    assert state.done(other)
    assert state.failure(0) == ("s1.cpu", error)


def test_lane_is_free_again_once_its_output_was_read(plan):
    state = PipelineState(plan, 1)
    (lane,) = started(state)
    with pytest.raises(ValueError, match="no lane is free"):
        state.reserve()
    while (task := state.take("cpu0") or state.take("cpu1")) is not None:
        over = state.done(task)
    assert over
    state.forget(lane)
    state.release(lane)
    assert (state.free_lanes, state.in_flight) == (1, 0)


@pytest.mark.parametrize("wrong", ["arrive", "release"])
def test_lane_that_was_not_reserved_is_refused(plan, wrong):
    with pytest.raises(ValueError, match="not reserved"):
        getattr(PipelineState(plan, 1), wrong)(0)


def test_step_that_does_not_run_cannot_end(plan):
    state = PipelineState(plan, 1)
    started(state)
    with pytest.raises(ValueError, match="is not running"):
        state.done(Task(0, "stem"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_order_of_events_runs_each_step_of_each_inference_once_after_what_it_reads(plan, data):
    lanes = data.draw(st.integers(1, 3))
    helps = {"cpu0": ("cpu1",), "cpu1": ("cpu0",)} if data.draw(st.booleans()) else {}
    state = PipelineState(plan, lanes, helps)
    started(state, lanes)
    running: dict[str, Task] = {}
    ran: dict[int, list[str]] = {lane: [] for lane in range(lanes)}
    while state.in_flight:
        for queue in ("cpu0", "cpu1"):
            if queue not in running and (task := state.take(queue)):
                running[queue] = task
        queue = data.draw(st.sampled_from(sorted(running)))
        task = running.pop(queue)
        ran[task.lane].append(task.step)
        if state.done(task):
            state.forget(task.lane)
    for steps in ran.values():
        assert sorted(steps) == sorted(plan.order)
        written = {plan.input}
        for step in steps:
            part = plan.subgraphs.get(step)
            reads = plan.joins[step].inputs if part is None else (part.input,)
            assert written.issuperset(reads)
            written.add(plan.joins[step].output if part is None else part.output)
