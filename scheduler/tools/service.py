"""A queue before one session or several: back-pressure, deadlines, priorities, a fair share for each model."""

import asyncio
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from types import TracebackType
from typing import Any, Self

from predictors.errors import MissingBackendError, StretchError, UsageError, install_line
from scheduler.runtime.inputs import check_priority, deadline_at, zeros
from scheduler.runtime.scheduler import Scheduler, SharedSession, resolve_model
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace
from scheduler.simulate.admission import Admission, Demand, admit
from scheduler.simulate.networks import Network, StepTime


class OverloadedError(StretchError):
    """As many requests wait as may, so this one was not taken; or rates that were asked for cannot be held."""


class DeadlineError(StretchError):
    """The deadline of a request passed before it was begun, so it was not."""


@dataclass
class ServiceRequest:
    """An inference that is asked for."""

    model: str  # Of which model.
    x: Any  # Its input, which the caller leaves as it is until the future is done.
    priority: int  # Higher ones go first.
    arrived_s: float  # When it came.
    deadline_s: float = inf  # When it has to be done; infinite for never.
    future: "Future[Any]" = field(default_factory=Future)  # Who waits for it.


class RequestQueue:
    """Requests that wait, for several models.

    The next one is of the highest priority, of these the one whose deadline is earliest, of these (those without a
    deadline, usually) of the model that has been given least of the processors, of these the one that came first.
    """

    def __init__(self, models: Collection[str], bound: int) -> None:
        self._bound = bound
        self._requests: list[ServiceRequest] = []
        #: Seconds that each model's inferences took so far.
        self._seconds = dict.fromkeys(models, 0.0)

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._requests)

    @property
    def first_deadline(self) -> float | None:
        """The earliest deadline of those that wait, s; None if none has one."""
        first = min((request.deadline_s for request in self._requests), default=inf)
        return None if first == inf else first

    def add(self, request: ServiceRequest) -> None:
        """Take a request."""
        if len(self._requests) >= self._bound:
            raise OverloadedError(f"{self._bound} requests wait already", "ask again later, or for fewer a second")
        self._requests.append(request)

    def add_seconds(self, model: str, seconds: float) -> None:
        """An inference of a model took so long."""
        self._seconds[model] += seconds

    def take_expired(self, now_s: float) -> list[ServiceRequest]:
        """Take away the requests whose deadline has passed."""
        expired = [request for request in self._requests if request.deadline_s <= now_s]
        self._requests = [request for request in self._requests if request.deadline_s > now_s]
        return expired

    def take_next(self, room: Mapping[str, bool]) -> ServiceRequest | None:
        """Take away the next request of the models that have room; None if there is none."""
        candidates = [
            (-request.priority, request.deadline_s, self._seconds[request.model], request.arrived_s, number)
            for number, request in enumerate(self._requests)
            if room[request.model]
        ]
        return self._requests.pop(min(candidates)[-1]) if candidates else None

    def take_all(self) -> list[ServiceRequest]:
        """Take away all."""
        requests, self._requests = self._requests, []
        return requests


#: Upper ends of the classes of latency, s: from a small network on a desktop to a large one on a phone.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: End of a request.
OUTCOMES = ("done", "late", "failed", "expired", "refused", "cancelled")


class Counters:
    """Metrics by model, from any thread.

    Raises:
        MissingBackendError: If prometheus-client is not installed.
    """

    def __init__(self, models: Collection[str]) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ModuleNotFoundError as error:
            raise MissingBackendError("a service counts with prometheus-client, which is not installed", install_line("service")) from error
        self.registry = CollectorRegistry()
        add: Any = {"namespace": "nn_stretch", "registry": self.registry}
        self._requests = Counter("requests", "Requests by what became of them.", ["model", "outcome"], **add)
        words = "Time from request to output, waiting included, of requests that were computed."
        self._latency = Histogram("latency_seconds", words, ["model"], buckets=BUCKETS, **add)
        self.waiting = Gauge("waiting", "Requests that wait.", **add)
        self.running = Gauge("running", "Inferences in flight.", ["model"], **add)
        for model in models:
            self._latency.labels(model)
            self.running.labels(model)
            for outcome in OUTCOMES:
                self._requests.labels(model, outcome)

    def count(self, model: str, outcome: str, seconds: float | None = None) -> None:
        """A request has come to its end."""
        self._requests.labels(model, outcome).inc()
        if seconds is not None:
            self._latency.labels(model).observe(seconds)

    def outcomes(self, model: str) -> dict[str, int]:
        """Return how many requests of a model came to each end."""
        value = self.registry.get_sample_value
        return {name: int(value("nn_stretch_requests_total", {"model": model, "outcome": name}) or 0) for name in OUTCOMES}


