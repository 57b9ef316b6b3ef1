"""The plan of the next inference, as a pure function of the times of the last inferences (paper 003, section 7.4, figure 13).

The policy compares the measured with the expected time of every processor after
an inference. An exponential mean of the median of the last factors smooths
outliers. A processor is contended once the mean exceeds one threshold for
several inferences, and free again once it is below a lower one for as many.
On every such change the policy selects the plan with the least expected time.

Processors that the current plan does not use are measured by probes: subgraphs
of another plan that run concurrently with the inferences and whose outputs are
discarded. The distance of probes doubles, up to a limit, while the processor is
still contended.

The policy has no clock and depends on neither the simulation nor the session:
both send it the same events and follow its decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, inf, isfinite, log
from statistics import median
from typing import Literal, get_args

from predictors.errors import UsageError


@dataclass(frozen=True)
class PlannedWork:
    """A step of a plan."""

    name: str  # Unique in its plan.
    processor: str  # Processor that it occupies.
    queue: str  # Queue of its processor, which runs one step at a time.
    computing_ms: float  # Time on the processor, which grows with the processor's other load.
    other_ms: float  # Exchanges before and after it, whose time does not grow.
    after: tuple[str, ...]  # Steps of the plan that must end before it begins.


@dataclass(frozen=True)
class Alternative:
    """A plan in the policy's form."""

    name: str  # Unique among the alternatives.
    work: tuple[PlannedWork, ...]  # Steps of the plan, each after the steps that it waits for.
    #: Additional power of each computing processor; empty if energy is irrelevant.
    watts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def computing_ms(self) -> Mapping[str, float]:
        """Time that each processor computes in an inference, ms."""
        total: dict[str, float] = {}
        for work in self.work:
            total[work.processor] = total.get(work.processor, 0.0) + work.computing_ms
        return total

    def expected_mj(self, factors: Mapping[str, float]) -> float:
        """Return the energy of an inference on slowed-down processors, mJ."""
        return sum(self.watts[name] * ms * factors.get(name, 1.0) for name, ms in self.computing_ms.items() if ms)

    def expected_ms(self, factors: Mapping[str, float]) -> float:
        """Return the time of an inference on slowed-down processors, ms.

        Each step begins when its predecessors have ended and its queue has run
        all earlier steps of the plan.

        Args:
            factors: Measured over expected computing time, by processor; 1 for processors without a factor.
        """
        ends: dict[str, float] = {}
        queues: dict[str, float] = {}
        for work in self.work:
            begins = max((queues.get(work.queue, 0.0), *(ends[name] for name in work.after)))
            ends[work.name] = queues[work.queue] = begins + work.other_ms + work.computing_ms * factors.get(work.processor, 1.0)
        return max(ends.values(), default=0.0)


#: Kinds of decisions: change to a faster plan; probe an unused processor; result of a probe, free or still contended.
Kind = Literal["move", "probe", "return", "stay away"]

#: Objective: latency, energy, or energy within a deadline.
Prefer = Literal["latency", "energy", "deadline"]
PREFER: tuple[Prefer, ...] = get_args(Prefer)

#: Number of inferences in the median, which then enters the mean: the median of three ignores one outlier.
_RECENT = 3


