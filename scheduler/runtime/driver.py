"""What every driver of the state machine does alike: code bound to buffers, what happens written down, steps that went wrong."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array, AsyncInvocation, Invocation, UnableError
from scheduler.faults.policy import FaultPolicy, Site
from scheduler.placement.place import Placement, queues_of
from scheduler.runtime.buffers import Buffers, bind_subgraph
from scheduler.runtime.code import Code
from scheduler.runtime.distance import distance
from scheduler.runtime.machine import Event, Instruction, Machine, StepFailed, StepReturned
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.record import Recorder

#: Computes a subgraph's outputs from the same inputs by another delegate, whose name comes with them; None if there is no other.
Other = Callable[[], tuple[str, Sequence[Array]] | None]


@dataclass
class Check:
    """Looks at what a subgraph wrote, after each run."""

    outputs: Sequence[Array]  # Its output buffers.
    other: Other  # Computes them by another delegate.
    precision: str  # Of the subgraph.
    allowed: Sequence[float]  # How far each output may be from the other delegate's (`scheduler.runtime.distance.allowed`).
    policy: FaultPolicy  # What is looked at.
    runs: int = 0

    def __call__(self) -> None:
        """Look."""
        self.runs += 1
        spot = self.policy.spot_every > 0 and self.runs % self.policy.spot_every == 0
        if not spot and (not self.policy.finite or all(map(_finite, self.outputs))):
            return
        with np.errstate(all="ignore"):  # numbers may be any
            found = self.other()
        if found is None:
            return
        name, expected = found
        for got, want, allowed in zip(self.outputs, expected, self.allowed, strict=True):
            if not _finite(want):
                continue  # the network itself has no number there
            if not _finite(got):
                raise UnableError(f"it gave NaN or infinity where the delegate `{name}` gives numbers")
            error = distance(got, want, self.precision)
            if not error <= allowed:
                raise UnableError(
                    f"its result is off by {error:.2g} from that of the delegate `{name}`, {allowed:g} is allowed in {self.precision}"
                )


class CheckedInvocation(Invocation):
    """Runs, then looks at the outputs."""

    def __init__(self, call: Invocation, check: Check) -> None:
        self._call, self._check = call, check

    def run(self) -> None:
        """Compute, then look."""
        self._call.run()
        self._check()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """As the delegate converts."""
        return self._call.conversions()


class AsyncCheckedInvocation(AsyncInvocation):
    """Waits, then looks at the outputs."""

    def __init__(self, call: AsyncInvocation, check: Check) -> None:
        self._call, self._check = call, check

    def enqueue(self) -> None:
        """As the delegate enqueues."""
        self._call.enqueue()

    def wait(self) -> None:
        """Wait, then look."""
        self._call.wait()
        self._check()

    def times(self) -> tuple[int, int] | None:
        """As the delegate tells."""
        return self._call.times()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """As the delegate converts."""
        return self._call.conversions()


def checked(call: Invocation, check: Check) -> Invocation:
    """An invocation whose outputs are looked at after each run."""
    return AsyncCheckedInvocation(call, check) if isinstance(call, AsyncInvocation) else CheckedInvocation(call, check)


def _finite(array: Array) -> bool:
    """Whether all numbers are finite; a sum in double precision is not, where one of them is not."""
    return bool(np.isfinite(array.sum(dtype=np.float64)))


class Lane:
    """Buffers of one inference in flight, and its subgraphs bound to them.

    Args:
        buffers: Memory of the tensors that cross subgraphs.

    Attributes:
        calls: By (subgraph, placement), which is what finds them.
        errors: What went wrong in this inference, by step.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.calls: dict[tuple[str, Placement], Invocation] = {}
        self.errors: dict[str, Exception] = {}


AnyLane = TypeVar("AnyLane", bound=Lane)


