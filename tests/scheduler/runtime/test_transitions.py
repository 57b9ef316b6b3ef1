import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.placement.place import place_subgraphs
from scheduler.runtime.events import Fail, Finish, InputReady, Join, RunInline, StepDone, Wait
from scheduler.runtime.machine import Machine
from scheduler.runtime.plan import make_plan
from scheduler.runtime.transitions import Transitions


@pytest.fixture(scope="module")
def machine(bundles, tmp_path_factory):
    """stem, three branches, join, three branches, join, head."""
    processors = ("cpu", "gpu", "dsp")
    manifest = load_bundle(bundles.two_branches(tmp_path_factory.mktemp("b"), processors=processors)).manifest
    return Machine(make_plan(manifest), place_subgraphs(manifest.subgraphs, place_processors(processors, cores=(0, 1, 2))))


def key(event):
    return getattr(event, "step", "input")


def infer(data, step):
    """One inference in an order that hypothesis draws; `step` answers events, and its answers are collected."""
    answers = []
    event = InputReady(0)
    while True:
        answer = step(event)
        answers.append(list(answer))
        match answer[-1]:
            case Finish() | Fail():
                return answers
            case RunInline(_, name, queue) | Join(_, name, queue):
                event = StepDone(0, name, queue)
            case Wait(running):
                queue = data.draw(st.sampled_from(sorted(running)))
                event = StepDone(0, running[queue], queue)


class Follower:
    """Answers events from a table that learns, and from a state machine that does not."""

    def __init__(self, machine, table):
        self.machine, self.table, self.node = machine.copy(), table, table.node(machine)

    def __call__(self, event):
        answer, self.node = self.node.answers.get(key(event)) or self.table.learn(self.node, event, key(event))
        assert list(answer) == self.machine.handle(event)
        return answer


@pytest.mark.slow
@given(st.data())
def test_remembered_answers_are_those_of_the_state_machine_in_any_order(machine, data):
    table = Transitions(tuple)
    for _ in range(4):
        infer(data, Follower(machine, table))


def test_second_inference_starts_where_the_first_ended_and_learns_nothing(machine):
    learned = []
    table = Transitions(lambda instructions: learned.append(instructions) or tuple(instructions))

    def run(node):
        event = InputReady(0)
        while True:
            answer, node = node.answers.get(key(event)) or table.learn(node, event, key(event))
            match answer[-1]:
                case Finish():
                    return node
                case RunInline(_, step, queue) | Join(_, step, queue):
                    event = StepDone(0, step, queue)
                case Wait(running):
                    queue, step = next(iter(running.items()))
                    event = StepDone(0, step, queue)

    end = run(table.node(machine))
    first = len(learned)
    assert run(end) is end is table.node(machine)
    assert len(learned) == first
