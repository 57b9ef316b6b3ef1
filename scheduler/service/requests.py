"""Requests that wait, and which of them is next: a pure order without threads or a clock."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from typing import Any

from predictors.errors import StretchError


class OverloadedError(StretchError):
    """As many requests wait as may, so this one was not taken; or rates that were asked for cannot be held."""


class DeadlineError(StretchError):
    """The deadline of a request passed before it was begun, so it was not."""


@dataclass
class Request:
    """An inference that is asked for."""

    model: str  # Of which model.
    x: Any  # Its input, which the caller leaves as it is until the future is done.
    priority: int  # Higher ones go first.
    arrived_s: float  # When it came.
    deadline_s: float = inf  # When it has to be done; infinite for never.
    future: "Future[Any]" = field(default_factory=Future)  # Who waits for it.


class Waiting:
    """Requests that wait, for several models.

    The next one is of the highest priority, of these the one whose deadline is earliest, of these (those without a
    deadline, mostly) of the model that has been given least of the processors, of these the one that came first.
    """

    def __init__(self, models: Collection[str], bound: int) -> None:
        self._bound = bound
        self._requests: list[Request] = []
        #: Seconds that each model's inferences took so far.
        self._used = dict.fromkeys(models, 0.0)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._requests)

    @property
    def first_deadline(self) -> float | None:
        """The earliest deadline of those that wait, s; None if none has one."""
        first = min((request.deadline_s for request in self._requests), default=inf)
        return None if first == inf else first

    def add(self, request: Request) -> None:
        """Take a request."""
        if len(self._requests) >= self._bound:
            raise OverloadedError(f"{self._bound} requests wait already", "ask again later, or for fewer a second")
        self._requests.append(request)

    def used(self, model: str, seconds: float) -> None:
        """An inference of a model took so long."""
        self._used[model] += seconds

    def overdue(self, now_s: float) -> list[Request]:
        """Take away the requests whose deadline has passed."""
        late = [request for request in self._requests if request.deadline_s <= now_s]
        self._requests = [request for request in self._requests if request.deadline_s > now_s]
        return late

    def next(self, room: Mapping[str, bool]) -> Request | None:
        """Take away the next request of the models that have room; None if there is none."""
        able = [(self._key(request), number) for number, request in enumerate(self._requests) if room[request.model]]
        return self._requests.pop(min(able)[1]) if able else None

    def everything(self) -> list[Request]:
        """Take away all."""
        requests, self._requests = self._requests, []
        return requests

    def _key(self, request: Request) -> tuple[float, float, float, float]:
        return (-request.priority, request.deadline_s, self._used[request.model], request.arrived_s)