class Driver(ABC, Generic[AnyLane]):
    """Carries out what the state machine says.

    Args:
        lanes: A lane for each inference that may be in flight.
        recorder: Writes down what the state machine is told and answers; None for nobody.
    """

    def __init__(self, plan: ExecutionPlan, lanes: Sequence[AnyLane], code: Code, recorder: Recorder | None) -> None:
        self.plan = plan
        self._lanes = list(lanes)
        self._code = code
        self._recorder = recorder
        self._recorded = 0
        #: Subgraphs that went elsewhere since this was made, and why.
        self._replaced: dict[str, str] = {}
        self._adding = threading.Lock()

    @abstractmethod
    def _open(self, place: Placement) -> None:
        """Have what serves the queue of a placement ready."""

    @abstractmethod
    def _placed(self) -> Mapping[str, Placement]:
        """Where each subgraph runs now."""

    def _fitted(self, place: Placement) -> Placement:
        """A placement as this driver carries it out."""
        return place

    def _add(self, name: str, place: Placement) -> None:
        """Have a subgraph's code ready for a placement, bound to every lane's buffers."""
        compiled = self._code.get(name, place)
        with self._adding:
            for lane in self._lanes:
                if (name, place) not in lane.calls:
                    call = self._checked(name, place, lane, bind_subgraph(self.plan.subgraphs[name], compiled, lane.buffers))
                    if place.dispatch == "async" and not isinstance(call, AsyncInvocation):
                        raise StretchError(f"delegate `{place.delegate}` says that it is asynchronous, but its invocations are not")
                    lane.calls[name, place] = call
        self._open(place)

    def _checked(self, name: str, place: Placement, lane: AnyLane, call: Invocation) -> Invocation:
        """A call whose results are looked at, where somebody minds faults and the delegate computes."""
        keeper = self._code.keeper
        if keeper is None or not (keeper.policy.finite or keeper.policy.spot_every) or not self._code.computing(place):
            return call
        subgraph, arrays = self.plan.subgraphs[name], lane.buffers.arrays

        def other() -> tuple[str, list[Array]] | None:
            """What another delegate computes, from the inputs that are still there."""
            found = self._code.other(name, place)
            if found is None:
                return None
            expected = lane.buffers.like(subgraph.outputs)
            bind_subgraph(subgraph, found[1], lane.buffers, expected).run()
            return found[0], [expected[each] for each in subgraph.outputs]

        outputs = [arrays[each] for each in subgraph.outputs]
        return checked(call, Check(outputs, other, *self._code.accuracy(name), keeper.policy))

    def forget(self, site: Site) -> None:
        """Let go of the code of a site where nothing runs, which is bound anew when it is added again."""
        with self._adding:
            for lane in self._lanes:
                for key in [key for key in lane.calls if Site.of(key[1]) == site]:
                    del lane.calls[key]

    def _begin_record(self, machine: Machine) -> None:
        """Begin to write down what a state machine is told, which starts afresh."""
        self._recorded = 0 if self._recorder is None else self._recorder.open(machine)

    def _handle(self, machine: Machine, event: Event) -> Sequence[Instruction]:
        """Tell the state machine, and write that down with what it answers."""
        instructions = machine.handle(event)
        if self._recorder is not None:
            self._recorder.note(self._recorded, event, instructions)
        return instructions

    def _lost(self, number: int, name: str, queue: str, place: Placement | None, error: Exception) -> Event:
        """A step that raised: it failed, unless its code for another placement can be made and added now."""
        if place is not None and (isinstance(error, UnableError) or self._code.keeper is not None):
            try:
                places = self._placed()
                instead = places[name]
                if instead == place:  # else another inference has found the same, and it is placed anew already
                    instead = self._fitted(self._code.fall_back(name, place, error, queues_of(places.values())))
                    self._add(name, instead)
            except Exception as again:
                error = again
            else:
                self._replaced[name] = instead.reason
                return StepReturned(number, name, queue, instead)
        self._lanes[number].errors.setdefault(name, error)
        return StepFailed(number, name, queue, str(error))
