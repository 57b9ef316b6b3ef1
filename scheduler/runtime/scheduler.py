"""Several bundles on the same processors: sessions that take turns, subgraph by subgraph."""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from predictors.errors import UnknownNameError, UsageError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.delegates import Delegate
from scheduler.faults.policy import FaultPolicy
from scheduler.placement.mapping import bundle_precisions, place_processors
from scheduler.runtime.executor import Driver, Tenant
from scheduler.runtime.inputs import check_priority, deadline_at
from scheduler.runtime.machine import PATIENCE_MS, Event, Instruction, Machine
from scheduler.runtime.session import Session
from scheduler.runtime.threads import QueueThreads
from scheduler.runtime.watchdog import TIME_LIMIT_S


class SharedSession(Session):
    """A session of a `Scheduler`, whose inferences take turns with those of other sessions.

    `tensors` and `time_alone`, which observe a single inference, do not take turns; they run when this session has nothing in flight.

    Args:
        bundle: As of `Session`.
        options: As of `Session`.
    """

    def __init__(self, tenant: Tenant, bundle: Bundle, **options: Any) -> None:
        self._tenant, self._weight = tenant, tenant.weight
        super().__init__(bundle, **options)

    @property
    def weight(self) -> float:
        """The weight: a session with twice the weight gets twice the share of a contended processor."""
        return self._weight

    def run(self, x: Any) -> Any:
        """Run one inference, in turn with other sessions; see `Session.run`."""
        return self.submit(x).result()

    def submit(self, x: Any, *, deadline_ms: float | None = None, priority: int = 0) -> Future[Any]:
        """Start one inference in addition to those in flight.

        Args:
            x: As for `Session.submit`.
            deadline_ms: As of `Scheduler.submit`.
            priority: As of `Scheduler.submit`.
        """
        return self.submit_until(x, deadline_at(time.monotonic(), deadline_ms), priority)

    def submit_until(self, x: Any, deadline_s: float, priority: int) -> Future[Any]:
        """Start an inference with a deadline in s on the clock of `time.monotonic`, which may have passed; infinite for none."""
        return self._submit(x, deadline_s, check_priority(priority))


