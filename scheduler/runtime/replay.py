"""A table that replays a state machine: an answer that was given once in a state is looked up from then on."""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from scheduler.runtime.machine import Event, Instruction, Machine

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


class ReplayTable(Generic[A]):
    """Memoized answers of a machine of one client: each is computed once and looked up from then on.

    Between two subgraphs, Python code runs from caches that the last subgraph has emptied; each object it touches costs a
    miss. A look-up touches a tenth of what the rules above touch. States that answer alike are one node, so that the
    table stays as small as the plan, whatever order things end in.

    Args:
        prepare: Turns the instructions of an answer into the caller's form; called once for each answer.
    """

    def __init__(self, prepare: Callable[[Sequence[Instruction]], A]) -> None:
        self._prepare = prepare
        self._nodes: dict[Hashable, Node[A]] = {}

    def node(self, machine: Machine) -> Node[A]:
        """Return the node of a state; the state is not changed any more."""
        return self._nodes.setdefault(machine.key(), Node(machine))

    def compute(self, node: Node[A], event: Event, name: Hashable | None) -> tuple[A, Node[A]]:
        """Compute the answer to an event that `node.answers` lacks.

        Args:
            name: Key of the answer in `node.answers`; None to not memoize it.
        """
        machine = node.machine.copy()
        answer = self._prepare(machine.handle(event))
        if name is None:
            return answer, Node(machine)
        node.answers[name] = (answer, self.node(machine))
        return node.answers[name]

    def clear(self) -> None:
        """Drop all nodes: states form cycles, which would keep their answers alive."""
        for node in self._nodes.values():
            node.answers.clear()
        self._nodes.clear()

    def __len__(self) -> int:
        """Return the number of states met so far."""
        return len(self._nodes)