@dataclass(frozen=True)
class AdaptationRules:
    """Parameters of the policy."""

    contended: float = 1.5  # Factor on the expected time from which a processor is contended.
    free: float = 1.2  # Factor up to which it is free again; less than `contended`.
    inferences: int = 2  # Number of consecutive inferences that must agree.
    weight: float = 0.5  # Weight of the last inference in the exponential mean, above 0 and at most 1.
    gain: float = 0.05  # Share of the current plan's expected time that another plan must save.
    probe_after: int = 8  # Number of inferences before the first probe of a contended processor that is not used.
    probe_most: int = 64  # Maximum number of inferences between probes.
    #: ``latency``: the fastest plan. ``energy``: the plan with the least energy. ``deadline``: the least energy among plans within
    #: `deadline_ms`, or the fastest of them if power is unknown; the fastest plan of all if none meets the deadline.
    prefer: Prefer = "latency"
    deadline_ms: float | None = None  # Allowed latency, for ``deadline``.

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        if not (isfinite(self.contended) and 1 <= self.free < self.contended):
            raise UsageError(
                f"a processor cannot be contended from {self.contended:g} times its time on and free up to {self.free:g} times",
                "the second is 1 or more, and below the first",
            )
        if not (0 < self.weight <= 1 and 0 <= self.gain < 1):
            raise UsageError(f"a weight of {self.weight:g} or a gain of {self.gain:g} is out of range", "both are shares")
        if not (self.inferences >= 1 and 1 <= self.probe_after <= self.probe_most):
            raise UsageError("numbers of inferences start at 1", "and probe_after is at most probe_most")
        if self.prefer not in PREFER:
            raise UsageError(f"`{self.prefer}` is no objective of a policy", f"one of {', '.join(PREFER)}")
        if (self.deadline_ms is None) == (self.prefer == "deadline"):
            raise UsageError("deadline_ms belongs to the objective `deadline`", 'write prefer="deadline" and deadline_ms=50')
        if self.deadline_ms is not None and not (isfinite(self.deadline_ms) and self.deadline_ms > 0):
            raise UsageError(
                f"a deadline of {self.deadline_ms:g} ms is not positive and finite", "give the milliseconds that an inference may take"
            )


@dataclass(frozen=True)
class InferenceMeasured:
    """Event: an inference has ended."""

    number: int  # Number of the inference.
    alternative: str  # Plan that it ran.
    expected_ms: Mapping[str, float]  # Planned computing time of each processor.
    measured_ms: Mapping[str, float]  # Measured computing time.


@dataclass(frozen=True)
class Probe:
    """Subgraphs that are run only to measure whether their processor is contended."""

    processor: str
    alternative: str  # Plan whose subgraphs on the processor are run, one after the other.
    expected_ms: float  # Time of the subgraphs without contention.


@dataclass(frozen=True)
class ProbeMeasured:
    """Event: a probe has ended."""

    number: int  # Last inference before the event.
    processor: str  # Probed processor.
    expected_ms: float  # Time of the probe's subgraphs without contention.
    measured_ms: float  # Measured time; infinite if they failed.


@dataclass(frozen=True)
class PlanDecision:
    """The plan of the next inference, with the reason."""

    inference: int  # Last inference before the decision.
    kind: Kind
    before: str  # Previous plan.
    after: str  # Plan to run; the previous one during a probe, or if the probe confirms it.
    reason: str
    factors: Mapping[str, float]  # Assumed slowdown of each contended processor.
    probe: Probe | None = None  # Probe to run concurrently with the next inferences; its end is reported as `ProbeMeasured`.


@dataclass(frozen=True)
class Observation:
    """Observed state of a processor."""

    #: Logarithms of the last factors; initially 0, which means as planned.
    recent: tuple[float, ...] = (0.0,) * (_RECENT - 1)
    mean: float = 0.0  # Exponential mean of the medians of the factors.
    contended: bool = False
    votes: int = 0  # Consecutive inferences that contradict `contended`.
    wait: int = 0  # Inferences until the next probe, if it is contended and not used.
    gap: int = 0  # Length of the next wait.


@dataclass(frozen=True)
class State:
    """Complete state of a policy."""

    current: str  # Plan of the next inference.
    observed: Mapping[str, Observation] = field(default_factory=dict)  # Observations by processor, for processors used so far.
    probed: str | None = None  # Processor of the running probe; None without one, or if its result is obsolete.


