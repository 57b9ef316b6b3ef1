"""What users hold: a bundle made ready to run on this machine."""

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
from scheduler.faults.policy import Decision, Ended, Failed, FaultPolicy, Keeper, Returned, Site
from scheduler.memory import planners
from scheduler.placement.mapping import Priority, bundle_precisions, choose_processors, mapping_of_used, place_processors, target_placement
from scheduler.placement.place import Placement, place_subgraphs, queues_of
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.executor import Executor, Tenant
from scheduler.runtime.inputs import as_arrays, check_inputs, plain
from scheduler.runtime.plan import make_plan
from scheduler.runtime.record import Recorder
from scheduler.runtime.threads import TIME_LIMIT_S, HangError, hang_reason
from scheduler.runtime.trace import QueueDepth, Trace


def again_after_a_hang(future: Future[Any], run: Callable[[], Any]) -> Future[Any]:
    """A future that has the result of another one, or where that hung, of a second try."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()

    def take(work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:  # it belongs to whoever waits
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    # the first future may be kept by a thread that hangs: once it is done it must not keep what the second try needs
    again = [run]

    def ended(first: Future[Any]) -> None:
        work = again.pop()
        if isinstance(first.exception(), HangError):
            # not here: this is a thread of what hangs
            threading.Thread(target=take, args=(work,), name="nn-stretch second try", daemon=True).start()
        else:
            take(first.result)

    future.add_done_callback(ended)
    return outcome


class Recovery:
    """Where a session's subgraphs belong, and how they get there: carries out what was decided of sites whose delegates failed.

    Args:
        home: Where each subgraph runs if nothing is wrong.
    """

    def __init__(self, home: Mapping[str, Placement], keeper: Keeper, code: CompiledSubgraphs) -> None:
        self.home = dict(home)
        self.keeper = keeper
        self._code = code

    def carry_out(self, runner: Executor) -> None:
        """Do what was decided since the last time, while nothing runs."""
        # of a site that was retired and is on trial by now, the last word counts
        for decision in {action.site: action for action in self.keeper.take()}.values():
            if decision.what == "retired":
                self._leave(decision.site, decision.reason, runner)
            elif decision.what == "on trial":
                self._come_back(decision.site, runner)

    def without(self, site: Site, reason: str, places: Mapping[str, Placement]) -> dict[str, Placement]:
        """Where each subgraph runs when a site is left."""
        remaining = dict(places)
        for name, place in places.items():
            if Site.of(place) == site:
                remaining[name] = self._code.stand_in(name, place, StretchError(reason), queues_of(remaining.values()))
        return remaining

    def _leave(self, site: Site, reason: str, runner: Executor) -> None:
        """Nothing is given to a site any more; what nothing else can run stays, and says so when it runs."""
        for name, place in list(runner.places.items()):
            if Site.of(place) == site:
                with suppress(StretchError):
                    runner.replace(name, self._code.stand_in(name, place, StretchError(reason), queues_of(runner.places.values())))

    def _come_back(self, site: Site, runner: Executor) -> None:
        """A site is made anew, and does its own work again; where it cannot even compile it, it has failed again."""
        runner.forget(site)
        self._code.forget(site)
        for name, place in self.home.items():
            if Site.of(place) != site:
                continue
            try:
                runner.replace(name, place)
            except StretchError as error:
                self.keeper.tell(Failed(Site.of(place), name, error.message))
                return
        self.keeper.tell(Returned(site))


class Session:
    """Runs a bundle; a context manager, safe to call from several threads.

    A call runs one inference at a time, as fast as it goes; `submit` keeps
    several in flight, as many a second as it goes.

    ::

        with Session("runs/resnet50_pixel6", mapping={"gpu": "cpu1"}) as session:
            y = session(x)
            futures = [session.submit(x) for x in images]
            results = [future.result() for future in futures]

    Args:
        bundle: A bundle or its folder.
        mapping: Where processors of the device run here, such as
            ``{"gpu": "cpu1"}``; see `scheduler.placement.mapping.place_processors`.
        processors: Processors that may be used; None for all.
        delegates: Delegate objects to use instead of ones made by name.
        priority: ``latency`` or ``energy``, which then decides the processor of a
            subgraph; None for the design alone (see `scheduler.placement.mapping.choose_processors`).
        in_flight: Inferences that `submit` runs at once, each with buffers of its own.
        time_limit: Seconds that one call of a delegate may take. A run that takes longer ends with a `StretchError`, and the session too.
        memory_planner: Gives the tensors that cross subgraphs their memory, such as ``greedy``;
            ``naive`` shares none.
        faults: What is done about delegates that fail (`scheduler.faults.policy`): others do their work
            within the same inference. None: the inference fails with an error that names the delegate.
        record: File to write every event of the state machine to, with its answer
            (`scheduler.runtime.record.replay` plays it again).

    Raises:
        UsageError: If `in_flight` is less than 1, or `time_limit` is not a number above 0.
        UnknownNameError: If there is no such memory planner.
        StretchError: If the bundle is damaged or a subgraph cannot be compiled.
        MissingBackendError: If a delegate's library is missing.
    """

    #: Among whose inferences submitted ones run.
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
        wanted = mapping_of_used(mapping or {}, self.bundle.manifest, used, processors)
        #: Where each processor of the device runs here; single subgraphs may run elsewhere (`places`).
        self.placements = place_processors(
            used, wanted, precisions=bundle_precisions(manifest), little_cores=manifest.little_cores, planned=manifest.delegates
        )
        self.plan = make_plan(manifest)
        #: Subgraphs that do not run on the processor of the design, and where they run instead.
        self.moved = {
            now.name: now.processor
            for now, before in zip(manifest.subgraphs, self.bundle.manifest.subgraphs, strict=True)
            if now.processor != before.processor
        }
        self._planner = planners.get(memory_planner)
        self._lock = threading.Lock()
        self._trace: Trace | None = None
        self._in_flight = in_flight
        self._time_limit = time_limit
        self._executor: Executor | None = None
        self._recorder = None if record is None else Recorder(Path(record))
        self._keeper = None if faults is None else Keeper(faults)
        self._code = CompiledSubgraphs(self.bundle, delegates, self._keeper)
        self._recovery: Recovery | None = None
        try:
            places = place_subgraphs(manifest.subgraphs, self.placements)
            if self._keeper is not None:
                self._recovery = Recovery(places, self._keeper, self._code)
            self._executor = self._made(dict(places))
            if self._tenant is not None:
                self._executor.ready()
        except BaseException:
            self._let_go()
            raise

    def _made(self, places: dict[str, Placement]) -> Executor:
        """The executor, with each subgraph compiled for where it can run."""
        for name, place in places.items():
            places[name] = self._code.ready(name, place, queues_of(places.values()))
        manifest, allocate = self.bundle.manifest, self._code.allocator(places.values())
        plan, planner = self.plan, self._planner  # the executor is part of cycles, so nothing of it may hold this session and its bundle
        return Executor(
            self.plan,
            places,
            lambda: Buffers(plan, manifest.tensors, planner, allocate),
            self._code,
            self._time_limit,
            self._recorder,
            in_flight=self._in_flight,
            named=manifest.named,
            tenant=self._tenant,
        )

    def __call__(self, x: Any) -> Any:
        """Run once; see `run`."""
        return self.run(x)

    def run(self, x: Any) -> Any:
        """Run one inference, after those in flight.

        Args:
            x: Input of the bundle's input shape and type: a numpy array, or a
                CPU tensor of another library (DLPack); where the model has
                several inputs, a mapping from their names to them.

        Returns:
            The output, an array of its own; where the model has several, a
            dictionary of them by name.

        Raises:
            UsageError: If an input is missing, has another shape or type or is not finite.
            StretchError: If a delegate fails, or the session is closed.
        """
        return plain(self._run(x, None))

    def tensors(self, x: Any) -> dict[str, Array]:
        """Run one inference, and look at it.

        Args:
            x: As for `run`.

        Returns:
            A copy of every tensor that crosses subgraphs, inputs and outputs included, by name: what a branch wrote, or a join.

        Raises:
            StretchError: As `run`.
        """
        kept: dict[str, Array] = {}
        self._run(x, kept)
        return kept

    def _run(self, x: Any, keep: dict[str, Array] | None) -> dict[str, Array]:
        arguments = as_arrays(x, self.plan.inputs)
        self._refuse_callbacks()
        with self._lock:
            executor = self._idle()
            arrays = executor.buffers.arrays
            check_inputs(arguments, arrays)
            while True:
                for name, value in arguments.items():
                    np.copyto(arrays[name], value)
                try:
                    self._trace = executor.run(keep)
                    break
                except HangError as error:
                    executor = self._left_behind(error)
                    arrays = executor.buffers.arrays
                finally:
                    if self._keeper is not None:
                        self._keeper.tell(Ended())
            return self.bundle.manifest.named({name: arrays[name].copy() for name in self.plan.outputs})

    def submit(self, x: Any) -> Future[Any]:
        """Start one inference in addition to those in flight, which share the processors with it.

        Waits while `in_flight` of them have not ended, so that a caller cannot
        run ahead of the processors. The input is copied before this returns.

        Args:
            x: As for `run`.

        Returns:
            Its output, or the error that `run` would raise, when it has ended. It cannot be cancelled: what was submitted runs.

        Raises:
            UsageError: If an input is missing, has another shape or type or is not finite, or in a callback of such a future.
            StretchError: If the session is closed, or memory is short.
        """
        return self._submitted(x)

    def _submitted(self, x: Any, deadline_s: float = math.inf, priority: int = 0) -> Future[Any]:
        """`submit`; deadlines and priorities count where others share the processors."""
        arrays = as_arrays(x, self.plan.inputs)
        self._refuse_callbacks()
        with self._lock:
            executor = self._recovered(self._open())
            check_inputs(arrays, executor.buffers.arrays)
            # Under the lock: `run` must not meet it in a subgraph that only one of them may use.
            if self._recovery is None:
                return executor.submit(arrays, deadline_s, priority)
            kept = {name: value.copy() for name, value in arrays.items()}
            while True:
                try:
                    return again_after_a_hang(executor.submit(arrays, deadline_s, priority), lambda: self.run(kept))
                except HangError as error:  # of another inference, which this one waited for
                    executor = self._left_behind(error)

    def replace(self, subgraph: str, target: str) -> None:
        """Run a subgraph elsewhere from now on; of inferences in flight, those that have not started it go along.

        Args:
            subgraph: Its name.
            target: Where, as in a mapping: a delegate and its cores, such as ``cpu1``.

        Raises:
            UnknownNameError: If there is no such subgraph or delegate.
            UsageError: If the target is not on this machine.
            StretchError: If the subgraph cannot be compiled for it, or the session is closed.
        """
        if subgraph not in self.plan.subgraphs:
            raise UnknownNameError.among("subgraph", subgraph, list(self.plan.subgraphs))
        with self._lock:
            executor = self._open()
            place = target_placement(self.plan.subgraphs[subgraph].processor, target, queues_of(executor.places.values()))
            executor.replace(subgraph, place)
            if self._recovery is not None:
                self._recovery.home[subgraph] = place

    def time_alone(self, subgraph: str) -> float:
        """Milliseconds of one subgraph where it is placed, every other processor idle."""
        with self._lock:
            return self._idle().run_alone(subgraph).ms

    @property
    def places(self) -> Mapping[str, Placement]:
        """Where each subgraph runs now: where its processor does, unless it was placed elsewhere since, with the reason."""
        return dict(self._open().places)

    @property
    def replaced(self) -> Mapping[str, Placement]:
        """Subgraphs that run elsewhere than their processor is placed, and where: its delegate could not run them, or `replace` was called."""
        return {name: place for name, place in self.places.items() if place != self.placements[self.plan.subgraphs[name].processor]}

    @property
    def in_flight(self) -> int:
        """Inferences that `submit` runs at once."""
        return self._in_flight

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return the decisions about failed delegates, in order, each with its reason; empty without `faults`."""
        return () if self._keeper is None else self._keeper.decisions

    @property
    def trace(self) -> Trace:
        """Return the spans of the last inference: place, start and end.

        Raises:
            StretchError: If there was none yet.
        """
        if self._trace is None:
            raise StretchError("this session has not run yet, so it has no trace")
        return self._trace

    @property
    def submitted_traces(self) -> tuple[Trace, ...]:
        """The submitted inferences that ended last, oldest first."""
        return () if self._executor is None else self._executor.traces()

    @property
    def queue_depths(self) -> tuple[QueueDepth, ...]:
        """How many subgraphs of submitted inferences waited for each queue, over time."""
        return () if self._executor is None else self._executor.depths()

    @property
    def computes(self) -> bool:
        """Whether the output is the model's: a `null` delegate leaves its part out."""
        return self._code.computes

    @property
    def buffer_bytes(self) -> int:
        """Memory of the tensors that cross subgraphs, of all inferences in flight."""
        return self._open().bytes

    def close(self) -> None:
        """End the session's threads, after what is in flight, and its processes, and let go of its memory; may be called twice.

        What hangs is not waited for.
        """
        self._shut(wait=True)

    def _shut(self, *, wait: bool) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.close(wait=wait)
        self._let_go()

    def _let_go(self) -> None:
        """End what was made here to run subgraphs, and the record."""
        self._code.close()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it; after Ctrl-C without waiting for what is in flight."""
        self._shut(wait=kind is not KeyboardInterrupt)

    def _open(self) -> Executor:
        if self._executor is None:
            raise StretchError("this session is closed", "make a new Session")
        return self._executor

    def _refuse_callbacks(self) -> None:
        """A callback of a future runs on a thread that inferences in flight need: it must not wait for them."""
        if self._executor is not None and self._executor.owns_calling_thread:
            raise UsageError("a callback of a future cannot start another inference", "start it from the thread that waits for results")

    def _idle(self) -> Executor:
        """The executor, once no submitted inference uses the compiled subgraphs; the lock keeps new ones out."""
        return self._drained(self._recovered(self._open()))

    def _drained(self, executor: Executor) -> Executor:
        """The executor when no submitted inference runs; a new one where one of them hangs."""
        try:
            executor.drain()
        except HangError as error:
            return self._left_behind(error)
        return executor

    def _recovered(self, executor: Executor) -> Executor:
        """The executor, with what was decided of delegates that failed carried out; it may be a new one."""
        if self._recovery is None:
            return executor
        if executor.hang is not None:
            executor = self._left_behind(executor.hang)
        if not self._recovery.keeper.pending:
            return executor
        executor = self._drained(executor)
        self._recovery.carry_out(executor)
        return executor

    def _left_behind(self, hang: HangError) -> Executor:
        """A new executor with memory of its own, which gives nothing to what hangs; that may still write to the old memory."""
        if self._recovery is None:
            raise hang
        executor = self._open()
        self._recovery.keeper.tell(Failed(Site.of(hang.place), hang.subgraph, hang_reason(hang.limit_s), for_good=True))
        site = Site.of(hang.place)
        places = self._recovery.without(site, hang.message, executor.places)
        self._recovery.home = {name: places[name] if Site.of(home) == site else home for name, home in self._recovery.home.items()}
        self._executor = self._made(places)
        executor.close(wait=False)
        return self._executor
