"""What users hold: a bundle made ready to run on this machine."""

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.bundle.manifest import Manifest
from scheduler.delegates import Compiled, Delegate, get_delegate, origin
from scheduler.delegates.base import Array
from scheduler.placement.choice import Priority, choose_processors
from scheduler.placement.cores import pinned
from scheduler.placement.mapping import bundle_precisions, place_processors
from scheduler.runtime.executor import Executor
from scheduler.runtime.failures import delegate_failure
from scheduler.runtime.inputs import as_array, check_input
from scheduler.runtime.pipeline import Pipeline
from scheduler.runtime.plan import make_plan
from scheduler.runtime.trace import QueueDepth, Trace
from scheduler.runtime.watch import TIME_LIMIT_S


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
            subgraph; None for the design alone (see `scheduler.placement.choice.choose_processors`).
        in_flight: Inferences that `submit` runs at once, each with buffers of its own.
        time_limit: Seconds that one call of a delegate may take. A run whose delegate takes
            longer ends with a `StretchError`, and the session with it.

    Raises:
        UsageError: If `in_flight` is less than 1, or `time_limit` is not a number above 0.
        StretchError: If the bundle is damaged or a subgraph cannot be compiled.
        MissingBackendError: If a delegate's library is missing.
    """

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
    ) -> None:
        if not 0 < time_limit < math.inf:
            raise UsageError(f"a time limit of {time_limit:g} s is none", "time_limit is a number of seconds above 0")
        if in_flight < 1:
            raise UsageError(f"a session cannot keep {in_flight} inferences in flight", "in_flight is 1 or more")
        self.bundle = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
        manifest = choose_processors(self.bundle.manifest, processors, priority)
        used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
        wanted = _wanted(mapping or {}, self.bundle.manifest, used, processors)
        self.placements = place_processors(used, wanted, precisions=bundle_precisions(manifest), little_cores=manifest.little_cores)
        self.plan = make_plan(manifest, self.placements)
        made: dict[tuple[str, tuple[int, ...]], Delegate] = {}
        compiled: dict[str, Compiled] = {}
        #: Delegates that end with the session: those that it made.
        self._own: list[Delegate] = []
        try:
            for name, subgraph in self.plan.subgraphs.items():
                place = subgraph.placement
                key = (place.delegate, place.cores)
                if key not in made:
                    given = (delegates or {}).get(place.delegate)
                    made[key] = given or _create(place.delegate, place.cores)
                    if given is None:
                        self._own.append(made[key])
                # Helper threads of a backend inherit the affinity of the thread that compiles.
                with pinned(place.cores), _named(self.bundle):
                    compiled[name] = _compile(made[key], self.bundle, name, place.delegate)
        except BaseException:
            self._close_own()
            raise
        #: Subgraphs that do not run on the processor of the design, and where they run instead.
        self.moved = {
            now.name: now.processor
            for now, before in zip(manifest.subgraphs, self.bundle.manifest.subgraphs, strict=True)
            if now.processor != before.processor
        }
        self._computes = all(delegate.computes for delegate in made.values())
        self._lock = threading.Lock()
        self._trace: Trace | None = None
        self._compiled = compiled
        self._reentrant = {place: delegate.reentrant for (place, _), delegate in made.items()}
        self._in_flight = in_flight
        self._time_limit = time_limit
        self._pipeline: Pipeline | None = None
        self._executor: Executor | None = Executor(self.plan, manifest.tensors, compiled, time_limit)

    def __call__(self, x: Any) -> Array:
        """Run once; see `run`."""
        return self.run(x)

    def run(self, x: Any) -> Array:
        """Run one inference, after those in flight.

        Args:
            x: Input of the bundle's input shape and type: a numpy array, or a
                CPU tensor of another library (DLPack).

        Returns:
            The output, an array of its own.

        Raises:
            UsageError: If the input has another shape or type or is not finite.
            StretchError: If a delegate fails, or the session is closed.
        """
        x = as_array(x)
        self._refuse_callbacks()
        with self._lock:
            executor = self._idle()
            arrays = executor.buffers.arrays
            source = arrays[self.plan.input]
            check_input(x, source)
            np.copyto(source, x)
            self._trace = executor.run()
            return arrays[self.plan.output].copy()

    def submit(self, x: Any) -> Future[Array]:
        """Start one inference beside those in flight, which share the processors with it.

        Waits while `in_flight` of them have not ended, so that a caller cannot
        run ahead of the processors. The input is copied before this returns.

        Args:
            x: As for `run`.

        Returns:
            Its output, or the error that `run` would raise, when it has ended.
            An inference that was submitted runs: its future cannot be cancelled.

        Raises:
            UsageError: If the input has another shape or type or is not finite,
                or if it is called from a callback of such a future.
            StretchError: If the session is closed, or memory is short.
        """
        x = as_array(x)
        self._refuse_callbacks()
        with self._lock:
            executor = self._open()
            check_input(x, executor.buffers.arrays[self.plan.input])
            if self._pipeline is None:
                self._pipeline = Pipeline(
                    self.plan, self.bundle.manifest.tensors, self._compiled, self._in_flight, self._reentrant.__getitem__, self._time_limit
                )
                # A session that was never closed must not leave its threads behind.
                weakref.finalize(self, Pipeline.stop, self._pipeline)
            # Under the lock: `run` must not meet it in a subgraph that only one of them may use.
            return self._pipeline.submit(x)

    def tensor(self, name: str) -> Array:
        """A copy of a tensor that crosses subgraphs, as the last `run` left it: what a branch wrote, or a join.

        Raises:
            UnknownNameError: If the bundle has no such tensor.
        """
        with self._lock:
            arrays = self._open().buffers.arrays
            if name not in arrays:
                raise UnknownNameError.among("tensor", name, list(arrays))
            return arrays[name].copy()

    def time_alone(self, subgraph: str) -> float:
        """Milliseconds of one subgraph where it is placed, every other processor idle."""
        with self._lock:
            return self._idle().run_alone(subgraph).ms

    @property
    def trace(self) -> Trace:
        """What ran where and when in the last inference.

        Raises:
            StretchError: If there was none yet.
        """
        if self._trace is None:
            raise StretchError("this session has not run yet, so it has no trace")
        return self._trace

    @property
    def submitted_traces(self) -> tuple[Trace, ...]:
        """The submitted inferences that ended last, oldest first."""
        return self._pipeline.traces() if self._pipeline is not None else ()

    @property
    def queue_depths(self) -> tuple[QueueDepth, ...]:
        """How many subgraphs of submitted inferences waited for each queue, over time."""
        return self._pipeline.depths() if self._pipeline is not None else ()

    @property
    def computes(self) -> bool:
        """Whether the output is the model's: a `null` delegate leaves its part out."""
        return self._computes

    @property
    def buffer_bytes(self) -> int:
        """Memory of the tensors that cross subgraphs, of all inferences in flight."""
        return self._open().buffers.bytes + (self._pipeline.bytes if self._pipeline is not None else 0)

    def close(self) -> None:
        """End the session's threads, after what is in flight, and its processes, and let go of its memory; may be called twice.

        What hangs is not waited for.
        """
        self._shut(wait=True)

    def _shut(self, *, wait: bool) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
            pipeline, self._pipeline = self._pipeline, None
            self._compiled = {}
        if pipeline is not None:
            pipeline.close(wait=wait)
        if executor is not None:
            executor.close()
        self._close_own()

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it; after Ctrl-C without waiting for what is in flight."""
        self._shut(wait=kind is not KeyboardInterrupt)

    def _close_own(self) -> None:
        own, self._own = self._own, []
        for delegate in own:
            delegate.close()

    def _open(self) -> Executor:
        if self._executor is None:
            raise StretchError("this session is closed", "make a new Session")
        return self._executor

    def _refuse_callbacks(self) -> None:
        """A callback of a future runs on a thread that inferences in flight need: it must not wait for them."""
        if self._pipeline is not None and self._pipeline.owns_calling_thread:
            raise UsageError("a callback of a future cannot start another inference", "start it from the thread that waits for results")

    def _idle(self) -> Executor:
        """The executor, once no submitted inference uses the compiled subgraphs; the lock keeps new ones out."""
        executor = self._open()
        if self._pipeline is not None:
            self._pipeline.drain()
        return executor


@contextlib.contextmanager
def _named(bundle: Bundle) -> Iterator[None]:
    """Let failures name the bundle's folder, not the descriptor that its files are opened through."""
    try:
        yield
    except StretchError as error:
        error.message = bundle.named(error.message)
        error.args = (error.message,)
        raise


