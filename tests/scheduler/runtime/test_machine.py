from collections import Counter
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.bundle.manifest import JoinEntry
from scheduler.runtime import machine as m
from scheduler.runtime.plan import PlannedSubgraph, build_plan
from scheduler.runtime.record import Recorder, Replay, replay
from scheduler.runtime.replay import ReplayTable
from scheduler.runtime.session import Session
from tests.scheduler.doubles import flaky, numbers
from tests.scheduler.runtime.plans import CPU, DSP, GPU, blocking, planned, plans, three_processors


def answered(machine, *turns):
    """Assert the machine's answers to a sequence of events."""
    for event, *answer in turns:
        assert machine.handle(event) == answer


def done(step, queue, lane=0):
    return m.StepDone(lane, step, queue)


def test_branches_are_enqueued_submitted_and_run_inline_then_waited_for_and_joined():
    answered(
        m.Machine.of(*three_processors()),
        (m.InputReady(0), m.RunInline(0, "stem", "cpu0")),
        (done("stem", "cpu0"), m.Enqueue(0, "s1.gpu", "gpu"), m.Submit(0, "s1.dsp", "cpu1"), m.RunInline(0, "s1.cpu", "cpu0")),
        (done("s1.cpu", "cpu0"), m.Wait({"gpu": "s1.gpu", "cpu1": "s1.dsp"})),
        (done("s1.dsp", "cpu1"), m.Wait({"gpu": "s1.gpu"})),
        (done("s1.gpu", "gpu"), m.Join(0, "s1.join", "cpu0")),
        (done("s1.join", "cpu0"), m.RunInline(0, "head", "cpu0")),
        (done("head", "cpu0"), m.Finish(0)),
    )


NOUNS = {m.Replaced: None, m.QueueReleased: "left behind"}


@pytest.mark.parametrize(
    "event",
    [
        # a step that is not running
        *(m.StepDone(0, step, queue) for step, queue in (("head", "cpu0"), ("unknown", "cpu0"), ("s1.cpu", "gpu"))),
        *(m.StepDone(1, "s1.cpu", "cpu0"), m.StepFailed(0, "stem", "cpu0", ""), m.StepReturned(0, "s1.join", "cpu0", GPU)),
        # a placement that does not fit the others
        *(m.Replaced("head", place) for place in (replace(GPU, queue="cpu1"), replace(CPU, queue="cpu7"), replace(DSP, dispatch="inline"))),
        *(m.Replaced("s1.join", CPU), m.QueueReleased("gpu", 1.0)),
    ],
)
def test_impossible_event_is_refused_and_changes_nothing(event):
    machine = m.Machine.of(*three_processors())
    for first in (m.InputReady(0), m.StepDone(0, "stem", "cpu0")):
        machine.handle(first)
    before = machine.key()
    with pytest.raises((StretchError, ValueError), match=NOUNS.get(type(event), "not running")):
        machine.handle(event)
    assert machine.key() == before


# Without a calling thread: several inferences in flight.


def pipeline(lanes, movable=()):
    plan, _ = planned(
        [("stem", "cpu", "x", "t"), ("s1.cpu", "cpu", "t", "a"), ("s1.gpu", "gpu", "t", "b"), ("head", "cpu", "u", "y")],
        [("s1.join", ("a", "b"), "u")],
    )
    places = {name: blocking(s.processor, 0 if s.processor == "cpu" else 1) for name, s in plan.subgraphs.items()}
    return m.Machine.of(plan, places, lanes, caller=False, movable=movable)


def test_join_runs_on_the_queue_that_just_became_free_and_before_its_subgraphs():
    machine = pipeline(2)
    for event in (m.InputReady(0), m.InputReady(1), done("stem", "cpu0"), done("s1.cpu", "cpu0"), done("stem", "cpu0", 1)):
        machine.handle(event)
    assert machine.waiting() == {"cpu0": 0, "cpu1": 1}
    answered(machine, (done("s1.gpu", "cpu1"), m.Join(0, "s1.join", "cpu1")), (done("s1.join", "cpu1"), m.Submit(1, "s1.gpu", "cpu1")))


