"""What users hold: a bundle made ready to run on this machine."""

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from predictors.errors import StretchError, UsageError
from scheduler.bundle import Bundle, load_bundle
from scheduler.cores import pinned
from scheduler.delegates import Compiled, Delegate, get_delegate
from scheduler.delegates.base import Array
from scheduler.executor import Executor
from scheduler.mapping import bundle_precisions, place_processors
from scheduler.plan import make_plan
from scheduler.trace import Trace


class Session:
    """Runs a bundle; a context manager, safe to call from several threads, one inference at a time.

    ::

        with Session("runs/resnet50_pixel6", mapping={"gpu": "cpu1"}) as session:
            y = session(x)

    Args:
        bundle: A bundle or its folder.
        mapping: Where processors of the device run here, such as
            ``{"gpu": "cpu1"}``; see `scheduler.mapping.place_processors`.
        processors: Processors that may be used; None for all.
        delegates: Delegate objects to use instead of ones made by name.

    Raises:
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
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else load_bundle(Path(bundle))
        manifest = self.bundle.manifest
        used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
        self.placements = place_processors(used, mapping, processors, precisions=bundle_precisions(manifest))
        self.plan = make_plan(manifest, self.placements)
        made: dict[tuple[str, tuple[int, ...]], Delegate] = {}
        compiled: dict[str, Compiled] = {}
        for name, subgraph in self.plan.subgraphs.items():
            place = subgraph.placement
            key = (place.delegate, place.cores)
            if key not in made:
                given = (delegates or {}).get(place.delegate)
                made[key] = given or get_delegate(place.delegate).create(place.cores)
            # Helper threads of a backend inherit the affinity of the thread that compiles.
            with pinned(place.cores):
                compiled[name] = made[key].compile(self.bundle.file(subgraph.file))
        self._computes = all(delegate.computes for delegate in made.values())
        self._lock = threading.Lock()
        self._trace: Trace | None = None
        self._executor: Executor | None = Executor(self.plan, manifest.tensors, compiled)

    def __call__(self, x: Array) -> Array:
        """Run once; see `run`."""
        return self.run(x)

    def run(self, x: Array) -> Array:
        """Run one inference.

        Args:
            x: Input of the bundle's input shape and type.

        Returns:
            The output, an array of its own.

        Raises:
            UsageError: If the input has another shape or type or is not finite.
            StretchError: If a delegate fails, or the session is closed.
        """
        with self._lock:
            executor = self._open()
            arrays = executor.buffers.arrays
            source = arrays[self.plan.input]
            check_input(x, source)
            np.copyto(source, x)
            self._trace = executor.run()
            return arrays[self.plan.output].copy()

    def time_alone(self, subgraph: str) -> float:
        """Milliseconds of one subgraph where it is placed, every other processor idle."""
        with self._lock:
            return self._open().run_alone(subgraph).ms

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
    def computes(self) -> bool:
        """Whether the output is the model's: a `null` delegate leaves its part out."""
        return self._computes

    @property
    def buffer_bytes(self) -> int:
        """Memory of the tensors that cross subgraphs."""
        return self._open().buffers.bytes

    def close(self) -> None:
        """End the session's threads and let go of its memory; may be called twice."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _open(self) -> Executor:
        if self._executor is None:
            raise StretchError("this session is closed", "make a new Session")
        return self._executor


def check_input(x: Any, like: Array) -> None:
    """Check an input against the array it will be copied to.

    Raises:
        UsageError: If it is no array, or has another shape or type, or is not finite.
    """
    if not isinstance(x, np.ndarray):
        raise UsageError(f"the input is a {type(x).__name__}, the bundle takes a numpy array")
    if x.shape != like.shape:
        raise UsageError(f"the input has shape {list(x.shape)}, the bundle takes {list(like.shape)}")
    if x.dtype != like.dtype:
        raise UsageError(f"the input has type {x.dtype}, the bundle takes {like.dtype}", f"convert it with x.astype('{like.dtype}')")
    # One pass that catches NaN and infinity; a sum that only overflowed is looked at again.
    with np.errstate(all="ignore"):
        suspicious = x.dtype.kind == "f" and not math.isfinite(float(np.sum(x)))
    if suspicious and not np.isfinite(x).all():
        raise UsageError("the input contains NaN or infinity")
