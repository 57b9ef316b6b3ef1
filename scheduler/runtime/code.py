"""Compiled subgraphs by placement, compiled on first use, also while other subgraphs run."""

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from predictors.errors import StretchError, first_line
from scheduler.bundle.load import Bundle, add_path_to_errors
from scheduler.cores import pinned
from scheduler.delegates import Compiled, Delegate, get_delegate, origin
from scheduler.delegates.base import Allocate, UnableError
from scheduler.faults.policy import FALLBACK_DELEGATES, FaultTracker, Site, SiteFailed
from scheduler.placement.place import Dispatch, Placement, fallback_placement
from scheduler.runtime.buffers import zeros
from scheduler.runtime.failures import delegate_failure
from scheduler.runtime.sequential import allowed_distance

#: Result of stopping a call that takes too long.
AbortResult = Literal["ended", "restarting", "no"]


class CompiledSubgraphs:
    """A bundle's compiled subgraphs, on delegates that are created once per set of cores.

    Args:
        fault_tracker: Records faults and decides the reaction; None if a fault ends the inference.
    """

    def __init__(self, bundle: Bundle, delegates: Mapping[str, Delegate] | None = None, fault_tracker: FaultTracker | None = None) -> None:
        self._bundle = bundle
        self.fault_tracker = fault_tracker
        self._provided = dict(delegates or {})
        self._delegates: dict[tuple[str, tuple[int, ...]], Delegate] = {}
        self._compiled: dict[tuple[str, str, tuple[int, ...]], Compiled] = {}
        #: Delegates created by this object, which end with it.
        self._created: list[Delegate] = []
        self._lock = threading.RLock()

    def get(self, name: str, place: Placement) -> Compiled:
        """Return a subgraph compiled for a placement."""
        key = (name, place.delegate, place.cores)
        with self._lock:
            if key not in self._compiled:
                delegate = self._delegate(place)
                # Helper threads of a runtime inherit the affinity of the compiling thread.
                with pinned(place.cores), add_path_to_errors(self._bundle), _name_package_in_errors(place.delegate, f"compile `{name}`"):
                    compiled = delegate.compile_from(self._bundle, name)
                if not isinstance(compiled, Compiled):
                    type_error = TypeError(f"it returned {type(compiled).__name__}, not Compiled")
                    raise delegate_failure(place.delegate, f"compile `{name}`", type_error)
                self._compiled[key] = compiled
            return self._compiled[key]

    def compile_or_fall_back(self, name: str, place: Placement, queues: Mapping[str, Dispatch]) -> Placement:
        """Compile a subgraph for a placement, or for its fallback; return the placement used."""
        try:
            self.get(name, place)
        except UnableError as error:
            return self.fall_back(name, place, error, queues)
        return place

    def fall_back(self, name: str, place: Placement, error: Exception, queues: Mapping[str, Dispatch]) -> Placement:
        """Compile a subgraph for its fallback, and return the fallback's placement.

        With a fault tracker, which is informed, the fallback is any delegate that every machine has; without one it is the fallback that
        the delegate names, and a warning is issued.
        """
        reason = first_line(error)
        if self.fault_tracker is not None:
            self.fault_tracker.handle(SiteFailed(Site.of(place), name, reason))
            return self.compile_stand_in(name, place, error, queues)
        delegate_name = self._delegate(place).falls_back_on
        if delegate_name is None:
            raise error
        replacement = fallback_placement(place, delegate_name, reason, queues)
        self.get(name, replacement)
        warnings.warn(f"subgraph `{name}` of the {place.processor} runs on the CPU: {reason}", stacklevel=2)
        return replacement

    def compile_stand_in(self, name: str, place: Placement, error: Exception, queues: Mapping[str, Dispatch]) -> Placement:
        """Compile a subgraph for the first delegate that every machine has, that can run it and that has not failed itself."""
        for delegate_name in FALLBACK_DELEGATES:
            replacement = fallback_placement(place, delegate_name, str(error), queues)
            if delegate_name == place.delegate or (self.fault_tracker is not None and self.fault_tracker.is_retired(Site.of(replacement))):
                continue
            try:
                self.get(name, replacement)
            except StretchError:
                continue
            return replacement
        raise error

    def compile_other(self, name: str, place: Placement) -> tuple[str, Compiled] | None:
        """Return name and compiled code of a delegate for comparison with the subgraph's own, on the same cores.

        Return None if there is no such delegate; a delegate that has failed itself proves nothing.
        """
        for delegate_name in FALLBACK_DELEGATES:
            replacement = replace(place, delegate=delegate_name)
            if delegate_name != place.delegate and not (
                self.fault_tracker is not None and self.fault_tracker.is_retired(Site.of(replacement))
            ):
                with contextlib.suppress(StretchError):
                    return delegate_name, self.get(name, replacement)
        return None

    def drop_site(self, site: Site) -> None:
        """Drop a delegate and its compiled code, so that both are created again on the next request.

        Args:
            site: Delegate and cores; nothing may run there.
        """
        with self._lock:
            self._compiled = {key: built for key, built in self._compiled.items() if Site(*key[1:]) != site}
            delegate = self._delegates.pop((site.delegate, site.cores), None)
            if delegate not in self._created:
                return
            self._created.remove(delegate)
        delegate.close()

    def accuracy(self, name: str) -> tuple[str, list[float]]:
        """Return the precision of a subgraph's file, and the allowed distance of each output from another delegate's."""
        entry, checks = self._bundle.subgraph(name), self._bundle.manifest.checks
        return entry.precision, [allowed_distance(checks, output, entry.precision) for output in entry.outputs]

    def movable(self) -> frozenset[str]:
        """Return the delegates whose subgraphs may run on any thread, several at once."""
        return frozenset(name for (name, _), delegate in self._delegates.items() if delegate.reentrant)

    def abort(self, place: Placement, reason: str) -> AbortResult:
        """Make a delegate stop the call that hangs.

        Returns:
            ``ended`` if the call returns now, ``restarting`` if it does not hang, ``no`` if it cannot be stopped.
        """
        delegate = self._delegates.get((place.delegate, place.cores))
        if delegate is None:
            return "no"
        if delegate.restarting:
            return "restarting"
        return "ended" if delegate.abort(reason) else "no"

    @property
    def computes(self) -> bool:
        """Whether every delegate in use computes real results."""
        return all(delegate.computes for delegate in self._delegates.values())

    def allocator(self, placements: Iterable[Placement]) -> Allocate:
        """Return the allocator for the buffers of `placements`: the first delegate's that needs other memory than numpy's."""
        return next(filter(None, (self._delegate(place).allocator() for place in placements)), zeros)

    def computes_at(self, place: Placement) -> bool:
        """Return whether the delegate of a placement computes real results."""
        return self._delegate(place).computes

    def close(self) -> None:
        """Drop all compiled code, and end the delegates created here; may be called twice."""
        with self._lock:
            current, self._created = self._created, []
            self._compiled = {}
        for delegate in current:
            delegate.close()

    def _delegate(self, place: Placement) -> Delegate:
        key = (place.delegate, place.cores)
        if key not in self._delegates:
            value = self._provided.get(place.delegate)
            if value is None:
                with _name_package_in_errors(place.delegate, "start"):
                    value = get_delegate(place.delegate).create(place.cores)
                self._created.append(value)
            self._delegates[key] = value
        return self._delegates[key]


@contextlib.contextmanager
def _name_package_in_errors(name: str, action: str) -> Iterator[None]:
    """Add the package's name to errors of delegates from other packages."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StretchError) or origin(name) is None:
            raise
        raise delegate_failure(name, action, error) from error
