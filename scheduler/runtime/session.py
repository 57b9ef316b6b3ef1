"""A bundle ready to run on this machine."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.delegates import Delegate
from scheduler.delegates.base import Array
from scheduler.faults.policy import FaultDecision, FaultPolicy, FaultTracker, InferenceEnded, Site, SiteFailed, SiteReturned
from scheduler.memory import planners
from scheduler.placement.mapping import Priority, bundle_precisions, choose_processors, mapping_of_used, place_processors, target_placement
from scheduler.placement.place import Placement, place_subgraphs, queues_of
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.executor import Executor, Tenant
from scheduler.runtime.failures import HangError, hang_reason
from scheduler.runtime.inputs import as_arrays, check_inputs, unwrap_single
from scheduler.runtime.plan import make_plan
from scheduler.runtime.record import Recorder
from scheduler.runtime.trace import QueueDepth, Trace
from scheduler.runtime.watchdog import TIME_LIMIT_S


def retry_after_hang(future: Future[Any], run: Callable[[], Any]) -> Future[Any]:
    """Return a future with the result of `future` or, if that hung, of a second run."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()

    def set_outcome(work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:  # the waiting caller gets the error
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    # a hanging thread may keep the first future, which must not keep the objects of the second run alive
    pending_run = [run]

    def on_done(first: Future[Any]) -> None:
        work = pending_run.pop()
        if isinstance(first.exception(), HangError):
            # not on this thread, which belongs to the delegate that hangs
            threading.Thread(target=set_outcome, args=(work,), name="nn-stretch second try", daemon=True).start()
        else:
            set_outcome(first.result)

    future.add_done_callback(on_done)
    return outcome


class Recovery:
    """Moves a session's subgraphs when delegates fail and recover: applies decisions about sites.

    Args:
        normal_placements: Placement of each subgraph without faults.
    """

    def __init__(self, normal_placements: Mapping[str, Placement], fault_tracker: FaultTracker, code: CompiledSubgraphs) -> None:
        self.normal_placements = dict(normal_placements)
        self.fault_tracker = fault_tracker
        self._code = code

    def apply_decisions(self, runner: Executor) -> None:
        """Apply the decisions since the last call, while nothing runs."""
        # for a site that was retired and is now on trial, the last decision counts
        for decision in {action.site: action for action in self.fault_tracker.take_decisions()}.values():
            if decision.what == "retired":
                self._retire(decision.site, decision.reason, runner)
            elif decision.what == "on trial":
                self._restore(decision.site, runner)

    def placements_without(self, site: Site, reason: str, placements: Mapping[str, Placement]) -> dict[str, Placement]:
        """Return placements of all subgraphs that avoid a site."""
        remaining = dict(placements)
        for name, place in placements.items():
            if Site.of(place) == site:
                remaining[name] = self._code.compile_stand_in(name, place, StretchError(reason), queues_of(remaining.values()))
        return remaining

    def _retire(self, site: Site, reason: str, runner: Executor) -> None:
        """Move subgraphs away from a site; subgraphs that no other delegate can run stay, and fail when they run."""
        for name, place in list(runner.placements.items()):
            if Site.of(place) == site:
                with suppress(StretchError):
                    runner.replace(
                        name, self._code.compile_stand_in(name, place, StretchError(reason), queues_of(runner.placements.values()))
                    )

    def _restore(self, site: Site, runner: Executor) -> None:
        """Create a site again and move its subgraphs back; if one does not compile, the site has failed again."""
        runner.drop_site(site)
        self._code.drop_site(site)
        for name, place in self.normal_placements.items():
            if Site.of(place) != site:
                continue
            try:
                runner.replace(name, place)
            except StretchError as error:
                self.fault_tracker.handle(SiteFailed(Site.of(place), name, error.message))
                return
        self.fault_tracker.handle(SiteReturned(site))


class Session:
    """Runs a bundle; a context manager, safe to call from several threads.

    A call runs one inference with the lowest latency; `submit` keeps several
    in flight for the highest throughput.

    ::

        with Session("runs/resnet50_pixel6", mapping={"gpu": "cpu1"}) as session:
            y = session(x)
            futures = [session.submit(x) for x in images]
            results = [future.result() for future in futures]

    Args:
        bundle: A bundle or its folder.
        mapping: Placement of the device's processors on this machine, such as
            ``{"gpu": "cpu1"}``; see `scheduler.placement.mapping.place_processors`.
        processors: Processors that may be used; None for all.
        delegates: Delegate objects by name, used instead of new ones.
        priority: ``latency`` or ``energy``, which decides the processor of a
            subgraph; None for the design alone (see `scheduler.placement.mapping.choose_processors`).
        in_flight: Number of inferences that `submit` runs at once, each with separate buffers.
        time_limit: Seconds that one call of a delegate may take. A run that takes longer ends with a `StretchError` and ends the session.
        memory_planner: Planner of the memory for tensors between subgraphs, such as ``greedy``;
            with ``naive`` tensors share no memory.
        faults: Reaction to delegates that fail (`scheduler.faults.policy`): other delegates do their work
            within the same inference. None: the inference fails with an error that names the delegate.
        record: File for every event of the state machine, with its answer
            (`scheduler.runtime.record.replay` replays it).

    Raises:
        UsageError: If `in_flight` is less than 1, or `time_limit` is not a number above 0.
        UnknownNameError: If there is no such memory planner.
        StretchError: If the bundle is damaged or a subgraph cannot be compiled.
        MissingBackendError: If a delegate's library is missing.
    """

    #: Shared driver and client of submitted inferences; None for a driver of this session alone.
    _tenant: Tenant | None = None

    def __init__(
        self,
        bundle: Bundle | Path | str,
        mapping: Mapping[str, str] | None = None,
        *,
        processors: Sequence[str] | None = None,
        delegates: Mapping[str, Delegate] | None = None,
        priority: Priority | None = None,
        in_flight: int = 2,
        time_limit: float = TIME_LIMIT_S,
        memory_planner: str = "offset",
        faults: FaultPolicy | None = None,
        record: Path | str | None = None,
    ) -> None:
        if not 0 < time_limit < math.inf:
            raise UsageError(f"a time limit of {time_limit:g} s is none", "time_limit is a number of seconds above 0")
        if in_flight < 1:
            raise UsageError(f"a session cannot keep {in_flight} inferences in flight", "in_flight is 1 or more")
        self.bundle = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
        manifest = choose_processors(self.bundle.manifest, processors, priority)
        used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
        used_mapping = mapping_of_used(mapping or {}, self.bundle.manifest, used, processors)
        #: Placement of each processor of the device here; single subgraphs may have another one (`subgraph_placements`).
        self.placements = place_processors(
            used, used_mapping, precisions=bundle_precisions(manifest), little_cores=manifest.little_cores, planned=manifest.delegates
        )
        self.plan = make_plan(manifest)
        #: Subgraphs that run on another processor than the design's, with that processor.
        self.moved = {
            chosen.name: chosen.processor
            for chosen, planned in zip(manifest.subgraphs, self.bundle.manifest.subgraphs, strict=True)
            if chosen.processor != planned.processor
        }
        self._planner = planners.get(memory_planner)
        self._lock = threading.Lock()
        self._trace: Trace | None = None
        self._in_flight = in_flight
        self._time_limit = time_limit
        self._executor: Executor | None = None
        self._recorder = None if record is None else Recorder(Path(record))
        self._fault_tracker = None if faults is None else FaultTracker(faults)
        self._code = CompiledSubgraphs(self.bundle, delegates, self._fault_tracker)
        self._recovery: Recovery | None = None
        try:
            placements = place_subgraphs(manifest.subgraphs, self.placements)
            if self._fault_tracker is not None:
                self._recovery = Recovery(placements, self._fault_tracker, self._code)
            self._executor = self._build_executor(dict(placements))
            if self._tenant is not None:
                self._executor.prepare_in_flight()
        except BaseException:
            self._close_resources()
            raise

    def _build_executor(self, placements: dict[str, Placement]) -> Executor:
        """Build the executor, with each subgraph compiled for a placement that can run it."""
        for name, place in placements.items():
            placements[name] = self._code.compile_or_fall_back(name, place, queues_of(placements.values()))
        manifest, allocate = self.bundle.manifest, self._code.allocator(placements.values())
        plan, planner = (
            self.plan,
            self._planner,
        )  # the executor is part of reference cycles, so it must not hold this session and its bundle
        return Executor(
            self.plan,
            placements,
            lambda: Buffers(plan, manifest.tensors, planner, allocate),
            self._code,
            self._time_limit,
            self._recorder,
            in_flight=self._in_flight,
            name_outputs=manifest.name_outputs,
            tenant=self._tenant,
        )

    def __call__(self, x: Any) -> Any:
        """Run one inference; see `run`."""
        return self.run(x)

    def run(self, x: Any) -> Any:
        """Run one inference, after those in flight.

        Args:
            x: Input with the bundle's input shape and type: a numpy array, or a
                CPU tensor of another library (DLPack); for a model with several
                inputs, a mapping from their names to arrays or tensors.

        Returns:
            A new array with the output; for a model with several outputs, a
            dictionary by name.

        Raises:
            UsageError: If an input is missing, has another shape or type or is not finite.
            StretchError: If a delegate fails, or the session is closed.
        """
        return unwrap_single(self._run(x, None))

    def tensors(self, x: Any) -> dict[str, Array]:
        """Run one inference, and return its tensors.

        Args:
            x: As for `run`.

        Returns:
            Copies by name of every tensor between subgraphs, inputs and outputs included, as written by a branch or join.

        Raises:
            StretchError: As `run`.
        """
        tensors: dict[str, Array] = {}
        self._run(x, tensors)
        return tensors

    def _run(self, x: Any, keep: dict[str, Array] | None) -> dict[str, Array]:
        arguments = as_arrays(x, self.plan.inputs)
        self._refuse_callbacks()
        with self._lock:
            executor = self._idle_executor()
            arrays = executor.buffers.arrays
            check_inputs(arguments, arrays)
            while True:
                for name, value in arguments.items():
                    np.copyto(arrays[name], value)
                try:
                    self._trace = executor.run(keep)
                    break
                except HangError as error:
                    executor = self._replace_hung_executor(error)
                    arrays = executor.buffers.arrays
                finally:
                    if self._fault_tracker is not None:
                        self._fault_tracker.handle(InferenceEnded())
            return self.bundle.manifest.name_outputs({name: arrays[name].copy() for name in self.plan.outputs})

    def submit(self, x: Any) -> Future[Any]:
        """Start one inference in addition to those in flight, with which it shares the processors.

        Waits while `in_flight` inferences have not ended, so that a caller cannot
        run ahead of the processors. The input is copied before this method returns.

        Args:
            x: As for `run`.

        Returns:
            Future with the output, or with the error that `run` would raise. It cannot be cancelled: a submitted inference always runs.

        Raises:
            UsageError: If an input is missing, has another shape or type or is not finite, or if called in a callback of such a future.
            StretchError: If the session is closed, or there is too little memory.
        """
        return self._submit(x)

    def _submit(self, x: Any, deadline_s: float = math.inf, priority: int = 0) -> Future[Any]:
        """Start an inference; deadline and priority count if other clients share the processors."""
        arrays = as_arrays(x, self.plan.inputs)
        self._refuse_callbacks()
        with self._lock:
            executor = self._apply_recovery(self._require_open())
            check_inputs(arrays, executor.buffers.arrays)
            # Under the lock: `run` must not use a subgraph at the same time, because some subgraphs allow one call only.
            if self._recovery is None:
                return executor.submit(arrays, deadline_s, priority)
            copies = {name: value.copy() for name, value in arrays.items()}
            while True:
                try:
                    return retry_after_hang(executor.submit(arrays, deadline_s, priority), lambda: self.run(copies))
                except HangError as error:  # of another inference, for which this one waited
                    executor = self._replace_hung_executor(error)

    def replace(self, subgraph: str, target: str) -> None:
        """Run a subgraph at another placement from now on, also for inferences in flight that have not started it.

        Args:
            subgraph: Name of the subgraph.
            target: Delegate and cores as in a mapping, such as ``cpu1``.

        Raises:
            UnknownNameError: If there is no such subgraph or delegate.
            UsageError: If the target does not exist on this machine.
            StretchError: If the subgraph cannot be compiled for it, or the session is closed.
        """
        if subgraph not in self.plan.subgraphs:
            raise UnknownNameError.among("subgraph", subgraph, list(self.plan.subgraphs))
        with self._lock:
            executor = self._require_open()
            place = target_placement(self.plan.subgraphs[subgraph].processor, target, queues_of(executor.placements.values()))
            executor.replace(subgraph, place)
            if self._recovery is not None:
                self._recovery.normal_placements[subgraph] = place

    def time_alone(self, subgraph: str) -> float:
        """Return the time in ms of one subgraph at its placement, while every other processor is idle."""
        with self._lock:
            return self._idle_executor().run_alone(subgraph).ms

    @property
    def subgraph_placements(self) -> Mapping[str, Placement]:
        """Current placement of each subgraph: its processor's, or another one since it was moved, with the reason."""
        return dict(self._require_open().placements)

    @property
    def replaced(self) -> Mapping[str, Placement]:
        """Subgraphs with another placement than their processor's: its delegate could not run them, or `replace` was called."""
        return {
            name: place for name, place in self.subgraph_placements.items() if place != self.placements[self.plan.subgraphs[name].processor]
        }

    @property
    def in_flight(self) -> int:
        """Number of inferences that `submit` runs at once."""
        return self._in_flight

    @property
    def decisions(self) -> tuple[FaultDecision, ...]:
        """Decisions about failed delegates, in order, each with its reason; empty without `faults`."""
        return () if self._fault_tracker is None else self._fault_tracker.decisions

    @property
    def trace(self) -> Trace:
        """Spans of the last inference: placement, start and end.

        Raises:
            StretchError: If no inference has run yet.
        """
        if self._trace is None:
            raise StretchError("this session has not run yet, so it has no trace")
        return self._trace

    @property
    def submitted_traces(self) -> tuple[Trace, ...]:
        """Traces of the latest submitted inferences, oldest first."""
        return () if self._executor is None else self._executor.traces()

    @property
    def queue_depths(self) -> tuple[QueueDepth, ...]:
        """Numbers of subgraphs of submitted inferences that waited for each queue, over time."""
        return () if self._executor is None else self._executor.depths()

    @property
    def computes(self) -> bool:
        """Whether the output is the model's; a `null` delegate computes nothing."""
        return self._code.computes

    @property
    def buffer_bytes(self) -> int:
        """Memory in bytes of the tensors between subgraphs, for all inferences in flight."""
        return self._require_open().bytes

    def close(self) -> None:
        """Wait for the inferences in flight, end threads and processes, and free the memory; may be called twice.

        Hanging calls are abandoned.
        """
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.close(wait=wait)
        self._close_resources()

    def _close_resources(self) -> None:
        """Close compiled subgraphs and the record."""
        self._code.close()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close the session; after Ctrl-C without waiting for inferences in flight."""
        self._close(wait=kind is not KeyboardInterrupt)

    def _require_open(self) -> Executor:
        if self._executor is None:
            raise StretchError("this session is closed", "make a new Session")
        return self._executor

    def _refuse_callbacks(self) -> None:
        """Refuse a call from a future's callback, whose thread is needed by inferences in flight and must not wait for them."""
        if self._executor is not None and self._executor.owns_calling_thread:
            raise UsageError("a callback of a future cannot start another inference", "start it from the thread that waits for results")

    def _idle_executor(self) -> Executor:
        """Return the executor once no submitted inference uses the compiled subgraphs; the lock prevents new ones."""
        return self._drain(self._apply_recovery(self._require_open()))

    def _drain(self, executor: Executor) -> Executor:
        """Wait until no submitted inference runs, and return the executor; a new one if an inference hangs."""
        try:
            executor.drain()
        except HangError as error:
            return self._replace_hung_executor(error)
        return executor

    def _apply_recovery(self, executor: Executor) -> Executor:
        """Apply decisions about failed delegates, and return the executor, which may be a new one."""
        if self._recovery is None:
            return executor
        if executor.hang is not None:
            executor = self._replace_hung_executor(executor.hang)
        if not self._recovery.fault_tracker.pending:
            return executor
        executor = self._drain(executor)
        self._recovery.apply_decisions(executor)
        return executor

    def _replace_hung_executor(self, hang: HangError) -> Executor:
        """Replace the executor with one that has new memory, because a hanging delegate may still write to the old memory."""
        if self._recovery is None:
            raise hang
        executor = self._require_open()
        self._recovery.fault_tracker.handle(SiteFailed(Site.of(hang.placement), hang.subgraph, hang_reason(hang.limit_s), for_good=True))
        site = Site.of(hang.placement)
        placements = self._recovery.placements_without(site, hang.message, executor.placements)
        self._recovery.normal_placements = {
            name: placements[name] if Site.of(placement) == site else placement
            for name, placement in self._recovery.normal_placements.items()
        }
        self._executor = self._build_executor(placements)
        executor.close(wait=False)
        return self._executor