def measure_network(name: str, session: Session, quiet: int = 5) -> Network:
    """Return a session's plan, with what its steps took in inferences one at a time; nothing else should run then."""
    x = zeros(session.bundle.manifest)
    traces: list[Trace] = []
    for _ in range(quiet + 1):
        session.submit(x).result()
        traces.append(session.submitted_traces[-1])
    plan, places = session.plan, session.subgraph_placements
    times = {}
    for step in plan.order:
        # what a step took of its queue; conversions at its border lie within it
        ms = median(sum(span.ms for span in trace.spans if span.name == step) for trace in traces[1:])
        if step in places:
            times[step] = StepTime(places[step].queue, (("subgraph", ms),))
        else:
            times[step] = StepTime(next(span.queue for span in traces[-1].spans if span.name == step), (("join", ms),))
    return Network(name, plan, places, times)


#: Name of the model where a session is given without one.
ONLY_MODEL = "model"


class Service:
    """Takes requests from any thread or event loop and hands them to sessions, the most urgent first.

    Several models share the processors of this machine. Of a `Scheduler` they do so subgraph by subgraph: what has begun takes
    turns on each processor. Sessions that are given one by one do not share processors fairly: a model gets its turn when it is the
    most urgent, or has had least of the processors, and what has begun competes for them.

    ::

        with Scheduler({"a": "runs/a", "b": "runs/b"}) as scheduler, Service(scheduler) as service:
            y = service.submit(x, "a", deadline_ms=50).result()

    Args:
        sessions: A scheduler, a session, or sessions by the name of their model; they stay open when the service ends.
        waiting: Requests that may wait; the next one is refused with an `OverloadedError`.

    Raises:
        UsageError: If there is no session, or `waiting` is less than 1.
        MissingBackendError: If prometheus-client is not installed.
    """

    def __init__(self, sessions: Scheduler | Session | Mapping[str, Session], waiting: int = 64) -> None:
        if isinstance(sessions, Scheduler):
            sessions = sessions.sessions
        self._sessions: dict[str, Session] = {ONLY_MODEL: sessions} if isinstance(sessions, Session) else dict(sessions)
        if not self._sessions:
            raise UsageError("a service of no session has nothing to do", "give a session, or some by name")
        if waiting < 1:
            raise UsageError(f"a service in which {waiting} requests may wait takes none", "waiting is 1 or more")
        self._queue = RequestQueue(self._sessions, waiting)
        self._counters = Counters(self._sessions)
        self._running = dict.fromkeys(self._sessions, 0)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="nn-stretch service", daemon=True)
        self._thread.start()

    def submit(self, x: Any, model: str | None = None, *, priority: int = 0, deadline_ms: float | None = None) -> Future[Any]:
        """Ask for an inference.

        Args:
            x: As for `Session.run`; it must stay as it is until the future is done.
            model: Which one; may be left out where there is one.
            priority: From -100 to 100; the highest goes first.
            deadline_ms: How long it may take from now on. A request whose time is over before it begins is not begun.

        Returns:
            Its output, a `DeadlineError`, or the error that `Session.run` would raise. Until it begins it can be cancelled.

        Raises:
            OverloadedError: If too many wait already.
            UnknownNameError: If there is no such model.
            UsageError: If the priority or the deadline makes no sense, or no model is named of several.
            StretchError: If the service is closed.
        """
        name = resolve_model(self._sessions, model)
        now = time.monotonic()
        request = ServiceRequest(name, x, check_priority(priority), now, deadline_at(now, deadline_ms))
        with self._changed:
            if self._closed:
                raise StretchError("this service is closed", "make a new Service")
            try:
                self._queue.add(request)
            except StretchError:
                self._counters.count(name, "refused")
                raise
            self._changed.notify_all()
        return request.future

    async def infer(self, x: Any, model: str | None = None, *, priority: int = 0, deadline_ms: float | None = None) -> Any:
        """Return `submit` for an event loop, which goes on meanwhile; cancelling the task cancels a request that has not begun."""
        return await asyncio.wrap_future(self.submit(x, model, priority=priority, deadline_ms=deadline_ms))

    def warm_up(self) -> None:
        """Run each model once on zeros, so that no request meets what happens in a first run alone."""
        for session in self._sessions.values():
            session(zeros(session.bundle.manifest))

    def admit(self, demands: Mapping[str, Demand], quiet: int = 5) -> Admission:
        """Say beforehand whether rates can be held here.

        The times of inferences are measured, one at a time, so no request should arrive then. They give the work of
        each processor, and a simulation of the requests says who would be late.

        Args:
            demands: Requests a second and deadlines, by model; models that are not named are asked for nothing.
            quiet: Inferences of each that are measured.

        Returns:
            How busy processors would be, and by which factor all rates could be raised.

        Raises:
            OverloadedError: If the rates cannot be held, with the reason.
            UnknownNameError: If there is no such model.
            UsageError: If nothing is demanded, or several sessions are not those of one scheduler.
            StretchError: If an inference fails.
        """
        sessions = {name: self._sessions[resolve_model(self._sessions, name)] for name in demands}
        if len(sessions) > 1 and not all(isinstance(session, SharedSession) for session in sessions.values()):
            raise UsageError("separate sessions cannot promise rates together", "give the service a Scheduler of the bundles")
        networks = [measure_network(name, session, quiet) for name, session in sessions.items()]
        weighed = [
            replace(demand, weight=session.weight) if isinstance(session, SharedSession) else demand
            for demand, session in zip(demands.values(), sessions.values(), strict=True)
        ]
        admission = admit(networks, weighed, min((session.in_flight for session in sessions.values()), default=1))
        if not admission.holds:
            hint = (
                f"{admission.factor:.2f} times these rates are held"
                if admission.factor
                else "give deadlines more time, or use fewer models"
            )
            raise OverloadedError(f"these rates cannot be held: {admission.reason}", hint)
        return admission

    def outcomes(self, model: str | None = None) -> dict[str, int]:
        """Return how many requests of a model were done, done late, failed, expired, refused and cancelled."""
        return self._counters.outcomes(resolve_model(self._sessions, model))

    def prometheus(self) -> str:
        """Return the counters in Prometheus' text format, for whatever serves them under ``/metrics``."""
        from prometheus_client import generate_latest

        with self._changed:
            self._counters.waiting.set(len(self._queue))
            for model, count in self._running.items():
                self._counters.running.labels(model).set(count)
            return generate_latest(self._counters.registry).decode()

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and return when none is left; may be called twice.

        Args:
            drain: Whether waiting requests are computed first; else they are cancelled. Running ones end first.
        """
        with self._changed:
            self._closed = True
            dropped = [] if drain else self._queue.take_all()
            self._changed.notify_all()
        for request in dropped:
            if request.future.cancel():
                self._counters.count(request.model, "cancelled")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        """Return the service itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close it; after an error without what waits."""
        self.close(drain=kind is None)

    def _serve(self) -> None:
        """The thread that hands requests on, until the service is closed and nothing is left."""
        while True:
            with self._changed:
                request = self._take()
                while request is None:
                    if self._closed and not len(self._queue) and not any(self._running.values()):
                        return
                    # until a request that waits is late
                    first = self._queue.first_deadline
                    self._changed.wait(None if first is None else max(0.0, first - time.monotonic()))
                    request = self._take()
                if request.future.set_running_or_notify_cancel():
                    self._running[request.model] += 1
                else:
                    self._counters.count(request.model, "cancelled")
                    continue
            self._begin(request)

    def _take(self) -> ServiceRequest | None:
        """Return the next request that can begin; the lock is held."""
        for late in self._queue.take_expired(time.monotonic()):
            if late.future.set_running_or_notify_cancel():
                self._counters.count(late.model, "expired")
                late.future.set_exception(DeadlineError(f"the deadline of a request for `{late.model}` passed before it was begun"))
            else:
                self._counters.count(late.model, "cancelled")
        room = {name: self._running[name] < session.in_flight for name, session in self._sessions.items()}
        return self._queue.take_next(room)

    def _begin(self, request: ServiceRequest) -> None:
        began = time.monotonic()
        try:
            session = self._sessions[request.model]
            if isinstance(session, SharedSession):
                future = session.submit_until(request.x, request.deadline_s, request.priority)
            else:
                future = session.submit(request.x)
        except BaseException as error:  # the waiting caller of the request gets it
            self._end(request, began, None, error)
            return
        future.add_done_callback(lambda done: self._end(request, began, done, done.exception()))

    def _end(self, request: ServiceRequest, began: float, done: "Future[Any] | None", error: BaseException | None) -> None:
        """An inference has ended; called by the thread that ended it."""
        now = time.monotonic()
        with self._changed:
            self._running[request.model] -= 1
            self._queue.add_seconds(request.model, now - began)
            self._changed.notify_all()
        if error is not None or done is None:
            self._counters.count(request.model, "failed", now - request.arrived_s)
            request.future.set_exception(error)
        else:
            self._counters.count(request.model, "late" if now > request.deadline_s else "done", now - request.arrived_s)
            request.future.set_result(done.result())