def _create(name: str, cores: tuple[int, ...]) -> Delegate:
    """A delegate made by its name.

    Raises:
        StretchError: If a plug-in breaks off; names it and its package.
    """
    try:
        return get_delegate(name).create(cores)
    except Exception as error:
        if isinstance(error, StretchError) or origin(name) is None:
            raise
        raise delegate_failure(name, "start", error) from error


def _compile(delegate: Delegate, bundle: Bundle, subgraph: str, name: str) -> Compiled:
    """A subgraph made ready.

    Raises:
        StretchError: If the delegate refuses it, or a plug-in breaks off.
    """
    try:
        found = delegate.compile_from(bundle, subgraph)
    except Exception as error:
        if isinstance(error, StretchError) or origin(name) is None:
            raise
        raise delegate_failure(name, f"compile `{subgraph}`", error) from error
    if not isinstance(found, Compiled):
        raise delegate_failure(name, f"compile `{subgraph}`", TypeError(f"it returned {type(found).__name__}, not Compiled"))
    return found


def _wanted(mapping: Mapping[str, str], manifest: Manifest, used: Sequence[str], processors: Sequence[str] | None) -> dict[str, str]:
    """The mapping without processors that lost all their work to others.

    Raises:
        UsageError: If one was left out by the same caller who mapped it.
    """
    designed = {entry.processor for entry in manifest.subgraphs}
    idle = [name for name in mapping if name in designed and name not in used]
    for name in idle:
        if processors and name not in processors:
            raise UsageError(f"processor `{name}` is mapped, but --processors leaves it out")
    return {name: target for name, target in mapping.items() if name not in idle}
