"""Several bundles on the same processors: sessions that take turns, subgraph by subgraph."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from types import MappingProxyType, TracebackType
from typing import Any, Self

from msgspec import structs

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.delegates import Delegate
from scheduler.delegates.base import Array
from scheduler.faults.policy import FaultPolicy
from scheduler.placement.mapping import bundle_precisions, place_processors
from scheduler.placement.place import Placement
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import Code
from scheduler.runtime.executor import Executor
from scheduler.runtime.inputs import Values, checked_priority, deadline_at
from scheduler.runtime.machine import (
    PATIENCE_MS,
    Client,
    ClientRemoved,
    Event,
    Fail,
    Finish,
    InputReady,
    Instruction,
    Machine,
    QueueReleased,
    Start,
    StepDone,
    StepFailed,
    StepReturned,
)
from scheduler.runtime.pipeline import LOOK_S, Pipeline, QueueThreads
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.session import Session
from scheduler.runtime.watch import TIME_LIMIT_S

#: Events that are kept, with what they were answered.
KEPT = 4096


def now_ms() -> float:
    """Now, by the clock of `time.monotonic`, ms."""
    return monotonic() * 1e3


class SharedQueues:
    """Threads, one a queue, for the inferences of several clients.

    Args:
        patience_ms: How long an inference without a deadline waits, at most, before it is the most urgent.
        now: The clock of deadlines, ms.
    """

    def __init__(self, patience_ms: float = PATIENCE_MS, now: Callable[[], float] = now_ms) -> None:
        #: The clock of deadlines, ms.
        self.now = now
        #: Guards everything here and in the clients' pipelines.
        self.changed = threading.Condition()
        self.machine = Machine({}, patience_ms=patience_ms)
        #: Events that were told last, with what they were answered.
        self.events: deque[tuple[Event, tuple[Instruction, ...]]] = deque(maxlen=KEPT)
        self._clients: dict[str, SharedPipeline] = {}
        self.threads = QueueThreads()

    def add(self, name: str, client: Client, pipeline: "SharedPipeline") -> None:
        """Have a client's inferences, run by a pipeline; the lock is not held."""
        with self.changed:
            self.machine.add(name, client)
            self._clients[name] = pipeline

    def tell(self, event: Event) -> Sequence[Instruction]:
        """Tell the state machine, and hand out the steps that it answers; the lock is held."""
        answer = self.machine.handle(event)
        self.events.append((event, tuple(answer)))
        for instruction in answer:
            if isinstance(instruction, Start):
                place = self.machine.clients[instruction.client].placements.get(instruction.step)
                self.threads.put(instruction.queue, partial(self._clients[instruction.client].work, instruction, place))
        return answer

    def give_up(self, client: str, queue: str) -> None:
        """A client's step hangs: its inferences are given up, and its queue gets another thread; the lock is held."""
        self.tell(ClientRemoved(client, self.now()))
        self.threads.renew(queue)
        self.tell(QueueReleased(queue, self.now()))

    def left(self, queue: str) -> None:
        """A step of a client who was given up has ended; the lock is held."""
        if self.threads.calling(queue):
            self.tell(QueueReleased(queue, self.now()))

    def dismiss(self) -> None:
        """Have every thread end once it has done what it was given."""
        with self.changed:
            self.threads.dismiss()

    def close(self, *, wait: bool = True) -> None:
        """Return when the threads have ended, but for those that hang."""
        self.dismiss()
        if wait:
            self.threads.join()