def test_idle_queue_takes_work_of_an_equal_queue_from_the_oldest_inference():
    answered(
        pipeline(2, movable=("cpu",)),
        (m.InputReady(0), m.Submit(0, "stem", "cpu0")),
        (m.InputReady(1), m.Submit(1, "stem", "cpu1")),
        (done("stem", "cpu1", 1), m.Submit(1, "s1.gpu", "cpu1")),
        (done("stem", "cpu0"), m.Submit(0, "s1.cpu", "cpu0")),
        (done("s1.gpu", "cpu1", 1), m.Submit(0, "s1.gpu", "cpu1")),
        (done("s1.cpu", "cpu0"), m.Submit(1, "s1.cpu", "cpu0")),
    )


def subgraph(name, inputs, outputs):
    return PlannedSubgraph(name, name, f"{name}.onnx", "cpu", inputs, outputs)


def test_steps_with_several_tensors_are_ordered_by_all_their_inputs():
    last = subgraph("last", ("p", "x", "j"), ("y",))
    join = JoinEntry("j", "j", "sum", ("q", "z"), "j", "cpu")
    plan = build_plan(["x", "z"], ["y", "q"], [last, subgraph("first", ("z",), ("p", "q"))], [join])
    assert (list(plan.subgraphs), sorted(plan.order, key=plan.order.get)) == (["first", "last"], ["first", "j", "last"])
    assert (plan.missing, plan.readers["z"]) == ({"first": 1, "j": 2, "last": 3}, ("first", "j"))
    assert (plan.step("last"), plan.step("j").outputs) == (last, ("j",))


@pytest.mark.parametrize(("a", "b", "named"), [(("x", "b"), ("a",), "[ab]"), (("x",), ("lost", "a"), "b")])
def test_first_step_in_a_cycle_or_without_a_written_input_is_named(a, b, named):
    steps = [subgraph("a", a, ("a",)), subgraph("b", b, ("b",)), subgraph("c", ("b",), ("c",))]
    with pytest.raises(StretchError, match=f"`{named}` waits for a tensor that nothing writes before it"):
        build_plan(["x"], ["c"], steps, [])


ELSEWHERE = [blocking("any", 3), blocking("any", 4), replace(GPU, queue="gpu2")]


