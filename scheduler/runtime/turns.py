"""Whose step a queue runs next where inferences of several clients share it: an order, without threads or a clock.

What waits for a queue is ordered by

1. the earliest deadline. An inference without one that has waited for `patience_ms` counts as one whose deadline was then,
   so that none waits for ever;
2. the highest priority;
3. the client who was given least of the queue, over its weight (start-time fair queueing, Goyal et al. 1996, with times that
   are known when they are over: two clients that always have something waiting differ by one step each at most);
4. which inference began first.

A step that runs is never interrupted: what is more urgent takes its turn when that one ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from predictors.errors import UsageError

#: Milliseconds after which an inference without a deadline is the most urgent of all.
PATIENCE_MS = 1000.0

#: Priorities are from minus to plus this.
MOST_PRIORITY = 100

#: An inference: its client, and its lane among that client's.
Inference = tuple[str, int]

#: A step that is to run on a queue: its inference, its name.
Turn = tuple[Inference, str]


@dataclass
class _Known:
    """What counts of an inference."""

    began_ms: float
    deadline_ms: float
    priority: int
    number: int


@dataclass
class _Queue:
    """What a queue runs, what waits for it, and what it gave to whom."""

    waiting: list[Turn]  # In the order in which they came.
    holder: tuple[Turn, float] | None  # What runs, and since when, ms.
    given: dict[str, float]  # Time that each client was given, ms over its weight.
    floor: float = 0.0  # Least of these among clients with something to run: whoever comes back has been given at least that.

    def clients(self) -> set[str]:
        """Who has something waiting or running."""
        return {inference[0] for inference, _ in self.waiting} | ({self.holder[0][0][0]} if self.holder else set())


class Turns:
    """The order of what waits for queues.

    Args:
        patience_ms: How long an inference without a deadline waits, at most, before it is the most urgent.
    """

    def __init__(self, patience_ms: float = PATIENCE_MS) -> None:
        if not patience_ms > 0:
            raise UsageError(
                f"a patience of {patience_ms:g} ms is none", "give the milliseconds that an inference may wait, more than none"
            )
        self._weights: dict[str, float] = {}
        self._patience_ms = patience_ms
        self._inferences: dict[Inference, _Known] = {}
        self._queues: dict[str, _Queue] = {}
        self._began = 0

    def add(self, client: str, weight: float = 1.0) -> None:
        """Have one more client.

        Args:
            weight: With twice the weight of another it is given twice as much of a queue that both want.
        """
        if not (isfinite(weight) and weight > 0):
            raise UsageError(f"`{client}` cannot have a weight of {weight:g}", "a weight is a number above 0")
        self._weights[client] = weight

    def begin(self, inference: Inference, at_ms: float, deadline_ms: float = inf, priority: int = 0) -> None:
        """An inference begins.

        Args:
            deadline_ms: When it has to be over, by the same clock; infinite for never.
        """
        if inference in self._inferences or inference[0] not in self._weights:
            raise ValueError(f"an inference of `{inference[0]}` cannot begin in lane {inference[1]}")
        self._inferences[inference] = _Known(at_ms, deadline_ms, priority, self._began)
        self._began += 1

    def ask(self, inference: Inference, step: str, queue: str) -> None:
        """A step of an inference may run on a queue from now on."""
        if inference not in self._inferences:
            raise ValueError(f"`{step}` is of an inference that has not begun")
        state = self._queues.setdefault(queue, _Queue([], None, {}))
        client = inference[0]
        if client not in state.clients():
            # what it was not given while it wanted nothing is not owed to it
            state.given[client] = max(state.given.get(client, 0.0), state.floor)
        state.waiting.append((inference, step))

    def next(self, queue: str, at_ms: float) -> Turn | None:
        """Give a queue to what is the most urgent; None if something holds it, or nothing waits."""
        state = self._queues.get(queue)
        if state is None or state.holder is not None or not state.waiting:
            return None
        state.floor = max(state.floor, min(state.given[client] for client in state.clients()))
        turn = min(state.waiting, key=lambda each: self._key(state, each[0], at_ms))
        state.waiting.remove(turn)
        state.holder = turn, at_ms
        return turn

    def leave(self, queue: str, at_ms: float) -> Turn:
        """What held a queue is over."""
        state = self._queues.get(queue)
        if state is None or state.holder is None:
            raise ValueError(f"nothing runs on `{queue}`")
        turn, since_ms = state.holder
        client = turn[0][0]
        state.given[client] += max(0.0, at_ms - since_ms) / self._weights[client]
        state.holder = None
        return turn

    def end(self, inference: Inference) -> None:
        """An inference is over; what of it waits will not run."""
        del self._inferences[inference]
        for queue in self._queues.values():
            queue.waiting = [each for each in queue.waiting if each[0] != inference]

    def holder(self, queue: str) -> Turn | None:
        """What a queue runs."""
        state = self._queues.get(queue)
        return None if state is None or state.holder is None else state.holder[0]

    def waiting(self, queue: str) -> Sequence[Turn]:
        """What waits for a queue, in the order in which it came."""
        state = self._queues.get(queue)
        return () if state is None else tuple(state.waiting)

    def given_ms(self, queue: str, client: str) -> float:
        """What counts as given to a client of a queue: time, ms over its weight, and what it missed while it wanted nothing."""
        state = self._queues.get(queue)
        return 0.0 if state is None else state.given.get(client, 0.0)

    def _key(self, queue: _Queue, inference: Inference, at_ms: float) -> tuple[float, float, float, float]:
        known = self._inferences[inference]
        patient = known.began_ms + self._patience_ms
        deadline = known.deadline_ms if known.deadline_ms != inf else patient if patient <= at_ms else inf
        return deadline, -known.priority, queue.given[inference[0]], known.number


def checked_priority(priority: int) -> int:
    """A priority."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise UsageError(f"{priority} is no priority", f"it is from {-MOST_PRIORITY} to {MOST_PRIORITY}, the highest goes first")
    return priority


def deadline_at(now_s: float, deadline_ms: float | None) -> float:
    """When a request has to be done, s; infinite for never.

    Args:
        deadline_ms: How long it may take, ms; None for any time.
    """
    if deadline_ms is None:
        return inf
    if not (isfinite(deadline_ms) and deadline_ms > 0):
        raise UsageError(
            f"a deadline in {deadline_ms:g} ms cannot be kept", "give the milliseconds that the request may take, more than none"
        )
    return now_s + deadline_ms / 1e3
