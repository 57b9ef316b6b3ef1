"""A queue in front of one or several sessions: back-pressure, deadlines, priorities, and a fair share for each model."""

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
    """The maximum number of requests wait, so this one was refused; or requested rates cannot be held."""


class DeadlineError(StretchError):
    """The deadline of a request passed before the request was started."""


@dataclass
class ServiceRequest:
    """A requested inference."""

    model: str  # Name of the model.
    x: Any  # Input, which the caller must not change until the future is done.
    priority: int  # Priority; higher ones go first.
    arrived_s: float  # Arrival time, s.
    deadline_s: float = inf  # Deadline, s; infinite for none.
    future: "Future[Any]" = field(default_factory=Future)  # Future with the result.


class RequestQueue:
    """Waiting requests for several models.

    The order is by priority, then by earliest deadline, then (usually among those without a deadline) by the model with the
    least processor time so far, then by arrival.
    """

    def __init__(self, models: Collection[str], bound: int) -> None:
        self._bound = bound
        self._requests: list[ServiceRequest] = []
        #: Total seconds of each model's inferences so far.
        self._seconds = dict.fromkeys(models, 0.0)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._requests)

    @property
    def first_deadline(self) -> float | None:
        """Earliest deadline of the waiting requests, s; None if none has one."""
        first = min((request.deadline_s for request in self._requests), default=inf)
        return None if first == inf else first

    def add(self, request: ServiceRequest) -> None:
        """Add a request, and refuse it if the queue is full."""
        if len(self._requests) >= self._bound:
            raise OverloadedError(f"{self._bound} requests wait already", "ask again later, or for fewer a second")
        self._requests.append(request)

    def add_seconds(self, model: str, seconds: float) -> None:
        """Add the time of a finished inference of a model, s."""
        self._seconds[model] += seconds

    def take_expired(self, now_s: float) -> list[ServiceRequest]:
        """Remove the requests whose deadline has passed, and return them."""
        expired = [request for request in self._requests if request.deadline_s <= now_s]
        self._requests = [request for request in self._requests if request.deadline_s > now_s]
        return expired

    def take_next(self, room: Mapping[str, bool]) -> ServiceRequest | None:
        """Remove the next request of the models with room, and return it; None if there is none."""
        candidates = [
            (-request.priority, request.deadline_s, self._seconds[request.model], request.arrived_s, number)
            for number, request in enumerate(self._requests)
            if room[request.model]
        ]
        return self._requests.pop(min(candidates)[-1]) if candidates else None

    def take_all(self) -> list[ServiceRequest]:
        """Remove all requests, and return them."""
        requests, self._requests = self._requests, []
        return requests


#: Upper bounds of the latency buckets, s: from a small network on a desktop to a large one on a phone.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Possible outcomes of a request.
OUTCOMES = ("done", "late", "failed", "expired", "refused", "cancelled")


class Counters:
    """Metrics by model, safe to update from any thread.

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
        """Count the outcome of a request, with its latency if it was computed."""
        self._requests.labels(model, outcome).inc()
        if seconds is not None:
            self._latency.labels(model).observe(seconds)

    def outcomes(self, model: str) -> dict[str, int]:
        """Return the number of requests of a model for each outcome."""
        value = self.registry.get_sample_value
        return {name: int(value("nn_stretch_requests_total", {"model": model, "outcome": name}) or 0) for name in OUTCOMES}


def measure_network(name: str, session: Session, quiet: int = 5) -> Network:
    """Return a session's plan with the times of its steps, measured one inference at a time while nothing else runs."""
    x = zeros(session.bundle.manifest)
    traces: list[Trace] = []
    for _ in range(quiet + 1):
        session.submit(x).result()
        traces.append(session.submitted_traces[-1])
    plan, places = session.plan, session.subgraph_placements
    times = {}
    for step in plan.order:
        # time of the step in its queue; conversions at its border are included
        ms = median(sum(span.ms for span in trace.spans if span.name == step) for trace in traces[1:])
        if step in places:
            times[step] = StepTime(places[step].queue, (("subgraph", ms),))
        else:
            times[step] = StepTime(next(span.queue for span in traces[-1].spans if span.name == step), (("join", ms),))
    return Network(name, plan, places, times)