class Play:
    """Plays events in an order that hypothesis draws, and checks every answer."""

    def __init__(self, data, plan, places, lanes, caller, movable=()):
        self.data, self.plan, self.places, self.caller, self.movable = data, plan, dict(places), caller, movable
        self.machine = m.Machine.of(plan, places, lanes, caller=caller, movable=movable)
        self.running, self.ran, self.ends, self.written, self.arrived, self.failed = {}, Counter(), {}, {}, [], {}

    def tell(self, event):
        answer = self.machine.handle(event)
        for instruction in answer:
            match instruction:
                case m.Start():
                    self.started(instruction)
                case m.Finish(lane):
                    assert set(self.plan.outputs) <= self.written[lane]
                    assert all(self.ran[lane, step] for step in self.plan.order)
                    assert lane not in self.failed
                    self.ended(lane, instruction)
                case m.Fail(lane, step, error):
                    assert (step, error) == self.failed[lane]
                    self.ended(lane, instruction)
                case m.Wait(running):
                    assert (self.caller, running) == (True, {queue: step for queue, (_, step) in self.running.items()})
                    assert instruction is answer[-1]
        if self.caller:
            assert all(isinstance(instruction, m.Enqueue | m.Submit) for instruction in answer[:-1])
        # No queue is idle while a step that belongs to it could run.
        for lane in self.arrived if not self.failed else ():
            ready = [step for step in self.plan.subgraphs if not self.ran[lane, step] and self.readable(lane, step)]
            assert all(self.places[step].queue in self.running for step in ready), "at once"
        return answer

    def started(self, start):
        lane, step, queue = start.lane, start.step, start.queue
        assert queue not in self.running, "one step at a time on a queue"
        assert set(self.plan.step(step).inputs) <= self.written[lane], "after its inputs"
        assert lane not in self.failed, "nothing starts after a failure"
        self.running[queue] = (lane, step)
        self.ran[lane, step] += 1
        if step in self.plan.joins:
            assert isinstance(start, m.Join)
            assert queue == self.machine.caller or not self.caller
            return
        assert type(start) is {"async": m.Enqueue, "blocking": m.Submit, "inline": m.RunInline}[self.places[step].dispatch]
        if queue != self.places[step].queue:
            assert self.places[step].delegate in self.movable, "only what may move is run by others"
        # This queue could have run no step of an earlier lane.
        for older in self.arrived[: self.arrived.index(lane)]:
            if older not in self.failed:
                ready = [s for s in self.plan.subgraphs if not self.ran[older, s] and self.readable(older, s)]
                assert all(self.places[s].queue != self.places[step].queue for s in ready), "oldest lane first"

    def readable(self, lane, step):
        return set(self.plan.step(step).inputs) <= self.written[lane]

    def ended(self, lane, instruction):
        assert all(busy != lane for busy, _ in self.running.values())
        self.ends[lane] = instruction
        self.arrived.remove(lane)

    def begin(self, lane):
        self.written[lane] = set(self.plan.inputs)
        self.arrived.append(lane)
        return self.tell(m.InputReady(lane))

    def end(self, queue, fail=False, elsewhere=None):
        lane, step = self.running.pop(queue)
        if fail:
            self.failed.setdefault(lane, (step, "broken"))
            return self.tell(m.StepFailed(lane, step, queue, "broken"))
        if elsewhere is not None and step in self.plan.subgraphs:
            self.ran[lane, step] -= 1
            self.places[step] = elsewhere
            return self.tell(m.StepReturned(lane, step, queue, elsewhere))
        self.written[lane] |= set(self.plan.step(step).outputs)
        return self.tell(m.StepDone(lane, step, queue))

    def place(self, step, place):
        self.places[step] = place
        return self.tell(m.Replaced(step, place))

    def busy(self):
        """A running queue, drawn by hypothesis."""
        return self.data.draw(st.sampled_from(sorted(self.running)))

    def finished(self, lanes):
        """Assert that each step ran once in each lane."""
        assert self.ends == {lane: m.Finish(lane) for lane in range(lanes)}
        assert self.ran == Counter({(lane, step): 1 for lane in range(lanes) for step in self.plan.order})


def threads(places):
    """The placements with a thread for every queue."""
    return {name: replace(place, dispatch="blocking") for name, place in places.items()}


@st.composite
def played(draw):
    """Plan, placements, lanes, caller and movable delegates."""
    (plan, places), caller = draw(plans()), draw(st.booleans())
    lanes = 1 if caller else draw(st.integers(1, 3))
    movable = () if caller else draw(st.sampled_from([(), ("cpu",)]))
    return plan, places if caller else threads(places), lanes, caller, movable


@given(played(), st.data())
def test_each_step_runs_once_per_lane_after_its_inputs_in_any_order_of_completion(case, data):
    lanes, play = case[2], Play(data, *case)
    remaining = list(range(lanes))
    while remaining or play.running:
        if remaining and (not play.running or data.draw(st.booleans())):
            play.begin(remaining.pop(0))
        else:
            play.end(play.busy())
    play.finished(lanes)
    assert play.machine.in_flight() == 0


@given(played(), st.data())
def test_failing_steps_end_their_lane_and_other_lanes_finish(case, data):
    lanes, play = case[2], Play(data, *case)
    broken = data.draw(st.sets(st.sampled_from(sorted(play.plan.order)), min_size=1))
    for lane in range(lanes):
        play.begin(lane)
    while play.running:
        queue = play.busy()
        lane, step = play.running[queue]
        play.end(queue, fail=lane == 0 and step in broken)
    assert play.ends == {0: m.Fail(0, *play.failed[0])} | {lane: m.Finish(lane) for lane in range(1, lanes)}


@given(played(), st.data())
def test_subgraphs_may_be_replaced_between_any_two_steps_and_start_at_their_new_placement(case, data):
    plan, _, lanes, caller, _ = case
    play = Play(data, *case)
    elsewhere = ELSEWHERE if caller else list(threads(dict(enumerate(ELSEWHERE))).values())
    for lane in range(lanes):
        play.begin(lane)
    remaining = data.draw(st.integers(0, 12))
    while play.running and remaining:
        remaining, queue = remaining - 1, play.busy()
        action = data.draw(st.sampled_from(["end", "place", "return"]))
        if action == "place":
            play.place(data.draw(st.sampled_from(sorted(plan.subgraphs))), data.draw(st.sampled_from(elsewhere)))
        else:
            play.end(queue, elsewhere=data.draw(st.sampled_from(elsewhere)) if action == "return" else None)
    while play.running:
        play.end(play.busy())
    play.finished(lanes)


