import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.bundle.manifest import JoinEntry, Manifest, ModelInfo, SubgraphEntry, WeightsInfo
from scheduler.runtime.events import (
    Enqueue,
    Fail,
    Finish,
    InputReady,
    Join,
    JoinDone,
    JoinFailed,
    RunInline,
    SubgraphDone,
    SubgraphFailed,
    Submit,
    Wait,
)
from scheduler.runtime.plan import Placement, make_plan
from scheduler.runtime.state import SchedulerState

CPU = Placement("cpu", "cpu", (0,), "cpu0", "inline", False, "")
GPU = Placement("gpu", "gpu", (), "gpu", "async", False, "")
DSP = Placement("dsp", "dsp", (1,), "cpu1", "blocking", False, "")
ALL = {"cpu": CPU, "gpu": GPU, "dsp": DSP}


def plan_of(subgraphs, joins=(), output="y", placements=ALL):
    """Plan of (name, processor, input, output) and (name, inputs, output)."""
    return make_plan(
        Manifest(
            schema=1,
            version="0",
            model=ModelInfo("m", (1,), (1,), 0, 0, 0, 0),
            device="d",
            calibrated=False,
            weights=WeightsInfo("random"),
            design={},
            input="x",
            output=output,
            tensors=(),
            subgraphs=tuple(SubgraphEntry(n, n.split(".")[0], p, f"{n}.onnx", i, o, 0) for n, p, i, o in subgraphs),
            joins=tuple(JoinEntry(n, n.split(".")[0], "concat", tuple(i), o) for n, i, o in joins),
            whole="",
            controls={},
            control_macs={},
            predicted={},
            recommended="",
            checks={},
            files={},
        ),
        placements,
    )


def three_processors():
    return plan_of(
        [
            ("stem", "cpu", "x", "t"),
            ("s1.cpu", "cpu", "t", "a"),
            ("s1.gpu", "gpu", "t", "b"),
            ("s1.dsp", "dsp", "t", "c"),
            ("head", "cpu", "u", "y"),
        ],
        [("s1.join", ("a", "b", "c"), "u")],
    )


def test_meeting_point_enqueues_then_submits_then_runs_inline_then_waits_then_joins():
    state = SchedulerState(three_processors())
    assert state.handle(InputReady()) == [RunInline("stem")]
    assert state.handle(SubgraphDone("stem")) == [Enqueue("s1.gpu"), Submit("s1.dsp"), RunInline("s1.cpu")]
    assert state.handle(SubgraphDone("s1.cpu")) == [Wait(("s1.gpu", "s1.dsp"))]
    assert state.handle(SubgraphDone("s1.dsp")) == [Wait(("s1.gpu",))]
    assert state.handle(SubgraphDone("s1.gpu")) == [Join("s1.join")]
    assert state.handle(JoinDone("s1.join")) == [RunInline("head")]
    assert state.handle(SubgraphDone("head")) == [Finish("y")]


def test_join_waits_for_the_inline_subgraph_when_the_others_are_done_before():
    state = SchedulerState(three_processors())
    state.handle(InputReady())
    state.handle(SubgraphDone("stem"))
    assert state.handle(SubgraphDone("s1.dsp")) == []
    assert state.handle(SubgraphDone("s1.gpu")) == []
    assert state.handle(SubgraphDone("s1.cpu")) == [Join("s1.join")]


def test_subgraphs_of_one_queue_run_one_after_the_other_in_topological_order():
    shared = Placement("gpu", "cpu", (1,), "cpu1", "blocking", True, "")
    plan = plan_of(
        [("a.gpu", "gpu", "x", "a"), ("a.dsp", "dsp", "x", "b")],
        [("a.join", ("a", "b"), "y")],
        placements={"gpu": shared, "dsp": DSP},
    )
    state = SchedulerState(plan)
    assert state.handle(InputReady()) == [Submit("a.gpu"), Wait(("a.gpu",))]
    assert state.handle(SubgraphDone("a.gpu")) == [Submit("a.dsp"), Wait(("a.dsp",))]
    assert state.handle(SubgraphDone("a.dsp")) == [Join("a.join")]
    assert state.handle(JoinDone("a.join")) == [Finish("y")]


def test_processors_start_on_the_next_segment_without_waiting_for_a_processor_they_do_not_need():
    plan = plan_of(
        [("a.gpu", "gpu", "x", "a"), ("a.dsp", "dsp", "x", "b"), ("b.gpu", "gpu", "a", "c")],
        [("join", ("c", "b"), "y")],
    )
    state = SchedulerState(plan)
    assert state.handle(InputReady()) == [Enqueue("a.gpu"), Submit("a.dsp"), Wait(("a.gpu", "a.dsp"))]
    assert state.handle(SubgraphDone("a.gpu")) == [Enqueue("b.gpu"), Wait(("a.dsp", "b.gpu"))]


def test_failure_is_reported_only_after_everything_else_has_come_to_rest():
    state = SchedulerState(three_processors())
    state.handle(InputReady())
    state.handle(SubgraphDone("stem"))
    assert state.handle(SubgraphFailed("s1.gpu", "no memory")) == []
    assert state.handle(SubgraphDone("s1.cpu")) == [Wait(("s1.dsp",))]
    assert state.handle(SubgraphFailed("s1.dsp", "later")) == [Fail("s1.gpu", "no memory")]


def test_failed_join_fails_the_inference():
    state = SchedulerState(three_processors())
    for event in (InputReady(), *map(SubgraphDone, ("stem", "s1.cpu", "s1.gpu", "s1.dsp"))):
        state.handle(event)
    assert state.handle(JoinFailed("s1.join", "odd")) == [Fail("s1.join", "odd")]


