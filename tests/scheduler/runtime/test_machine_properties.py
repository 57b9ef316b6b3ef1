"""The state machine over random plans, placements and lanes, with and without a calling thread."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.runtime.events import (
    Enqueue,
    Fail,
    Finish,
    InputReady,
    Join,
    Replaced,
    RunInline,
    Start,
    StepDone,
    StepFailed,
    StepReturned,
    Submit,
    Wait,
)
from scheduler.runtime.machine import Machine
from tests.scheduler.runtime.plans import GPU, blocking, plans

KIND = {"async": Enqueue, "blocking": Submit, "inline": RunInline}

ELSEWHERE = [blocking("any", 3), blocking("any", 4), replace(GPU, queue="gpu2")]


class Play:
    """Plays events in an order that hypothesis draws, and checks every answer."""

    def __init__(self, data, plan, places, lanes, caller, movable=()):
        self.data, self.plan, self.caller = data, plan, caller
        self.places = dict(places)
        self.machine = Machine(plan, places, lanes, caller=caller, movable=movable)
        self.movable = movable
        self.running, self.ran, self.ends = {}, Counter(), {}
        self.written = {}
        self.arrived, self.failed = [], {}

    def tell(self, event):
        answer = self.machine.handle(event)
        for instruction in answer:
            match instruction:
                case Start():
                    self.started(instruction)
                case Finish(lane):
                    assert set(self.plan.outputs) <= self.written[lane]
                    assert all(self.ran[lane, step] for step in self.plan.order)
                    assert lane not in self.failed
                    self.ended(lane, instruction)
                case Fail(lane, step, error):
                    assert (step, error) == self.failed[lane]
                    self.ended(lane, instruction)
                case Wait(running):
                    assert self.caller
                    assert running == {queue: step for queue, (_, step) in self.running.items()}
                    assert instruction is answer[-1]
        if self.caller:
            assert all(isinstance(instruction, Enqueue | Submit) for instruction in answer[:-1])
        return answer

    def started(self, start):
        lane, step, queue = start.lane, start.step, start.queue
        assert queue not in self.running, "one step at a time on a queue"
        assert set(self.plan.step(step).inputs) <= self.written[lane], "after what it reads"
        assert lane not in self.failed, "nothing starts after a failure"
        self.running[queue] = (lane, step)
        self.ran[lane, step] += 1
        if step in self.plan.joins:
            assert isinstance(start, Join)
            assert queue == self.machine.caller or not self.caller
            return
        assert type(start) is KIND[self.places[step].dispatch]
        if queue != self.places[step].queue:
            assert self.places[step].delegate in self.movable, "only what may move is run by others"
        # Of the steps that this queue could have run, none is of a lane that came earlier.
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
        return self.tell(InputReady(lane))

    def end(self, queue, fail=False, elsewhere=None):
        lane, step = self.running.pop(queue)
        if fail:
            self.failed.setdefault(lane, (step, "broken"))
            return self.tell(StepFailed(lane, step, queue, "broken"))
        if elsewhere is not None and step in self.plan.subgraphs:
            self.ran[lane, step] -= 1
            self.places[step] = elsewhere
            return self.tell(StepReturned(lane, step, queue, elsewhere))
        self.written[lane] |= set(self.plan.step(step).outputs)
        return self.tell(StepDone(lane, step, queue))

    def place(self, step, place):
        self.places[step] = place
        return self.tell(Replaced(step, place))


def threads(places):
    """Placements as they are where every queue has a thread."""
    return {name: replace(place, dispatch="blocking") for name, place in places.items()}


@st.composite
def played(draw):
    """Plan, placements, lanes, caller and delegates that may be moved."""
    (plan, places), caller = draw(plans()), draw(st.booleans())
    lanes = 1 if caller else draw(st.integers(1, 3))
    movable = () if caller else draw(st.sampled_from([(), ("cpu",)]))
    return plan, places if caller else threads(places), lanes, caller, movable


def finish(play):
    while play.running:
        play.end(play.data.draw(st.sampled_from(sorted(play.running))))


@pytest.mark.slow
@settings(deadline=None)
@given(played(), st.data())
def test_each_step_runs_once_in_each_lane_after_what_it_reads_in_any_order_of_completion(case, data):
    plan, places, lanes, caller, movable = case
    play = Play(data, plan, places, lanes, caller, movable)
    left = list(range(lanes))
    while left or play.running:
        if left and (not play.running or data.draw(st.booleans())):
            play.begin(left.pop(0))
        else:
            play.end(data.draw(st.sampled_from(sorted(play.running))))
    assert play.ends == {lane: Finish(lane) for lane in range(lanes)}
    assert play.ran == Counter({(lane, step): 1 for lane in range(lanes) for step in plan.order})
    assert play.machine.in_flight == 0


@pytest.mark.slow
@settings(deadline=None)
@given(played(), st.data())
def test_any_failing_step_winds_its_lane_down_and_lets_the_others_finish(case, data):
    plan, places, lanes, caller, movable = case
    play = Play(data, plan, places, lanes, caller, movable)
    broken = data.draw(st.sampled_from(sorted(plan.order)))
    for lane in range(lanes):
        play.begin(lane)
    while play.running:
        queue = data.draw(st.sampled_from(sorted(play.running)))
        play.end(queue, fail=play.running[queue] == (0, broken))
    assert play.ends == {0: Fail(0, broken, "broken")} | {lane: Finish(lane) for lane in range(1, lanes)}


@pytest.mark.slow
@settings(deadline=None)
@given(played(), st.data())
def test_subgraphs_may_be_placed_elsewhere_between_any_two_steps_and_the_next_start_is_there(case, data):
    plan, places, lanes, caller, movable = case
    play = Play(data, plan, places, lanes, caller, movable)
    elsewhere = ELSEWHERE if caller else list(threads(dict(enumerate(ELSEWHERE))).values())
    for lane in range(lanes):
        play.begin(lane)
    for _ in range(data.draw(st.integers(0, 12))):
        if not play.running:
            break
        queue = data.draw(st.sampled_from(sorted(play.running)))
        what = data.draw(st.sampled_from(["end", "place", "return"]))
        if what == "place":
            play.place(data.draw(st.sampled_from(sorted(plan.subgraphs))), data.draw(st.sampled_from(elsewhere)))
        else:
            play.end(queue, elsewhere=data.draw(st.sampled_from(elsewhere)) if what == "return" else None)
    finish(play)
    assert play.ends == {lane: Finish(lane) for lane in range(lanes)}
    assert play.ran == Counter({(lane, step): 1 for lane in range(lanes) for step in plan.order})


@pytest.mark.slow
@settings(deadline=None)
@given(played(), st.data())
def test_copy_goes_its_own_way_and_equal_keys_answer_alike(case, data):
    plan, places, lanes, caller, movable = case
    play = Play(data, plan, places, lanes, caller, movable)
    play.begin(0)
    while play.running:
        queue = data.draw(st.sampled_from(sorted(play.running)))
        lane, step = play.running[queue]
        twin = play.machine.copy()
        before = twin.key()
        assert before == play.machine.key()
        answer = play.end(queue)
        assert twin.key() == before
        assert twin.handle(StepDone(lane, step, queue)) == answer
        assert twin.key() == play.machine.key()