def key(event):
    return getattr(event, "step", "input")


def test_second_inference_reuses_all_answers_of_the_first():
    machine, learned = m.Machine.of(*three_processors()), []
    table = ReplayTable(lambda instructions: learned.append(instructions) or tuple(instructions))

    def run(node):
        event = m.InputReady(0)
        while True:
            answer, node = node.answers.get(key(event)) or table.compute(node, event, key(event))
            match answer[-1]:
                case m.Finish():
                    return node
                case m.RunInline(_, step, queue) | m.Join(_, step, queue):
                    event = m.StepDone(0, step, queue)
                case m.Wait(running):
                    queue, step = next(iter(running.items()))
                    event = m.StepDone(0, step, queue)

    end = run(table.node(machine))
    first = len(learned)
    assert run(end) is end is table.node(machine)
    assert len(learned) == first


def lines(path):
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_record_contains_failed_runs(bundle_dir, tmp_path):
    armed = {"s1.gpu": RuntimeError("broken")}
    with Session(bundle_dir, delegates={"cpu": flaky(armed)}, record=tmp_path / "r") as session:
        with pytest.raises(StretchError, match="broken"):
            session(numbers())
        armed.clear()
        session(numbers())
    assert replay(tmp_path / "r").finished == 1
    assert any("StepFailed" in str(line) for line in lines(tmp_path / "r"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result[2]["instructions"][0].update(step="head"), "line 3 .*head"),
        (lambda result: result[2]["instructions"].pop(), "line 3 .*answers"),
        (lambda result: result[2]["event"].update(step="s1.cpu"), "line 3 .*follow"),
        (lambda result: result.pop(2), "line 3 .*follow"),
        (lambda result: result.insert(1, result[1]), "line 3 .*lane 0"),
        (lambda result: result.pop(0), "opens"),
        (lambda result: result[0].update(schema=9), "schema 9"),
        (lambda result: result[0]["placements"].pop("stem"), "placed nowhere"),
        (lambda result: result[0]["subgraphs"][0].update(inputs=["lost"]), "waits for a tensor that nothing writes"),
        (lambda result: result[0].update(lanes=0), "is no line of a record"),
        (lambda result: result[1].update(wings=2), "is no line of a record"),
        (lambda result: result.clear(), "it has no line"),
    ],
)
def test_replay_accepts_a_record_and_refuses_a_changed_one_with_its_line(bundle_dir, tmp_path, change, message):
    recorded = tmp_path / "run.jsonl"
    with Session(bundle_dir, {"gpu": "reference"}, record=recorded) as session:
        session(numbers())
        for future in [session.submit(numbers()) for _ in range(3)]:
            future.result(60)
        session(numbers())
    # Nine events per inference: its input and eight steps. Runs and inferences in flight use one machine each.
    assert replay(recorded) == Replay(machines=2, events=5 * 9, finished=5)
    result = lines(recorded)
    change(result)
    recorded.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in result))
    with pytest.raises(StretchError, match=message):
        replay(recorded)


@settings(deadline=None)
@given(plans(), st.data())
def test_record_of_any_machine_can_be_replayed(tmp_path_factory, case, data):
    path = tmp_path_factory.mktemp("r") / "run.jsonl"
    machine = m.Machine.of(*case)
    with closing(Recorder(path)) as recorder:
        number, running, event = recorder.open(machine), [], m.InputReady(0)
        while event is not None:
            answer = machine.handle(event)
            recorder.write(number, event, answer)
            running += [instruction for instruction in answer if isinstance(instruction, m.Start)]
            start = running.pop(data.draw(st.integers(0, len(running) - 1))) if running else None
            event = None if start is None else m.StepDone(start.lane, start.step, start.queue)
    assert replay(path) == Replay(1, 1 + len(case[0].order), 1)