#: Name of the model for a single session without a name.
ONLY_MODEL = "model"


class Service:
    """Takes requests from any thread or event loop and hands them to sessions, the most urgent first.

    Several models share the processors of this machine. The sessions of a `Scheduler` share them fairly, subgraph by subgraph:
    running inferences take turns on each processor. Separate sessions do not: a model starts an inference when it is the most
    urgent or has had the least processor time, and running inferences compete for the processors.

    ::

        with Scheduler({"a": "runs/a", "b": "runs/b"}) as scheduler, Service(scheduler) as service:
            y = service.submit(x, "a", deadline_ms=50).result()

    Args:
        sessions: A scheduler, a session, or sessions by model name; they stay open when the service ends.
        waiting: Maximum number of waiting requests; further ones are refused with an `OverloadedError`.

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
        """Request an inference.

        Args:
            x: As for `Session.run`; it must not change until the future is done.
            model: Name of the model; optional with a single model.
            priority: From -100 to 100; the highest goes first.
            deadline_ms: Time that the request may take from now on. A request is not started after its deadline.

        Returns:
            Future with the output, a `DeadlineError`, or the error that `Session.run` would raise. It can be cancelled before the start.

        Raises:
            OverloadedError: If too many requests are already waiting.
            UnknownNameError: If there is no such model.
            UsageError: If the priority or the deadline is invalid, or `model` is None with several models.
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
        """Request an inference from an event loop and await its output; cancelling the task cancels a request that has not started."""
        return await asyncio.wrap_future(self.submit(x, model, priority=priority, deadline_ms=deadline_ms))

    def warm_up(self) -> None:
        """Run each model once on zeros, so that no request meets the delays of a first run."""
        for session in self._sessions.values():
            session(zeros(session.bundle.manifest))

    def admit(self, demands: Mapping[str, Demand], quiet: int = 5) -> Admission:
        """Check in advance whether rates can be held on this machine.

        The times of inferences are measured one at a time, so no request should arrive during the check. They give the work of
        each processor, and a simulation of the requests shows which would be late.

        Args:
            demands: Requests per second and deadlines, by model; other models get no requests.
            quiet: Number of inferences to measure per model.

        Returns:
            Utilisation of the processors, and the factor by which all rates could be raised.

        Raises:
            OverloadedError: If the rates cannot be held, with the reason.
            UnknownNameError: If there is no such model.
            UsageError: If `demands` is empty, or several sessions do not belong to one scheduler.
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
        """Return the numbers of requests that were done, done late, failed, expired, refused and cancelled."""
        return self._counters.outcomes(resolve_model(self._sessions, model))

    def prometheus(self) -> str:
        """Return the metrics in Prometheus' text format, to be served under ``/metrics``."""
        from prometheus_client import generate_latest

        with self._changed:
            self._counters.waiting.set(len(self._queue))
            for model, count in self._running.items():
                self._counters.running.labels(model).set(count)
            return generate_latest(self._counters.registry).decode()

    def close(self, *, drain: bool = True) -> None:
        """Refuse new requests, and return when none is left; may be called twice.

        Args:
            drain: Whether waiting requests are computed first; else they are cancelled. Running ones are always completed.
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
        """Close the service; after an error, without computing waiting requests."""
        self.close(drain=kind is None)

    def _serve(self) -> None:
        """Hand requests to sessions until the service is closed and no request is left; runs on the service's thread."""
        while True:
            with self._changed:
                request = self._take()
                while request is None:
                    if self._closed and not len(self._queue) and not any(self._running.values()):
                        return
                    # until a waiting request is late
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
        """Return the next request that can start, or None; the lock must be held."""
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
        """Record the end of an inference, and set its future; called by the thread that ended it."""
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