class Policy:
    """Chooses among alternatives.

    Args:
        alternatives: At least one; the first wins ties.
    """

    def __init__(self, alternatives: Sequence[Alternative], rules: AdaptationRules | None = None) -> None:
        self.alternatives = {alternative.name: alternative for alternative in alternatives}
        if not alternatives or len(self.alternatives) < len(alternatives):
            raise UsageError("two alternatives have the same name", "alternatives are different plans of a network")
        self.rules = rules or AdaptationRules()
        missing = [
            name for alternative in alternatives for name, ms in alternative.computing_ms.items() if ms and name not in alternative.watts
        ]
        if missing and self.rules.prefer == "energy":
            raise UsageError(f"the power of {missing[0]} is unknown, so energy cannot be compared", "give the watts of every processor")
        self._energy = not missing and self.rules.prefer != "latency"

    def begin(self) -> State:
        """Return the initial state, with the best plan without contention."""
        return State(self._best({}, next(iter(self.alternatives))))

    def after(self, state: State, event: InferenceMeasured | ProbeMeasured) -> tuple[State, PlanDecision | None]:
        """Return the next state after an event, and the decision, if any."""
        return self._after_inference(state, event) if isinstance(event, InferenceMeasured) else self._after_probe(state, event)

    def _after_inference(self, state: State, ran: InferenceMeasured) -> tuple[State, PlanDecision | None]:
        observed = {**state.observed, **{name: self._updated(state, name, factor) for name, factor in _factors(ran).items()}}
        if ran.alternative != state.current:  # it started before the last decision
            return replace(state, observed=observed), None
        factors = _slowdowns(observed)
        if any(factors.keys() & _factors(ran).keys() - {name for name, view in state.observed.items() if view.contended}):
            # observations of unused processors are old and become relevant again: probe these processors at once
            observed = {
                name: self._unused(view, 0) if name in factors and name not in _factors(ran) else view for name, view in observed.items()
            }
        best = self._best(factors, state.current)
        if best != state.current:
            unused = {name: self._unused(view, self.rules.probe_after) for name, view in observed.items() if name in _factors(ran)}
            reason = self._explain(factors, state.current, best)
            return self._decide(State(state.current, {**observed, **unused}), ran.number, "move", best, reason, factors)
        return self._schedule_probe(replace(state, observed=observed), ran.number, factors)

    def _unused(self, observed: Observation, wait: int) -> Observation:
        """Return the state of a processor that is unused from now on."""
        return replace(observed, wait=wait, gap=self.rules.probe_after)

    def _updated(self, state: State, name: str, factor: float) -> Observation:
        """Return the state of a processor after one more measurement."""
        before, rules = state.observed.get(name, Observation()), self.rules
        recent = (*before.recent, factor)[-_RECENT:]
        mean = before.mean + rules.weight * (median(recent) - before.mean)
        contrary = mean <= log(rules.free) if before.contended else mean >= log(rules.contended)
        votes = before.votes + 1 if contrary else 0
        view = replace(before, recent=recent, mean=mean, votes=votes)
        if votes < rules.inferences:
            return view
        return self._unused(replace(view, votes=0, contended=not before.contended), rules.probe_after)

    def _after_probe(self, state: State, probed: ProbeMeasured) -> tuple[State, PlanDecision | None]:
        """Return the next state after a probe; a probe from before a change of plan is ignored."""
        name = probed.processor
        if state.probed != name:
            return state, None
        view = state.observed[name]
        factor = _factor(probed.measured_ms, probed.expected_ms)
        if factor is not None:  # earlier measurements are outdated
            view = replace(view, recent=(factor,) * (_RECENT - 1), mean=factor, contended=factor > log(self.rules.free), votes=0)
        if view.contended:
            gap = min(2 * view.gap, self.rules.probe_most)
            view = replace(view, gap=gap, wait=gap)
        observed = {**state.observed, name: view}
        factors = _slowdowns(observed)
        best = self._best(factors, state.current)
        if view.contended:
            reason = f"{name} still takes {exp(view.mean):.2f} times its time: next probe after {gap} inferences"
            return self._decide(State(state.current, observed), probed.number, "stay away", best, reason, factors)
        reason = f"{name} is free again: {exp(view.mean):.2f} times its time"
        return self._decide(State(state.current, observed), probed.number, "return", best, reason, factors)

    def _schedule_probe(self, state: State, number: int, factors: Mapping[str, float]) -> tuple[State, PlanDecision | None]:
        """Count down to probes of unused processors that would change the plan if they were free; run one probe at a time."""
        if state.probed is not None:
            return state, None
        used = self.alternatives[state.current].computing_ms
        observed, probe_processor = dict(state.observed), None
        for name in factors:
            if used.get(name) or self._best({**factors, name: 1.0}, state.current) == state.current:
                continue
            observed[name] = replace(observed[name], wait=observed[name].wait - 1)
            probe_processor = probe_processor or (name if observed[name].wait <= 0 else None)
        state = replace(state, observed=observed)
        if probe_processor is None:
            return state, None
        using = [alternative for alternative in self.alternatives.values() if alternative.computing_ms.get(probe_processor)]
        fastest = min(using, key=lambda alternative: alternative.expected_ms(factors))
        reason = f"probe of {probe_processor}, which took {factors[probe_processor]:.2f} times its time"
        probe = Probe(probe_processor, fastest.name, fastest.computing_ms[probe_processor])
        return self._decide(replace(state, probed=probe_processor), number, "probe", state.current, reason, factors, probe)

    def _best(self, factors: Mapping[str, float], current: str) -> str:
        """Return the plan to run: the current one unless another saves enough, or only another one meets the deadline."""
        expected = {name: alternative.expected_ms(factors) for name, alternative in self.alternatives.items()}
        limit_ms = inf if self.rules.deadline_ms is None else self.rules.deadline_ms
        meeting_deadline = [name for name, ms in expected.items() if ms <= limit_ms]
        costs = (
            {name: self.alternatives[name].expected_mj(factors) for name in meeting_deadline}
            if self._energy and meeting_deadline
            else expected
        )
        best = min(meeting_deadline or expected, key=lambda name: (costs[name], expected[name]))
        if meeting_deadline and current not in meeting_deadline:
            return best
        return best if costs[best] < (1 - self.rules.gain) * costs[current] else current

    def _explain(self, factors: Mapping[str, float], current: str, best: str) -> str:
        slower = ", ".join(f"{name} takes {factor:.2f} times its time" for name, factor in factors.items())
        current_ms, best_ms = (self.alternatives[name].expected_ms(factors) for name in (current, best))
        text = f"{slower or 'no processor is contended'}: {best_ms:.2f} ms expected instead of {current_ms:.2f} ms"
        if self._energy:
            best_mj, current_mj = (self.alternatives[name].expected_mj(factors) for name in (best, current))
            text += f", {best_mj:.2f} mJ instead of {current_mj:.2f}"
        return text if self.rules.deadline_ms is None else f"{text}, {self.rules.deadline_ms:g} ms allowed"

    def _decide(
        self, state: State, number: int, kind: Kind, best: str, reason: str, factors: Mapping[str, float], probe: Probe | None = None
    ) -> tuple[State, PlanDecision]:
        return replace(state, current=best), PlanDecision(number, kind, state.current, best, reason, dict(factors), probe)


def _slowdowns(observed: Mapping[str, Observation]) -> dict[str, float]:
    """Return the slowdown of each contended processor."""
    return {name: exp(view.mean) for name, view in observed.items() if view.contended}


def _factors(ran: InferenceMeasured) -> dict[str, float]:
    """Return the logarithms of measured over expected times of the processors in use."""
    factors = {name: _factor(ran.measured_ms.get(name, 0.0), expected) for name, expected in ran.expected_ms.items()}
    return {name: factor for name, factor in factors.items() if factor is not None}


def _factor(measured: float, expected: float) -> float | None:
    """Return the logarithm of measured over expected time; None unless both are positive and finite."""
    return log(measured / expected) if 0 < measured < inf and 0 < expected < inf else None
