import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.runtime.events import Fail, Finish, InputReady, Join, JoinDone, RunInline, SubgraphDone, SubgraphFailed, Wait
from scheduler.runtime.plan import make_plan
from scheduler.runtime.state import SchedulerState
from scheduler.runtime.transitions import Transitions


@pytest.fixture(scope="module")
def plan(bundles, tmp_path_factory):
    """stem, three branches, join, three branches, join, head."""
    processors = ("cpu", "gpu", "dsp")
    path = bundles.two_branches(tmp_path_factory.mktemp("b"), processors=processors)
    return make_plan(load_bundle(path).manifest, place_processors(processors, cores=(0, 1, 2)))


def infer(data, plan, step):
    """One inference in an order that hypothesis draws; `step` answers events, and its answers are collected."""
    answers, outside = [], set()
    event = InputReady()
    while True:
        answer = step(event)
        answers.append(list(answer))
        outside |= {i.subgraph for i in answer[:-1]}
        match answer[-1]:
            case Finish() | Fail():
                return answers
            case RunInline(name):
                event = SubgraphDone(name)
            case Join(name):
                event = JoinDone(name)
            case Wait(names):
                name = data.draw(st.sampled_from(sorted(names)))
                event = SubgraphDone(name)


class Follower:
    """Answers events from a table that learns, and from a state machine that does not."""

    def __init__(self, plan, table):
        self.state, self.table, self.node = SchedulerState(plan), table, table.start

    def __call__(self, event):
        name = getattr(event, "subgraph", getattr(event, "join", "input"))
        answer, self.node = self.node.answers.get(name) or self.table.learn(self.node, event, name)
        assert list(answer) == self.state.handle(event)
        return answer


@given(st.data())
def test_remembered_answers_are_those_of_the_state_machine_in_any_order(plan, data):
    table = Transitions(plan, tuple)
    for _ in range(4):
        infer(data, plan, Follower(plan, table))


@given(st.data())
def test_table_stays_as_small_as_the_plan_whatever_the_order(plan, data):
    table = Transitions(plan, tuple)
    for _ in range(12):
        infer(data, plan, Follower(plan, table))
    # Between two joins, at most each subset of the outside branches and the inline one done.
    assert len(table) <= 2 * 2**3 + 4


def test_second_inference_learns_nothing(plan):
    learned = []
    table = Transitions(plan, lambda instructions: learned.append(instructions) or tuple(instructions))

    def run():
        node, event = table.start, InputReady()
        while True:
            name = getattr(event, "subgraph", getattr(event, "join", "input"))
            answer, node = node.answers.get(name) or table.learn(node, event, name)
            match answer[-1]:
                case Finish():
                    return
                case RunInline(step):
                    event = SubgraphDone(step)
                case Join(step):
                    event = JoinDone(step)
                case Wait(names):
                    event = SubgraphDone(names[0])

    run()
    first = len(learned)
    run()
    assert len(learned) == first


def test_failure_is_answered_and_not_remembered(plan):
    table = Transitions(plan, tuple)
    _, node = table.learn(table.start, InputReady(), "input")
    answer, _ = table.learn(node, SubgraphFailed("stem", "broken"), None)
    assert answer == (Fail("stem", "broken"),)
    assert node.answers == {}
    assert table.learn(node, SubgraphDone("stem"), "stem")[0][-1] == RunInline("s1.cpu")
