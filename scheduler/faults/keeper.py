"""What a session knows of its delegates' faults, told and asked from any thread."""

import threading
from collections.abc import Sequence

from scheduler.faults.policy import Decision, Ended, Event, Failed, FaultPolicy, Probation, Returned, Site
from scheduler.placement.place import Placement

#: Delegates that do the work of one that failed, the first that can: any machine has them.
STAND_INS = ("cpu", "reference")


class Keeper:
    """Faults of one session."""

    def __init__(self, policy: FaultPolicy) -> None:
        self.policy = policy
        self._probation = Probation(policy)
        self._lock = threading.Lock()
        self._decisions: list[Decision] = []
        self._carried_out = 0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All that was decided, in order."""
        with self._lock:
            return tuple(self._decisions)

    def failed(self, place: Placement, step: str, reason: str, *, for_good: bool = False) -> None:
        """A subgraph could not be run where it was placed."""
        self._tell(Failed(Site.of(place), step, reason, for_good))

    def returned(self, site: Site) -> None:
        """A site on trial has its work again."""
        self._tell(Returned(site))

    def ended(self) -> None:
        """An inference has ended."""
        self._tell(Ended())

    @property
    def pending(self) -> bool:
        """Whether `take` would give anything."""
        with self._lock:
            return self._carried_out < len(self._decisions)

    def take(self) -> Sequence[Decision]:
        """Decisions since the last call, to be carried out."""
        with self._lock:
            decisions = self._decisions[self._carried_out :]
            self._carried_out = len(self._decisions)
            return decisions

    def retired(self, place: Placement) -> bool:
        """Whether the site of a placement is left alone."""
        with self._lock:
            return self._probation.retired(Site.of(place))

    def _tell(self, event: Event) -> None:
        with self._lock:
            self._decisions += self._probation.handle(event)
