"""Several inferences in flight: which of them uses which processor next, with no threads and no clock.

Each inference follows its own `SchedulerState` rules of dependency, but the
processors are shared: whenever a queue is free it asks for the next step. The
oldest inference goes first, so that none waits for ever, and joins go before
subgraphs, since they free work for others. That alone pipelines inferences
over segments: while one waits at a meeting point, the next one's branch runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.runtime.plan import ExecutionPlan


@dataclass(frozen=True)
class Task:
    """A subgraph or join of one inference.

    Args:
        lane: Which set of buffers the inference has.
        step: Name of the subgraph or join.
    """

    lane: int
    step: str


class _Inference:
    """What one inference has left to do."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.missing = dict(plan.missing)
        self.left = len(plan.missing)
        self.ready: list[str] = []
        self.running = 0
        self.failure: tuple[str, Exception] | None = None


class PipelineState:
    """The state of all inferences in flight.

    Args:
        plan: What each inference runs.
        lanes: How many inferences there may be at once, at least 1.
        helps: Queues whose subgraphs a queue takes when its own has none; a
            queue that is not named helps nobody.

    Raises:
        ValueError: If there is no lane.
    """

    def __init__(self, plan: ExecutionPlan, lanes: int, helps: Mapping[str, tuple[str, ...]] | None = None) -> None:
        if lanes < 1:
            raise ValueError("a pipeline needs a lane")
        self._plan = plan
        self._free = list(range(lanes))
        self._inferences: dict[int, _Inference] = {}  # in order of arrival
        self._helps = dict(helps or {})

    @property
    def free_lanes(self) -> int:
        """How many more inferences may arrive."""
        return len(self._free)

    @property
    def in_flight(self) -> int:
        """How many inferences have not ended."""
        return len(self._inferences)

    def reserve(self) -> int:
        """Take a free lane, so that its input can be written.

        Raises:
            ValueError: If there is none.
        """
        if not self._free:
            raise ValueError("no lane is free")
        return self._free.pop(0)

    def arrive(self, lane: int) -> None:
        """The input of a reserved lane is in its buffer."""
        if lane in self._inferences or lane in self._free:
            raise ValueError(f"lane {lane} is not reserved")
        inference = self._inferences[lane] = _Inference(self._plan)
        self._written(inference, self._plan.input)

    def release(self, lane: int) -> None:
        """Give back a lane whose output was read, or whose input was never written."""
        if lane in self._inferences or lane in self._free:
            raise ValueError(f"lane {lane} is not reserved")
        self._free.append(lane)

    def take(self, queue: str) -> Task | None:
        """The step that a free queue runs next; None if nothing is ready for it.

        Own subgraphs come first, then those of queues it helps, of the oldest inference each.
        """
        for wanted in (None, (queue,), self._helps.get(queue, ())):
            for lane, inference in self._inferences.items():
                if inference.failure is None and (step := self._pick(inference, wanted)):
                    inference.ready.remove(step)
                    inference.running += 1
                    return Task(lane, step)
        return None

    def done(self, task: Task) -> bool:
        """A step ended well.

        Returns:
            Whether its inference has ended with it.

        Raises:
            ValueError: If the step was not running.
        """
        inference = self._ended(task)
        plan = self._plan
        subgraph = plan.subgraphs.get(task.step)
        inference.left -= 1
        self._written(inference, plan.joins[task.step].output if subgraph is None else subgraph.output)
        return self._over(task.lane, inference)

    def failed(self, task: Task, error: Exception) -> bool:
        """A step raised: nothing more of its inference starts.

        Returns:
            Whether its inference has ended with it.
        """
        inference = self._ended(task)
        inference.failure = inference.failure or (task.step, error)
        return self._over(task.lane, inference)

    def failure(self, lane: int) -> tuple[str, Exception] | None:
        """The first step of an inference that failed, and its error."""
        return self._inferences[lane].failure

    def forget(self, lane: int) -> None:
        """The inference of a lane has ended and been looked at; the lane stays reserved."""
        del self._inferences[lane]

    def waiting(self) -> dict[str, int]:
        """Subgraphs that are ready and wait for each queue: its depth."""
        depth = dict.fromkeys(self._plan.queues, 0)
        for inference in self._inferences.values():
            for step in inference.ready:
                if step in self._plan.subgraphs:
                    depth[self._plan.subgraphs[step].placement.queue] += 1
        return depth

    def _pick(self, inference: _Inference, queues: tuple[str, ...] | None) -> str | None:
        """The first ready join, or the first ready subgraph of some queues, in the plan's order."""
        plan = self._plan
        able = [
            step
            for step in inference.ready
            if (step in plan.joins if queues is None else step in plan.subgraphs and plan.subgraphs[step].placement.queue in queues)
        ]
        return min(able, key=plan.order.__getitem__, default=None)

    def _written(self, inference: _Inference, tensor: str) -> None:
        for name in self._plan.readers.get(tensor, ()):
            inference.missing[name] -= 1
            if not inference.missing[name]:
                inference.ready.append(name)

    def _ended(self, task: Task) -> _Inference:
        inference = self._inferences.get(task.lane)
        if inference is None or not inference.running or task.step in inference.ready:
            raise ValueError(f"`{task.step}` of lane {task.lane} is not running")
        inference.running -= 1
        return inference

    def _over(self, lane: int, inference: _Inference) -> bool:
        return not inference.running and (inference.failure is not None or not inference.left)
