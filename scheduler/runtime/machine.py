"""The state machine that drives every run: Algorithm 1 of paper 003 over a plan, placements and lanes; no threads, no clock, no IO.

A driver reports events and carries out the instructions it gets back, in their
order. Three drive it: `scheduler.runtime.executor` one inference at a time,
`scheduler.runtime.pipeline` several in flight, `scheduler.simulate.clock`
under a clock that is only a number.

With a calling thread, the transitions are, tried from top to bottom after each event:

=====================================================  ==========================
state                                                  instructions
=====================================================  ==========================
asynchronous queue free, subgraph of it ready          `Enqueue` (line 15 to 19)
blocking queue free, subgraph of it ready              `Submit` (line 20)
calling thread free, all branches of a join there      `Join` (line 6)
calling thread free, inline subgraph ready             `RunInline` (line 4)
calling thread free, all steps of the lane done        `Finish`, once
calling thread free, a step failed, nothing runs       `Fail`, once
calling thread free, others still run                  `Wait` for them (line 5)
=====================================================  ==========================

Nothing of a lane starts once one of its steps has failed. The other processors
are set to work before the calling thread, which would otherwise keep them
waiting for the length of its own subgraph.

Without one, every queue has a thread. A free queue takes a join, else a
subgraph that is placed on it, else one of a queue of its kind; each of the lane
whose input was ready first, so that no inference waits for ever. Joins go
first, since they free work for others. That alone pipelines inferences over
segments: while one waits at a meeting point, the next one's branch runs.
"""

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from copy import copy

from scheduler.placement.place import Dispatch, Placement, interchangeable, queues_of
from scheduler.runtime.events import (
    Enqueue,
    Event,
    Fail,
    Finish,
    InputReady,
    Instruction,
    Join,
    Replaced,
    RunInline,
    StepDone,
    StepFailed,
    StepReturned,
    Submit,
    Wait,
)
from scheduler.runtime.plan import ExecutionPlan

#: Queue of the calling thread where no subgraph is placed on it: it joins, and waits.
CALLING_THREAD = "calling thread"

_HOW: dict[Dispatch, type[Enqueue | Submit | RunInline]] = {"async": Enqueue, "blocking": Submit, "inline": RunInline}


class _Inference:
    """What the inference of a lane has left to do."""

    __slots__ = ("failure", "left", "missing", "ready")

    def __init__(self, plan: ExecutionPlan) -> None:
        self.missing = dict(plan.missing)
        self.left = len(plan.missing)
        #: Position in the plan and name, in that order.
        self.ready: list[tuple[int, str]] = []
        self.failure: tuple[str, str] | None = None

    def copy(self) -> "_Inference":
        other = copy(self)
        other.missing, other.ready = dict(self.missing), list(self.ready)
        return other

    def key(self) -> Hashable:
        return tuple(self.missing.values()), tuple(self.ready), self.left, self.failure