class Scheduler:
    """Runs several bundles on the same processors.

    Each bundle has inferences in flight, whose subgraphs take turns on every processor: first those with the earliest deadline,
    then those with the highest priority, then those of the bundle with the least share of the processor so far. A running
    subgraph is not interrupted; between two subgraphs of one inference, others may run. Safe to call from several threads.

    ::

        with Scheduler({"detect": "runs/a", "embed": "runs/b"}) as scheduler:
            y = scheduler.submit(x, "detect", deadline_ms=50).result()

    Args:
        bundles: Bundles or their folders, by model name; or a sequence of them, named after their folders.
        mapping: Placement of processors on this machine, as for `Session`; each bundle uses the entries of its processors.
        weights: Weights by name; a bundle with twice the weight gets twice the share of a contended processor. 1 by
            default.
        patience_ms: Waiting time after which an inference without a deadline is the most urgent.
        in_flight: Number of inferences of each bundle at once, each with separate buffers.
        delegates: As for `Session`.
        time_limit: As for `Session`; a call that hangs ends only the inferences of its bundle.
        faults: As for `Session`; decisions are separate for each bundle.

    Raises:
        UsageError: If there is no bundle, two bundles have one name, or a number is out of range.
        UnknownNameError: If a weight has an unknown name.
        StretchError: As for `Session`.
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
        loaded = _load_by_name(bundles)
        for name in weights or {}:
            if name not in loaded:
                raise UnknownNameError.among("model", name, list(loaded))
        processors = {name: list(dict.fromkeys(entry.processor for entry in item.manifest.subgraphs)) for name, item in loaded.items()}
        for name in mapping or {}:
            if not any(name in processor for processor in processors.values()):
                used = dict.fromkeys(item for processor in processors.values() for item in processor)
                raise UsageError(f"processor `{name}` is mapped, but no bundle uses it", f"the bundles use {', '.join(used)}")
        shared_mapping = _shared_mapping(loaded.values(), mapping or {})
        self._driver = Driver(Machine({}, patience_ms=patience_ms), QueueThreads(), threading.RLock(), now=lambda: time.monotonic() * 1e3)
        self._sessions: dict[str, SharedSession] = {}
        try:
            for name, bundle in loaded.items():
                targets = {key: target for key, target in shared_mapping.items() if key in processors[name]}
                options = {"mapping": targets, "in_flight": in_flight, "delegates": delegates, "time_limit": time_limit, "faults": faults}
                self._sessions[name] = SharedSession(Tenant(self._driver, name, (weights or {}).get(name, 1.0)), bundle, **options)
        except BaseException:
            self.close()
            raise

    def submit(self, x: Any, model: str | None = None, *, deadline_ms: float | None = None, priority: int = 0) -> Future[Any]:
        """Start an inference in addition to those in flight.

        Waits while the maximum number of inferences of the bundle is in flight.

        Args:
            x: As for `Session.submit`; it is copied before this returns.
            model: Name of the bundle; optional with a single bundle.
            deadline_ms: Time that the inference may take from now on; a late inference is still computed. None: any time.
            priority: From -100 to 100; decides among inferences with the same deadline or without one.

        Returns:
            Future with the output, or the error that `Session.run` would raise.

        Raises:
            UnknownNameError: If there is no such model.
            UsageError: If an input, the deadline or the priority is invalid, or `model` is None with several models.
            StretchError: If the scheduler is closed.
        """
        return self.sessions[resolve_model(self._sessions, model)].submit(x, deadline_ms=deadline_ms, priority=priority)

    def run(self, x: Any, model: str | None = None) -> Any:
        """Run one inference; see `submit`."""
        return self.submit(x, model).result()

    @property
    def sessions(self) -> Mapping[str, SharedSession]:
        """Session of each bundle, by name."""
        return MappingProxyType(self._sessions)

    @property
    def events(self) -> tuple[tuple[Event, tuple[Instruction, ...]], ...]:
        """Last inputs and answers of the state machine; the same inputs from the start give the same answers."""
        with self._driver.lock:
            return tuple(self._driver.events)

    def close(self) -> None:
        """Wait for inferences in flight, except for hanging ones, and end; may be called twice."""
        for session in self._sessions.values():
            session.close()
        self._driver.threads.close()

    def __enter__(self) -> Self:
        """Return the scheduler itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close the scheduler; after Ctrl-C without waiting for inferences in flight."""
        for session in self._sessions.values():
            session.__exit__(kind, error, traceback)
        self._driver.threads.close(lambda: kind is not KeyboardInterrupt)


def resolve_model(models: Collection[str], name: str | None) -> str:
    """Return the name of one of several models; None selects the only one."""
    if name is None:
        if len(models) > 1:
            raise UsageError("there are several models", f"name one of {', '.join(models)}")
        return next(iter(models))
    if name not in models:
        raise UnknownNameError.among("model", name, list(models))
    return name


def _load_by_name(bundles: Mapping[str, Bundle | Path | str] | Sequence[Bundle | Path | str]) -> dict[str, Bundle]:
    """Load the bundles, and return them by name."""
    if not bundles:
        raise UsageError("a scheduler of no bundle has nothing to do", "give some")
    if isinstance(bundles, str | Path | Bundle):
        bundles = [bundles]
    pairs = bundles.items() if isinstance(bundles, Mapping) else [("", bundle) for bundle in bundles]
    by_name: dict[str, Bundle] = {}
    for arguments, item in pairs:
        bundle = item if isinstance(item, Bundle) else load_bundle(item)
        name = arguments or bundle.path.resolve().name
        if name in by_name:
            raise UsageError(f"two bundles would be called `{name}`", 'give them names, as {"a": FOLDER, "b": FOLDER}')
        by_name[name] = bundle
    return by_name


def _shared_mapping(bundles: Collection[Bundle], mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the mapping with the same cores of a processor for every bundle, for processors that run on cores."""
    manifests = [bundle.manifest for bundle in bundles]
    precisions: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, names in bundle_precisions(manifest).items():
            precisions.setdefault(name, set()).update(names)
    planned = {name: delegate for manifest in manifests for name, delegate in manifest.delegates.items()}
    placements = place_processors(list(precisions), mapping, precisions=precisions, planned=planned)
    return {name: f"{place.delegate}{'+'.join(map(str, place.cores))}" for name, place in placements.items() if place.cores} | dict(mapping)
