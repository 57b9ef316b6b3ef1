"""Several prepared plans of one network; each inference runs the plan that is fastest under the current load."""

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any

from predictors.errors import StretchError, UsageError
from scheduler.adapt.policy import AdaptationRules, Alternative, InferenceMeasured, PlanDecision, PlannedWork, Policy, Probe, ProbeMeasured
from scheduler.runtime.inputs import zeros
from scheduler.runtime.session import Session

#: Maximum number of inferences whose events are kept.
MAX_EVENTS = 4096

#: Kinds of spans that occupy a processor.
_COMPUTING = ("subgraph", "join")


class AdaptiveSession:
    """Changes between sessions under load, and back, as in figure 13 of paper 003: each call runs an inference on one of them.

    The constructor measures the times of undisturbed inferences, so the machine should be otherwise idle then. After each inference
    the policy (`scheduler.adapt.policy`) gets the time of every processor. To measure a processor that is not in use, a second thread
    runs the subgraphs of a session that would use it.

    ::

        with Session("runs/both") as both, Session("runs/both", processors=["cpu"]) as alone:
            session = AdaptiveSession({"both": both, "cpu alone": alone})
            y = session(x)

    Args:
        sessions: Sessions by name, at least one, all with the same inputs and outputs; they stay open.
        rules: Rules of the policy; None for its defaults.
        quiet: Number of undisturbed inferences to measure per session.
        watts: Additional power in watts of each processor of the device while it computes, for rules that prefer energy or a deadline.

    Raises:
        UsageError: If there is no session, their inputs or outputs differ, `quiet` is less than 1, or a power is missing.
        StretchError: If an inference fails.
    """

    def __init__(
        self,
        sessions: Mapping[str, Session],
        rules: AdaptationRules | None = None,
        quiet: int = 5,
        watts: Mapping[str, float] | None = None,
    ) -> None:
        if not sessions:
            raise UsageError("there is no session to run", "give one for each plan")
        if quiet < 1:
            raise UsageError(f"{quiet} inferences do not show a usual time", "quiet is 1 or more")
        ends = {name: _ends(session) for name, session in sessions.items()}
        first, expected = next(iter(ends.items()))
        for name, end in ends.items():
            if end != expected:
                raise UsageError(f"`{name}` has other inputs or outputs than `{first}`", "give plans of one network")
        self._sessions = dict(sessions)
        self._policy = Policy([_measure_alternative(name, session, quiet, watts or {}) for name, session in sessions.items()], rules)
        self._state = self._policy.begin()
        self._lock = threading.Lock()
        self._runs = 0
        self._events: deque[InferenceMeasured | ProbeMeasured] = deque(maxlen=MAX_EVENTS)
        self._decisions: list[PlanDecision] = []
        #: Finished probes with their times in ms; the policy receives them after the next inference.
        self._probe_results: SimpleQueue[tuple[Probe, float]] = SimpleQueue()

    def __call__(self, x: Any) -> Any:
        """Run one inference; see `run`."""
        return self.run(x)

    def run(self, x: Any) -> Any:
        """Run one inference on the plan that the policy has chosen.

        Args:
            x: As for `Session.run`.

        Raises:
            UsageError: As `Session.run`.
            StretchError: As `Session.run`.
        """
        with self._lock:
            name = self._state.current
            session = self._sessions[name]
            output = session.run(x)
            number, self._runs = self._runs, self._runs + 1
            self._handle(InferenceMeasured(number, name, self._policy.alternatives[name].computing_ms, session.trace.busy_ms(_COMPUTING)))
            with suppress(Empty):
                while True:
                    probe, ms = self._probe_results.get_nowait()
                    self._handle(ProbeMeasured(number, probe.processor, probe.expected_ms, ms))
            return output

    def _handle(self, event: InferenceMeasured | ProbeMeasured) -> None:
        """Report an event to the policy, and apply its decision."""
        self._events.append(event)
        self._state, decision = self._policy.after(self._state, event)
        if decision is None:
            return
        self._decisions.append(decision)
        if decision.probe is not None:
            threading.Thread(target=self._run_probe, args=(decision.probe,), name="probe", daemon=True).start()

    def _run_probe(self, probe: Probe) -> None:
        """Run a plan's subgraphs on a processor to measure them, and discard their outputs."""
        session, ms = self._sessions[probe.alternative], 0.0
        try:
            for name, subgraph in session.plan.subgraphs.items():
                if subgraph.processor == probe.processor:
                    ms += session.time_alone(name)
        except StretchError:  # an inference on that plan would show the reason
            ms = inf
        self._probe_results.put((probe, ms))

    @property
    def current(self) -> str:
        """Name of the session that runs the next inference."""
        return self._state.current

    @property
    def alternatives(self) -> Mapping[str, Alternative]:
        """Time of each session without load, as the policy knows it."""
        return self._policy.alternatives

    @property
    def decisions(self) -> tuple[PlanDecision, ...]:
        """Decisions of the policy, each with its reason."""
        with self._lock:
            return tuple(self._decisions)

    @property
    def events(self) -> tuple[InferenceMeasured | ProbeMeasured, ...]:
        """The policy's inputs for the last inferences; the same inputs give the same decisions."""
        with self._lock:
            return tuple(self._events)


def _measure_alternative(name: str, session: Session, quiet: int, watts: Mapping[str, float]) -> Alternative:
    """Return a session's plan with the median times of its steps in undisturbed inferences, after one inference for warm-up."""
    x = zeros(session.bundle.manifest)
    session.run(x)
    traces = []
    for _ in range(quiet):
        session.run(x)
        traces.append(session.trace)
    plan = session.plan
    work = []
    for step in plan.order:
        spans = [span for trace in traces for span in trace.spans if span.name == step and span.kind in _COMPUTING]
        work.append(PlannedWork(step, spans[0].processor, spans[0].queue, median(span.ms for span in spans), 0.0, plan.predecessors(step)))
    return Alternative(name, tuple(work), watts)


def _ends(session: Session) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and type of each input and output by public name; a single output is called `output`."""
    manifest = session.bundle.manifest
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    outputs = manifest.name_outputs({name: tensors[name] for name in manifest.outputs})
    outputs_by_name = outputs if len(outputs) > 1 else {"output": next(iter(outputs.values()))}
    return {name: (item.shape, item.dtype) for name, item in ({name: tensors[name] for name in manifest.inputs} | outputs_by_name).items()}