@pytest.mark.parametrize(
    "event",
    [SubgraphDone("head"), SubgraphDone("unknown"), SubgraphFailed("s1.cpu", ""), JoinDone("s1.join"), JoinFailed("s1.join", "")],
)
def test_event_of_a_step_that_does_not_run_is_refused(event):
    state = SchedulerState(three_processors())
    state.handle(InputReady())
    with pytest.raises(ValueError, match="not running"):
        state.handle(event)


def test_input_cannot_be_ready_twice():
    state = SchedulerState(three_processors())
    state.handle(InputReady())
    with pytest.raises(ValueError, match="twice"):
        state.handle(InputReady())


@st.composite
def plans(draw):
    """Segments one after the other: whole, or branches on a subset of processors, each one or two subgraphs long."""
    placements = {
        "cpu": CPU,
        "gpu": draw(
            st.sampled_from(
                [
                    GPU,
                    Placement("gpu", "cpu", (1,), "cpu1", "blocking", True, ""),
                    Placement("gpu", "cpu", (0,), "cpu0", "inline", True, ""),
                ]
            )
        ),
        "dsp": draw(st.sampled_from([DSP, Placement("dsp", "cpu", (2,), "cpu2", "blocking", True, "")])),
    }
    subgraphs, joins, tensor = [], [], "x"
    for s in range(draw(st.integers(1, 5))):
        processors = draw(st.lists(st.sampled_from(["cpu", "gpu", "dsp"]), min_size=1, max_size=3, unique=True))
        ends = []
        for p in processors:
            read = tensor
            for piece in range(draw(st.integers(1, 2))):
                subgraphs.append((f"s{s}.{p}.{piece}", p, read, f"{s}{p}{piece}"))
                read = f"{s}{p}{piece}"
            ends.append(read)
        tensor = ends[0]
        if len(ends) > 1:
            tensor = f"joined{s}"
            joins.append((f"s{s}.join", tuple(ends), tensor))
    return plan_of(draw(st.permutations(subgraphs)), joins, tensor, placements)


def drive(plan, data, fail=None):
    """Complete what runs in an order that hypothesis draws; checks each step and returns the instructions."""
    state = SchedulerState(plan)
    written, running, log, caller = {plan.input}, {}, [], None
    todo = state.handle(InputReady())
    while True:
        for instruction in todo:
            log.append(instruction)
            match instruction:
                case Enqueue(name) | Submit(name) | RunInline(name):
                    subgraph = plan.subgraphs[name]
                    expected = {Enqueue: "async", Submit: "blocking", RunInline: "inline"}[type(instruction)]
                    assert subgraph.placement.dispatch == expected
                    assert subgraph.input in written
                    assert subgraph.placement.queue not in running.values()
                    running[name] = subgraph.placement.queue
                    if expected == "inline":
                        assert caller is None
                        caller = name
                case Join(name):
                    assert caller is None
                    assert set(plan.joins[name].inputs) <= written
                    running[name] = caller = name
                case Wait(names):
                    assert caller is None
                    assert set(names) == set(running)
        if log and isinstance(log[-1], Finish | Fail):
            assert not running
            return log, written
        assert running, "nothing runs and the inference is not over"
        name = data.draw(st.sampled_from(sorted(running)))
        del running[name]
        caller = None if caller == name else caller
        if name == fail:
            log.append("failed")
            todo = state.handle(SubgraphFailed(name, "broken"))
        elif name in plan.joins:
            written.add(plan.joins[name].output)
            todo = state.handle(JoinDone(name))
        else:
            written.add(plan.subgraphs[name].output)
            todo = state.handle(SubgraphDone(name))


@given(plans(), st.data())
def test_every_step_runs_once_after_its_inputs_in_any_order_of_completion(plan, data):
    log, written = drive(plan, data)
    steps = [getattr(i, "subgraph", None) or getattr(i, "join", None) for i in log if isinstance(i, Enqueue | Submit | RunInline | Join)]
    assert sorted(steps) == sorted([*plan.subgraphs, *plan.joins])
    assert [i for i in log if isinstance(i, Finish | Fail)] == [Finish(plan.output)]
    assert plan.output in written


@given(plans(), st.data())
def test_any_failing_subgraph_ends_in_one_fail_and_starts_nothing_after_it(plan, data):
    broken = data.draw(st.sampled_from(sorted(plan.subgraphs)))
    log, written = drive(plan, data, fail=broken)
    assert [i for i in log if isinstance(i, Finish | Fail)] == [Fail(broken, "broken")]
    assert plan.subgraphs[broken].output not in written
    assert all(isinstance(i, Wait | Fail) for i in log[log.index("failed") + 1 :])


@given(plans(), st.data())
def test_only_the_last_instruction_of_an_answer_occupies_the_calling_thread(plan, data):
    state = SchedulerState(plan)
    todo, outside = state.handle(InputReady()), set()
    while not isinstance(todo[-1], Finish):
        assert all(isinstance(i, Enqueue | Submit) for i in todo[:-1])
        outside |= {i.subgraph for i in todo[:-1]}
        match todo[-1]:
            case RunInline(name):
                todo = state.handle(SubgraphDone(name))
            case Join(name):
                todo = state.handle(JoinDone(name))
            case Wait(names):
                assert set(names) == outside
                name = data.draw(st.sampled_from(sorted(names)))
                outside.remove(name)
                todo = state.handle(SubgraphDone(name))
