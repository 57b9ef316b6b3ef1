"""The state machine's answers, remembered: what was worked out once is looked up from then on.

Between two subgraphs, Python code runs from caches that the last subgraph has
emptied; each object it touches costs a miss. A look-up touches a tenth of what
the rules of `scheduler.runtime.state` touch. States that answer alike are one node, so
that the table stays as small as the plan, whatever order things end in.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from scheduler.runtime.events import Event, Instruction
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.state import SchedulerState

A = TypeVar("A")


class Node(Generic[A]):
    """A state and the answers it has given so far.

    Args:
        state: The state; never changed.
    """

    __slots__ = ("answers", "state")

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.answers: dict[object, tuple[A, Node[A]]] = {}


class Transitions(Generic[A]):
    """Look-up table of one plan.

    Args:
        plan: The plan.
        prepare: Turns the instructions of an answer into what the caller wants
            back; called once for each answer.
    """

    def __init__(self, plan: ExecutionPlan, prepare: Callable[[Sequence[Instruction]], A]) -> None:
        self._prepare = prepare
        self.start: Node[A] = Node(SchedulerState(plan))
        self._nodes: dict[Hashable, Node[A]] = {}

    def learn(self, node: Node[A], event: Event, name: str | None) -> tuple[A, Node[A]]:
        """Work out the answer to an event that `node.answers` does not have.

        Args:
            node: The state.
            event: What happened.
            name: Key of the answer in `node.answers`; None to not remember it.
        """
        state = node.state.copy()
        answer = self._prepare(state.handle(event))
        following = Node[A](state)
        if name is not None:
            following = self._nodes.setdefault(state.key(), following)
            node.answers[name] = (answer, following)
        return answer, following

    def __len__(self) -> int:
        """Number of states met so far, the first one not counted."""
        return len(self._nodes)
