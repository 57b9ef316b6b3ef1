"""A table that replays a state machine: each answer is computed once per state and then looked up."""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from scheduler.runtime.machine import Event, Instruction, Machine

A = TypeVar("A")


class Node(Generic[A]):
    """A state, and its answers so far.

    Args:
        machine: The state, which is never changed.
    """

    __slots__ = ("answers", "machine")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.answers: dict[object, tuple[A, Node[A]]] = {}


class ReplayTable(Generic[A]):
    """Memoized answers of a machine with one client: each is computed once and then looked up.

    Between two subgraphs, Python code runs from caches that the last subgraph has emptied, and each object it touches
    costs a cache miss. A look-up touches a tenth of the objects that the state machine touches. States with equal future
    answers are one node, so that the table stays as small as the plan, whatever the order in which steps end.

    Args:
        prepare: Converts the instructions of an answer to the caller's form; called once per answer.
    """

    def __init__(self, prepare: Callable[[Sequence[Instruction]], A]) -> None:
        self._prepare = prepare
        self._nodes: dict[Hashable, Node[A]] = {}

    def node(self, machine: Machine) -> Node[A]:
        """Return the node of a state, which must not be changed any more."""
        return self._nodes.setdefault(machine.key(), Node(machine))

    def compute(self, node: Node[A], event: Event, name: Hashable | None) -> tuple[A, Node[A]]:
        """Compute the answer to an event that `node.answers` lacks.

        Args:
            name: Key of the answer in `node.answers`; None for an answer that is not memoized.
        """
        machine = node.machine.copy()
        answer = self._prepare(machine.handle(event))
        if name is None:
            return answer, Node(machine)
        node.answers[name] = (answer, self.node(machine))
        return node.answers[name]

    def clear(self) -> None:
        """Drop all nodes, because states form reference cycles that would keep their answers alive."""
        for node in self._nodes.values():
            node.answers.clear()
        self._nodes.clear()

    def __len__(self) -> int:
        """Return the number of states so far."""
        return len(self._nodes)
