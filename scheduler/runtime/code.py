"""Compiled subgraphs by where they are placed, made when they are first asked for, while others run too."""

import contextlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from predictors.errors import StretchError, first_line
from scheduler.bundle.load import Bundle, naming
from scheduler.cores import pinned
from scheduler.delegates import Compiled, Delegate, get_delegate, origin
from scheduler.delegates.base import Allocate, UnableError
from scheduler.faults.policy import STAND_INS, Failed, Keeper, Site
from scheduler.placement.place import Dispatch, Placement, fallback_placement
from scheduler.runtime.buffers import zeros
from scheduler.runtime.sequential import allowed
from scheduler.runtime.threads import delegate_failure

#: What became of a call that takes too long.
Aborted = Literal["ended", "restarting", "no"]


class CompiledSubgraphs:
    """What a bundle's subgraphs are compiled to, on delegates that are made once for each set of cores.

    Args:
        keeper: What is known of their faults, and what is done about them; None where a fault ends an inference.
    """

    def __init__(self, bundle: Bundle, delegates: Mapping[str, Delegate] | None = None, keeper: Keeper | None = None) -> None:
        self._bundle = bundle
        self.keeper = keeper
        self._given = dict(delegates or {})
        self._delegates: dict[tuple[str, tuple[int, ...]], Delegate] = {}
        self._compiled: dict[tuple[str, str, tuple[int, ...]], Compiled] = {}
        #: Delegates that end with this object: those that it made.
        self._own: list[Delegate] = []
        self._lock = threading.RLock()

    def get(self, name: str, place: Placement) -> Compiled:
        """A subgraph, compiled for a placement."""
        key = (name, place.delegate, place.cores)
        with self._lock:
            if key not in self._compiled:
                delegate = self._delegate(place)
                # Helper threads of a backend inherit the affinity of the thread that compiles.
                with pinned(place.cores), naming(self._bundle), _blamed(place.delegate, f"compile `{name}`"):
                    compiled = delegate.compile_from(self._bundle, name)
                if not isinstance(compiled, Compiled):
                    wrong = TypeError(f"it returned {type(compiled).__name__}, not Compiled")
                    raise delegate_failure(place.delegate, f"compile `{name}`", wrong)
                self._compiled[key] = compiled
            return self._compiled[key]

    def ready(self, name: str, place: Placement, queues: Mapping[str, Dispatch]) -> Placement:
        """Have a subgraph compiled for a placement, or for the one it falls back on."""
        try:
            self.get(name, place)
        except UnableError as error:
            return self.fall_back(name, place, error, queues)
        return place

    def fall_back(self, name: str, place: Placement, error: Exception, queues: Mapping[str, Dispatch]) -> Placement:
        """Compile a subgraph for where it runs instead.

        With a keeper of faults, who is told, any delegate that every machine has may do it; else the one that the delegate
        itself falls back on, with a warning.
        """
        why = first_line(error)
        if self.keeper is not None:
            self.keeper.tell(Failed(Site.of(place), name, why))
            return self.stand_in(name, place, error, queues)
        onto = self._delegate(place).falls_back_on
        if onto is None:
            raise error
        instead = fallback_placement(place, onto, why, queues)
        self.get(name, instead)
        warnings.warn(f"subgraph `{name}` of the {place.processor} runs on the CPU: {why}", stacklevel=2)
        return instead

    def stand_in(self, name: str, place: Placement, error: Exception, queues: Mapping[str, Dispatch]) -> Placement:
        """Compile a subgraph for the first delegate that any machine has, can run it and has not failed itself."""
        for onto in STAND_INS:
            instead = fallback_placement(place, onto, str(error), queues)
            if onto == place.delegate or (self.keeper is not None and self.keeper.retired(Site.of(instead))):
                continue
            try:
                self.get(name, instead)
            except StretchError:
                continue
            return instead
        raise error

    def other(self, name: str, place: Placement) -> tuple[str, Compiled] | None:
        """A subgraph compiled on the same cores by a delegate that its own may be compared with, and that one's name.

        None if there is none: one that has failed itself proves nothing.
        """
        for onto in STAND_INS:
            instead = replace(place, delegate=onto)
            if onto != place.delegate and not (self.keeper is not None and self.keeper.retired(Site.of(instead))):
                with contextlib.suppress(StretchError):
                    return onto, self.get(name, instead)
        return None

    def forget(self, site: Site) -> None:
        """Let go of a delegate and its compiled code, so that both are made again on the next request.

        Args:
            site: The delegate on its cores, where nothing runs.
        """
        with self._lock:
            self._compiled = {key: built for key, built in self._compiled.items() if Site(*key[1:]) != site}
            delegate = self._delegates.pop((site.delegate, site.cores), None)
            if delegate not in self._own:
                return
            self._own.remove(delegate)
        delegate.close()

    def accuracy(self, name: str) -> tuple[str, list[float]]:
        """Precision of a subgraph's file, and how far each of its outputs may be from another delegate's."""
        entry, checks = self._bundle.subgraph(name), self._bundle.manifest.checks
        return entry.precision, [allowed(checks, output, entry.precision) for output in entry.outputs]

    def movable(self) -> frozenset[str]:
        """Delegates whose subgraphs may run on any thread, several of them at once."""
        return frozenset(name for (name, _), delegate in self._delegates.items() if delegate.reentrant)

    def abort(self, place: Placement, why: str) -> Aborted:
        """Have a delegate give up what hangs.

        Returns:
            ``ended`` if the call comes back now, ``restarting`` if it does not hang, ``no`` if it cannot be ended.
        """
        delegate = self._delegates.get((place.delegate, place.cores))
        if delegate is None:
            return "no"
        if delegate.restarting:
            return "restarting"
        return "ended" if delegate.abort(why) else "no"

    @property
    def computes(self) -> bool:
        """Return whether every delegate in use computes real results."""
        return all(delegate.computes for delegate in self._delegates.values())

    def allocator(self, places: Iterable[Placement]) -> Allocate:
        """Return the allocator for the buffers of some placements: that of the first delegate that needs other memory than numpy's."""
        return next(filter(None, (self._delegate(place).allocator() for place in places)), zeros)

    def computing(self, place: Placement) -> bool:
        """Return whether the delegate of a placement computes real results."""
        return self._delegate(place).computes

    def close(self) -> None:
        """Let go of everything compiled, and end the delegates that were made here; may be called twice."""
        with self._lock:
            current, self._own = self._own, []
            self._compiled = {}
        for delegate in current:
            delegate.close()

    def _delegate(self, place: Placement) -> Delegate:
        key = (place.delegate, place.cores)
        if key not in self._delegates:
            value = self._given.get(place.delegate)
            if value is None:
                with _blamed(place.delegate, "start"):
                    value = get_delegate(place.delegate).create(place.cores)
                self._own.append(value)
            self._delegates[key] = value
        return self._delegates[key]


@contextlib.contextmanager
def _blamed(name: str, what: str) -> Iterator[None]:
    """Have an error that no delegate of ours raises name the package of the delegate."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StretchError) or origin(name) is None:
            raise
        raise delegate_failure(name, what, error) from error
