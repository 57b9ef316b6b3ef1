"""The state machine's answers, remembered: what was worked out once is looked up from then on.

Between two subgraphs, Python code runs from caches that the last subgraph has
emptied; each object it touches costs a miss. A look-up touches a tenth of what
the rules of `scheduler.runtime.machine` touch. States that answer alike are one
node, so that the table stays as small as the plan, whatever order things end in.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from scheduler.runtime.events import Event, Instruction
from scheduler.runtime.machine import Machine

A = TypeVar("A")


class Node(Generic[A]):
    """A state and the answers it has given so far.

    Args:
        machine: The state; never changed.
    """

    __slots__ = ("answers", "machine")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.answers: dict[object, tuple[A, Node[A]]] = {}


class Transitions(Generic[A]):
    """Look-up table of one plan.

    Args:
        prepare: Turns the instructions of an answer into what the caller wants
            back; called once for each answer.
    """

    def __init__(self, prepare: Callable[[Sequence[Instruction]], A]) -> None:
        self._prepare = prepare
        self._nodes: dict[Hashable, Node[A]] = {}

    def node(self, machine: Machine) -> Node[A]:
        """The node of a state; the state is not changed any more."""
        return self._nodes.setdefault(machine.key(), Node(machine))

    def learn(self, node: Node[A], event: Event, name: Hashable | None) -> tuple[A, Node[A]]:
        """Work out the answer to an event that `node.answers` does not have.

        Args:
            name: Key of the answer in `node.answers`; None to not remember it.
        """
        machine = node.machine.copy()
        answer = self._prepare(machine.handle(event))
        if name is None:
            return answer, Node(machine)
        node.answers[name] = (answer, self.node(machine))
        return node.answers[name]

    def clear(self) -> None:
        """Forget everything: states lead back to where they began, and what they answer would live as long as that."""
        for node in self._nodes.values():
            node.answers.clear()
        self._nodes.clear()

    def __len__(self) -> int:
        """Number of states met so far."""
        return len(self._nodes)
