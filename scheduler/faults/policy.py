"""The policy that retires a site after failures of its delegate and tries it again: a pure function of events, without a clock.

A *site* is a delegate on its cores. A site that fails is *retired* for a number of inferences; then it is *on trial*, and
*restored* after enough consecutive inferences without a failure. A site that fails on trial is retired for twice as long.
Inferences are counted instead of seconds, so that equal events always lead to equal decisions.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from predictors.errors import UsageError
from scheduler.placement.place import Placement

#: Kinds of decisions about a site.
DecisionKind = Literal["retired", "on trial", "restored"]


class Site(NamedTuple):
    """A delegate on its cores."""

    delegate: str  # Name of the delegate.
    cores: tuple[int, ...]  # CPU cores; empty for none.

    @classmethod
    def of(cls, place: Placement) -> "Site":
        """Return the site of a placement."""
        return cls(place.delegate, place.cores)

    def __str__(self) -> str:
        """Return the site in the form of a mapping, such as ``cpu1``."""
        return self.delegate + "+".join(map(str, self.cores))


class SiteFailed(msgspec.Struct, frozen=True, tag=True):
    """A site failed to run a subgraph."""

    site: Site  # The delegate and its cores.
    step: str  # The subgraph that did not run.
    reason: str  # The cause, as a sentence.
    for_good: bool = False  # Whether the site can never be used again, because one of its calls hangs.


class SiteReturned(msgspec.Struct, frozen=True, tag=True):
    """A site on trial runs its subgraphs again; inferences count towards its trial from now on."""

    site: Site  # The delegate and its cores.


class InferenceEnded(msgspec.Struct, frozen=True, tag=True):
    """An inference has ended."""


Event = SiteFailed | SiteReturned | InferenceEnded


class FaultDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a site, with its reason."""

    inference: int  # Number of inferences that had ended.
    site: Site  # The delegate and its cores.
    what: DecisionKind  # ``retired``: other sites run its subgraphs; ``on trial``: it runs them again; ``restored``: the trial has ended well.
    reason: str  # The cause, as a sentence.
    inferences: int | None = None  # Length of the retirement in inferences; None for a permanent one, or for other decisions.


@dataclass(frozen=True)
class FaultPolicy:
    """Policy for failing delegates.

    Args:
        back_off: Number of inferences for which a site is retired after its first failure; doubled with each failure on trial.
        longest: Maximum number of these inferences.
        trial: Number of consecutive inferences without a failure that restore a site.
        finite: Whether NaN and infinity in a delegate's output count as a failure if another delegate computes numbers.
        spot_every: Number of runs of a subgraph after which one run is compared with another delegate's result; 0 for never.

    Raises:
        UsageError: If a number is out of range.
    """

    back_off: int = 8
    longest: int = 4096
    trial: int = 4
    finite: bool = True
    spot_every: int = 0

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        if not 1 <= self.back_off <= self.longest:
            raise UsageError(
                f"a back-off of {self.back_off} inferences, at most {self.longest}, is out of range", "give 1 <= back_off <= longest"
            )
        if self.trial < 1:
            raise UsageError(f"a trial of {self.trial} inferences is none", "give 1 or more")
        if self.spot_every < 0:
            raise UsageError(f"spot_every {self.spot_every} is negative", "give 0 for no spot checks, or after how many runs there is one")


@dataclass
class _Record:
    """State of a site that has failed."""

    back_off: int  # Number of inferences of the current retirement.
    until: int | None  # Number of finished inferences at which its trial begins; None for never.
    trial: bool = False  # Whether it is on trial.
    passed: int | None = None  # Number of inferences without a failure on trial; None until it runs its subgraphs again.


#: Delegates that replace a failed one, in order of preference; every machine has them.
FALLBACK_DELEGATES = ("cpu", "reference")


class FaultTracker:
    """The state of all sites of one session; accepts events from any thread."""

    def __init__(self, policy: FaultPolicy) -> None:
        self.policy = policy
        self._lock = threading.Lock()
        self._ended = 0
        self._records: dict[Site, _Record] = {}
        self._decisions: list[FaultDecision] = []
        self._taken = 0

    @property
    def decisions(self) -> tuple[FaultDecision, ...]:
        """All decisions, in order."""
        with self._lock:
            return tuple(self._decisions)

    def handle(self, event: Event) -> list[FaultDecision]:
        """Handle one event and return the decisions that it causes."""
        with self._lock:
            decisions = self._decide(event)
            self._decisions += decisions
            return decisions

    @property
    def pending(self) -> bool:
        """Whether `take_decisions` would return any decision."""
        with self._lock:
            return self._taken < len(self._decisions)

    def take_decisions(self) -> Sequence[FaultDecision]:
        """Return the decisions since the last call, for the caller to apply."""
        with self._lock:
            decisions = self._decisions[self._taken :]
            self._taken = len(self._decisions)
            return decisions

    def is_retired(self, site: Site) -> bool:
        """Return whether a site is retired."""
        with self._lock:
            return site in self._records and not self._records[site].trial

    def _decide(self, event: Event) -> list[FaultDecision]:
        match event:
            case SiteFailed(site, step, reason, for_good):
                return self._on_failure(site, f"`{step}`: {reason}", for_good=for_good)
            case SiteReturned(site):
                if site in self._records and self._records[site].trial:
                    self._records[site].passed = 0
                return []
            case InferenceEnded():
                self._ended += 1
                return [decision for site in list(self._records) for decision in self._on_inference_ended(site)]

    def _on_failure(self, site: Site, reason: str, *, for_good: bool) -> list[FaultDecision]:
        record = self._records.get(site)
        if record is not None and not record.trial and not (for_good and record.until is not None):
            return []  # another inference in flight has reported it already
        failed_on_trial = record is not None and record.trial
        back_off = min(self.policy.longest, 2 * record.back_off) if failed_on_trial and record is not None else self.policy.back_off
        self._records[site] = _Record(back_off, None if for_good else self._ended + back_off)
        return [self._decision(site, "retired", reason, None if for_good else back_off)]

    def _on_inference_ended(self, site: Site) -> list[FaultDecision]:
        record = self._records[site]
        if record.trial:
            if record.passed is None:
                return []
            record.passed += 1
            if record.passed < self.policy.trial:
                return []
            del self._records[site]
            return [self._decision(site, "restored", f"{self.policy.trial} inferences in a row went well")]
        if record.until is None or self._ended < record.until:
            return []
        record.trial = True
        return [self._decision(site, "on trial", f"{record.back_off} inferences have gone by")]

    def _decision(self, site: Site, what: DecisionKind, reason: str, inferences: int | None = None) -> FaultDecision:
        return FaultDecision(inference=self._ended, site=site, what=what, reason=reason, inferences=inferences)