class Machine:
    """The state of all inferences of a plan.

    Args:
        lanes: How many inferences there may be at once, at least 1.
        caller: Whether the thread that reports events works, too: it runs inline subgraphs and all joins.
        movable: Delegates whose subgraphs any queue of such a delegate on as many cores may run, when its own has none.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        placements: Mapping[str, Placement],
        lanes: int = 1,
        *,
        caller: bool = True,
        movable: Collection[str] = (),
    ) -> None:
        if lanes < 1:
            raise ValueError("a machine needs a lane")
        self.plan = plan
        self.lanes = lanes
        self.movable = frozenset(movable)
        self._placements = {name: placements[name] for name in plan.subgraphs if name in placements}
        if len(self._placements) < len(plan.subgraphs):
            raise ValueError("a subgraph is placed nowhere")
        inline = next((place.queue for place in self._placements.values() if place.dispatch == "inline"), CALLING_THREAD)
        #: Queue that the calling thread serves; None if it serves none.
        self.caller = inline if caller else None
        self._inferences: dict[int, _Inference] = {}  # in order of arrival
        self._running: dict[str, tuple[int, str]] = {}
        self._sort_queues()

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Where each subgraph is started from now on."""
        return self._placements

    @property
    def in_flight(self) -> int:
        """How many inferences have not ended."""
        return len(self._inferences)

    def waiting(self) -> dict[str, int]:
        """Subgraphs that are ready and wait for each queue: its depth."""
        depth = dict.fromkeys(self._queues, 0)
        for inference in self._inferences.values():
            for _, step in inference.ready:
                if step in self._placements:
                    depth[self._placements[step].queue] += 1
        return depth

    def handle(self, event: Event) -> list[Instruction]:
        """Take in one event."""
        match event:
            case StepDone(lane, step, queue):
                inference = self._freed(lane, step, queue)
                inference.left -= 1
                for tensor in self.plan.step(step).outputs:
                    self._arrived(inference, tensor)
                return self._advance(lane, queue)
            case InputReady(lane):
                if lane in self._inferences or not 0 <= lane < self.lanes:
                    raise ValueError(f"lane {lane} is not free")
                inference = self._inferences[lane] = _Inference(self.plan)
                for tensor in self.plan.inputs:
                    self._arrived(inference, tensor)
                return self._advance(lane, None)
            case StepFailed(lane, step, queue, error):
                inference = self._freed(lane, step, queue)
                inference.failure = inference.failure or (step, error)
                return self._advance(lane, queue)
            case StepReturned(lane, step, queue, placement):
                inference = self._freed(lane, step, queue)
                self._replace(step, placement)
                insort(inference.ready, (self.plan.order[step], step))
                return self._advance(lane, queue)
            case Replaced(step, placement):
                self._replace(step, placement)
                return self._advance(None, None)

    def copy(self) -> "Machine":
        """A machine that goes its own way from here."""
        other = copy(self)
        other._placements = dict(self._placements)
        other._inferences = {lane: inference.copy() for lane, inference in self._inferences.items()}
        other._running = dict(self._running)
        return other

    def key(self) -> Hashable:
        """Equal for machines of one plan that answer all events to come alike."""
        inferences = tuple((lane, inference.key()) for lane, inference in self._inferences.items())
        return inferences, tuple(self._running.items()), tuple(self._placements.values())

    def _replace(self, step: str, placement: Placement) -> None:
        if step not in self._placements:
            raise ValueError(f"`{step}` is no subgraph, so it cannot be placed")
        before = self._placements[step]
        self._placements[step] = placement
        try:
            self._sort_queues()
        except Exception:
            self._placements[step] = before
            raise

    def _sort_queues(self) -> None:
        queues = queues_of(self._placements.values())
        if any(dispatch == "inline" and queue != self.caller for queue, dispatch in queues.items()):
            raise ValueError("a subgraph is placed on a calling thread that does not serve its queue")
        self._helps = interchangeable(self._placements.values(), self.movable) if self.movable else {}
        # In the order in which they are set to work, the calling thread last.
        others = [queue for kind in ("async", "blocking") for queue, dispatch in queues.items() if dispatch == kind]
        self._queues = others if self.caller is None else [*others, self.caller]

    def _advance(self, lane: int | None, freed: str | None) -> list[Instruction]:
        """Set every free queue to work, and close the lane if it has ended."""
        queues = self._queues
        if self.caller is None and freed is not None:
            queues = [freed, *(queue for queue in queues if queue != freed)]
        instructions: list[Instruction] = []
        for able in (self._own, self._helped) if self._helps else (self._own,):
            for queue in queues:
                found = None if queue in self._running else able(queue)
                if found is not None:
                    instructions.append(self._start(*found, queue))
        instructions += self._ended(lane)
        if self.caller is not None and self._running and self.caller not in self._running and not _ends(instructions):
            instructions.append(Wait({queue: step for queue, (_, step) in self._running.items()}))
        return instructions

    def _ended(self, lane: int | None) -> list[Instruction]:
        """The end of a lane of which nothing runs and nothing more will."""
        inference = None if lane is None else self._inferences.get(lane)
        if lane is None or inference is None or any(busy == lane for busy, _ in self._running.values()):
            return []
        if inference.failure is None and inference.left:
            return []
        del self._inferences[lane]
        return [Finish(lane) if inference.failure is None else Fail(lane, *inference.failure)]

    def _own(self, queue: str) -> tuple[int, str] | None:
        """A join, if the queue may run joins, else a subgraph that is placed on it."""
        joins = self.plan.joins
        if self.caller in (None, queue) and (found := self._oldest(lambda step: step in joins)):
            return found
        return self._oldest(lambda step: step not in joins and self._placements[step].queue == queue)

    def _helped(self, queue: str) -> tuple[int, str] | None:
        others = self._helps.get(queue, ())
        return self._oldest(lambda step: step in self._placements and self._placements[step].queue in others)

    def _oldest(self, able: Callable[[str], bool]) -> tuple[int, str] | None:
        """The first step in the plan's order that a queue is able to run, of the lane that arrived first."""
        for lane, inference in self._inferences.items():
            if inference.failure is None:
                for _, step in inference.ready:
                    if able(step):
                        return lane, step
        return None

    def _start(self, lane: int, step: str, queue: str) -> Enqueue | Submit | RunInline | Join:
        self._inferences[lane].ready.remove((self.plan.order[step], step))
        self._running[queue] = (lane, step)
        if step in self.plan.joins:
            return Join(lane, step, queue)
        return _HOW[self._placements[step].dispatch](lane, step, queue)

    def _freed(self, lane: int, step: str, queue: str) -> _Inference:
        if self._running.get(queue) != (lane, step):
            raise ValueError(f"`{step}` of lane {lane} is not running on `{queue}`")
        del self._running[queue]
        return self._inferences[lane]

    def _arrived(self, inference: _Inference, tensor: str) -> None:
        for name in self.plan.readers.get(tensor, ()):
            inference.missing[name] -= 1
            if not inference.missing[name]:
                insort(inference.ready, (self.plan.order[name], name))


def _ends(instructions: Iterable[Instruction]) -> bool:
    return any(isinstance(instruction, Finish | Fail) for instruction in instructions)