class SharedPipeline(Pipeline):
    """One client's inferences among those of others.

    Args:
        lanes: Memory of the tensors that cross subgraphs, for each inference in flight.
        limit_s: Seconds that one call of a delegate may take.
        named: As of `Pipeline`.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        placements: Mapping[str, Placement],
        lanes: Sequence[Buffers],
        code: Code,
        shared: SharedQueues,
        client: str,
        weight: float = 1.0,
        limit_s: float = TIME_LIMIT_S,
        named: Callable[[Mapping[str, Array]], Mapping[str, Array]] = dict,
    ) -> None:
        self._shared, self._client, self._weight, self._count = shared, client, weight, len(lanes)
        #: Whether it was closed.
        self._gone = False
        super().__init__(plan, placements, lanes, code, limit_s, None, named, shared.changed, shared.threads)

    def submit(self, x: Mapping[str, Array], deadline_s: float = inf, priority: int = 0) -> Future[Values]:
        """Start an inference; waits while as many of this client as there are lanes are in flight."""
        number = self._filled(x)
        future = self._lanes[number].future
        with self._changed:
            if self._hang is None and not self._gone:  # else its future was told
                self._shared.tell(
                    InputReady(number, self._client, self._shared.now(), None if deadline_s == inf else deadline_s * 1e3, priority)
                )
        return future

    def close(self, *, wait: bool = True) -> None:
        """Return when what is in flight has ended."""
        self.stop()
        with self._changed:
            while len(self._free) < self._count and self._hang is None:
                if not self._changed.wait(LOOK_S) and not wait:
                    break
            left = [lane for number, lane in enumerate(self._lanes) if number not in self._free]
            if self._hang is None and not self._gone:
                self._gone = True
                self._shared.tell(ClientRemoved(self._client, self._shared.now()))
        self._watch.close()
        for lane in left:
            if lane.future.running():  # nobody computes it any more
                with suppress(InvalidStateError):
                    lane.future.set_exception(StretchError("this session was closed before the inference was over"))
        if not left:
            # Bound subgraphs hold memory, files and processes.
            self._lanes = []

    def _begin(self, placements: Mapping[str, Placement]) -> None:
        self._shared.add(self._client, Client(self.plan, placements, self._count, self._weight), self)

    def _running(self) -> int:
        return self._shared.machine.in_flight(self._client)

    def _waiting(self) -> dict[str, int]:
        return self._shared.machine.waiting(self._client)

    def _placed(self) -> Mapping[str, Placement]:
        with self._changed:
            return dict(self._shared.machine.clients[self._client].placements)

    def _tell(self, event: Event) -> Finish | Fail | None:
        if self._gone:
            if isinstance(event, StepDone | StepFailed | StepReturned):
                self._left(event.queue)
            return None
        answer = self._shared.tell(structs.replace(event, client=self._client, at_ms=self._shared.now()))
        return next((instruction for instruction in answer if isinstance(instruction, Finish | Fail)), None)

    def _dismiss(self) -> None:
        """The threads serve others, too."""

    def _give_up(self, queue: str) -> None:
        self._shared.give_up(self._client, queue)

    def _left(self, queue: str) -> None:
        self._shared.left(queue)


class SharedSession(Session):
    """A session of a `Scheduler`, whose inferences take turns with those of others.

    What looks into single inferences, `tensors` and `time_alone`, runs beside the turns, once nothing of this session is in flight.

    Args:
        bundle: As of `Session`.
        options: As of `Session`.
    """

    def __init__(self, shared: SharedQueues, client: str, weight: float, bundle: Bundle, **options: Any) -> None:
        self._shared, self._client, self._weight = shared, client, weight
        super().__init__(bundle, **options)

    @property
    def weight(self) -> float:
        """With twice the weight of another it is given twice as much of a processor that both want."""
        return self._weight

    def run(self, x: Any) -> Any:
        """Run one inference, in turns with others; see `Session.run`."""
        return self.submit(x).result()

    def ready(self) -> None:
        """Have everything ready that inferences take turns with."""
        with self._lock:
            self._piped(self._open())

    def submit(self, x: Any, *, deadline_ms: float | None = None, priority: int = 0) -> Future[Any]:
        """Start one inference beside those in flight.

        Args:
            x: As for `Session.submit`.
            deadline_ms: As of `Scheduler.submit`.
            priority: As of `Scheduler.submit`.
        """
        return self.submit_until(x, deadline_at(time.monotonic(), deadline_ms), priority)

    def submit_until(self, x: Any, deadline_s: float, priority: int) -> Future[Any]:
        """`submit` with a deadline by the clock of `time.monotonic`, which may be over; infinite for none."""
        priority = checked_priority(priority)

        def begin(pipeline: Pipeline, given: Mapping[str, Any]) -> Future[Any]:
            assert isinstance(pipeline, SharedPipeline)
            return pipeline.submit(given, deadline_s, priority)

        return self._submitted(x, begin)

    def _piped(self, executor: Executor) -> Pipeline:
        if self._pipeline is None:
            lanes = [self._buffers(executor.places) for _ in range(self._in_flight)]
            self._pipeline = SharedPipeline(
                self.plan,
                executor.places,
                lanes,
                self._code,
                self._shared,
                self._client,
                self._weight,
                self._time_limit,
                self.bundle.manifest.named,
            )
        return self._pipeline


class Scheduler:
    """Runs several bundles on the same processors.

    Each has inferences in flight, and their subgraphs take turns on every processor: first those with the earliest deadline,
    then those of the highest priority, then those of the bundle that was given least of the processor. A subgraph that runs
    is not interrupted; between two of one inference, others may come first. Safe to call from several threads.

    ::

        with Scheduler({"detect": "runs/a", "embed": "runs/b"}) as scheduler:
            y = scheduler.submit(x, "detect", deadline_ms=50).result()

    Args:
        bundles: Bundles or their folders, by the names of their models; or without names, which are those of their folders then.
        mapping: Where processors run here, as of `Session`; each bundle takes what it has of them.
        weights: By name, with twice the weight of another a bundle is given twice as much of a processor that both want; 1 if
            not named.
        patience_ms: How long an inference without a deadline waits, at most, before it is the most urgent of all.
        in_flight: Inferences of each bundle at once, each with buffers of its own.
        delegates: As of `Session`.
        time_limit: As of `Session`; what hangs ends the inferences of its bundle, and no other's.
        faults: As of `Session`; each bundle has decisions of its own.

    Raises:
        UsageError: If there is no bundle, two have one name, or a number makes no sense.
        UnknownNameError: If a weight is of none of them.
        StretchError: As of `Session`.
    """

    def __init__(
        self,
        bundles: Mapping[str, Bundle | Path | str] | Sequence[Bundle | Path | str],
        mapping: Mapping[str, str] | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        patience_ms: float = PATIENCE_MS,
        in_flight: int = 2,
        delegates: Mapping[str, Delegate] | None = None,
        time_limit: float = TIME_LIMIT_S,
        faults: FaultPolicy | None = None,
    ) -> None:
        loaded = _named(bundles)
        for name in weights or {}:
            if name not in loaded:
                raise UnknownNameError.among("model", name, list(loaded))
        processors = {name: list(dict.fromkeys(entry.processor for entry in each.manifest.subgraphs)) for name, each in loaded.items()}
        for name in mapping or {}:
            if not any(name in own for own in processors.values()):
                used = dict.fromkeys(each for own in processors.values() for each in own)
                raise UsageError(f"processor `{name}` is mapped, but no bundle uses it", f"the bundles use {', '.join(used)}")
        wanted = _mapping(loaded.values(), mapping or {})
        self._shared = SharedQueues(patience_ms)
        # a scheduler that was never closed must not leave its threads behind
        weakref.finalize(self, SharedQueues.dismiss, self._shared)
        self._sessions: dict[str, SharedSession] = {}
        try:
            for name, bundle in loaded.items():
                own = {key: target for key, target in wanted.items() if key in processors[name]}
                options = {"mapping": own, "in_flight": in_flight, "delegates": delegates, "time_limit": time_limit, "faults": faults}
                self._sessions[name] = SharedSession(self._shared, name, (weights or {}).get(name, 1.0), bundle, **options)
                self._sessions[name].ready()
        except BaseException:
            self.close()
            raise

    def submit(self, x: Any, model: str | None = None, *, deadline_ms: float | None = None, priority: int = 0) -> Future[Any]:
        """Start an inference beside those in flight.

        Waits while as many of its bundle as may be are in flight.

        Args:
            x: As for `Session.submit`; it is copied before this returns.
            model: Name of its bundle; may be left out where there is one.
            deadline_ms: How long it may take from now on; one that takes longer is computed all the same. None: any time.
            priority: From -100 to 100; counts among inferences with the same deadline or with none.

        Returns:
            Its output, or the error that `Session.run` would raise.

        Raises:
            UnknownNameError: If there is no such model.
            UsageError: If an input, the deadline or the priority makes no sense, or no model is named of several.
            StretchError: If the scheduler is closed.
        """
        return self.sessions[self._model(model)].submit(x, deadline_ms=deadline_ms, priority=priority)

    def run(self, x: Any, model: str | None = None) -> Any:
        """Run one inference; see `submit`."""
        return self.submit(x, model).result()

    @property
    def sessions(self) -> Mapping[str, SharedSession]:
        """The session of each bundle, by name."""
        return MappingProxyType(self._sessions)

    @property
    def events(self) -> tuple[tuple[Event, tuple[Instruction, ...]], ...]:
        """What the state machine was told last, and what it answered: told the same from the beginning, it answers the same."""
        with self._shared.changed:
            return tuple(self._shared.events)

    def close(self) -> None:
        """End after what is in flight; may be called twice. What hangs is not waited for."""
        for session in self._sessions.values():
            session.close()
        self._shared.close()

    def __enter__(self) -> Self:
        """The scheduler itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it; after Ctrl-C without waiting for what is in flight."""
        for session in self._sessions.values():
            session.__exit__(kind, error, traceback)
        self._shared.close(wait=kind is not KeyboardInterrupt)

    def _model(self, name: str | None) -> str:
        if name is None:
            if len(self._sessions) > 1:
                raise UsageError("this scheduler has several models", f"name one of {', '.join(self._sessions)}")
            return next(iter(self._sessions))
        if name not in self._sessions:
            raise UnknownNameError.among("model", name, list(self._sessions))
        return name


def _named(bundles: Mapping[str, Bundle | Path | str] | Sequence[Bundle | Path | str]) -> dict[str, Bundle]:
    """The bundles, read, by name."""
    if not bundles:
        raise UsageError("a scheduler of no bundle has nothing to do", "give some")
    if isinstance(bundles, str | Path | Bundle):
        bundles = [bundles]
    pairs = bundles.items() if isinstance(bundles, Mapping) else [("", each) for each in bundles]
    found: dict[str, Bundle] = {}
    for given, each in pairs:
        bundle = each if isinstance(each, Bundle) else load_bundle(each)
        name = given or bundle.path.resolve().name
        if name in found:
            raise UsageError(f"two bundles would be called `{name}`", 'give them names, as {"a": FOLDER, "b": FOLDER}')
        found[name] = bundle
    return found


def _mapping(bundles: Collection[Bundle], mapping: Mapping[str, str]) -> dict[str, str]:
    """Cores for each processor, the same for every bundle, where it runs on some."""
    manifests = [bundle.manifest for bundle in bundles]
    precisions: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, some in bundle_precisions(manifest).items():
            precisions.setdefault(name, set()).update(some)
    placed = place_processors(list(precisions), mapping, precisions=precisions)
    return {name: f"{place.delegate}{'+'.join(map(str, place.cores))}" for name, place in placed.items() if place.cores} | dict(mapping)
