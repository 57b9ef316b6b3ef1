"""Which plan the next inference runs: a pure function of what the last ones took (paper 003, section 7.4, figure 13).

After each inference the policy hears what every processor took, and what it
was expected to take. The factor between the two is followed by a mean that one
inference cannot move far. A processor that stays above one threshold for some
inferences counts as contended, and as free again once it has stayed below a
lower one for as many. Whenever that changes, or the factor of a contended
processor does, the plan with the least expected time is the one to run.

A processor that the present plan does not use is not seen. So now and then what
another plan has for it runs there, beside the inferences and for nobody: a
probe, which slows none of them. Probes that find the processor contended still
come at twice the distance each time, up to a limit.

There is no clock in here, and nothing of a simulation or a session: both tell
the same events and follow the same decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, isfinite, log
from statistics import median
from typing import Literal, get_args

from predictors.errors import UsageError
from scheduler.adapt.alternatives import Alternative

#: What a decision is: another plan is quicker now; a look at a processor that is not used; what that one saw.
Kind = Literal["move", "probe", "return", "stay away"]

#: What is to be small: an inference's time, its energy, or its energy within a deadline.
Prefer = Literal["latency", "energy", "deadline"]
PREFER = get_args(Prefer)

#: Inferences whose median is what the mean follows: one that is out of line is never the median of three.
_RECENT = 3


@dataclass(frozen=True)
class Rules:
    """When the policy acts.

    Raises:
        UsageError: If a number is out of its range.
    """

    contended: float = 1.5  # Factor on its expected time from which on a processor counts as contended.
    free: float = 1.2  # Factor up to which it counts as free again; below `contended`.
    inferences: int = 2  # How many in a row have to say so.
    weight: float = 0.5  # Of the last inference in the exponential mean, above 0 and at most 1.
    gain: float = 0.05  # Share of the present plan's expected time that another one has to save.
    probe_after: int = 8  # Inferences before the first look at a contended processor that is not used.
    probe_most: int = 64  # What doubling that distance ends at.
    #: ``latency``: the plan with the least expected time. ``energy``: the one whose processors take least for an inference. ``deadline``:
    #: of those that are expected to be over within `deadline_ms` the one that takes least energy, or where no power is known the quickest;
    #: the quickest of all where none is.
    prefer: Prefer = "latency"
    deadline_ms: float | None = None  # Latency allowed, for ``deadline``.

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (isfinite(self.contended) and 1 <= self.free < self.contended):
            raise UsageError(
                f"a processor cannot be contended from {self.contended:g} times its time on and free up to {self.free:g} times",
                "the second is 1 or more, and below the first",
            )
        if not (0 < self.weight <= 1 and 0 <= self.gain < 1):
            raise UsageError(f"a weight of {self.weight:g} or a gain of {self.gain:g} makes no sense", "both are shares")
        if not (self.inferences >= 1 and 1 <= self.probe_after <= self.probe_most):
            raise UsageError("the policy counts inferences from 1 on", "and the least distance of probes is at most the greatest")
        if self.prefer not in PREFER:
            raise UsageError(f"`{self.prefer}` is nothing that a policy prefers", f"one of {', '.join(PREFER)}")
        if (self.deadline_ms is None) == (self.prefer == "deadline"):
            raise UsageError("a deadline belongs to a policy that keeps one", 'write prefer="deadline" and deadline_ms=50')
        if self.deadline_ms is not None and not (isfinite(self.deadline_ms) and self.deadline_ms > 0):
            raise UsageError(f"a deadline of {self.deadline_ms:g} ms makes no sense", "give the milliseconds that an inference may take")


@dataclass(frozen=True)
class Ran:
    """An inference is over."""

    number: int  # Which one.
    alternative: str  # Plan that it ran.
    expected_ms: Mapping[str, float]  # What each processor of that plan computes, as planned.
    measured_ms: Mapping[str, float]  # What it took.


@dataclass(frozen=True)
class Probe:
    """Subgraphs to run for nobody, to see how busy their processor is."""

    processor: str  # The processor.
    alternative: str  # Plan whose subgraphs on it are run, one after the other.
    expected_ms: float  # What they take undisturbed.


@dataclass(frozen=True)
class Probed:
    """A probe is over."""

    number: int  # Inference after which that is told.
    processor: str  # That was looked at.
    expected_ms: float  # What its subgraphs take undisturbed.
    measured_ms: float  # What they took; infinite where they failed.


@dataclass(frozen=True)
class Decision:
    """What the next inference runs, and why."""

    inference: int  # The one after which it was decided.
    kind: Kind  # What it is.
    before: str  # Plan that was run.
    after: str  # Plan to run; the same one while a look is under way, or where it found that it is the right one.
    reason: str  # In words.
    factors: Mapping[str, float]  # What was taken for the factor on each processor's time; those that count as free are left out.
    probe: Probe | None = None  # What to run beside the next inferences, of a ``probe``; `Probed` is to be told of it when it is over.


@dataclass(frozen=True)
class Seen:
    """What is known of a processor."""

    #: Logarithms of the last factors; before the first inference, that all takes what was planned.
    recent: tuple[float, ...] = (0.0,) * (_RECENT - 1)
    mean: float = 0.0  # Their exponential mean, by the median of the last ones.
    contended: bool = False  # Whether it counts as that.
    votes: int = 0  # Inferences in a row that speak for the contrary.
    wait: int = 0  # Inferences until it is looked at, if it is contended and not used.
    gap: int = 0  # How long the next wait is.


@dataclass(frozen=True)
class State:
    """Everything that a policy remembers."""

    present: str  # Plan that the next inference runs.
    seen: Mapping[str, Seen] = field(default_factory=dict)  # By processor; none for those that were never used.
    probed: str | None = None  # Processor that a probe looks at; None if none is under way, or what it sees no longer matters.


class Policy:
    """A choice among alternatives.

    Args:
        alternatives: At least one; the first stays where several take the same time.
        rules: When to act.

    Raises:
        UsageError: If two have one name, or energy is preferred and the power of a processor is not known.
    """

    def __init__(self, alternatives: Sequence[Alternative], rules: Rules | None = None) -> None:
        self.alternatives = {each.name: each for each in alternatives}
        if not alternatives or len(self.alternatives) < len(alternatives):
            raise UsageError("the same plan is given twice", "alternatives are different plans of a network")
        self.rules = rules or Rules()
        missing = [name for each in alternatives for name, ms in each.computing_ms.items() if ms and name not in each.watts]
        if missing and self.rules.prefer == "energy":
            raise UsageError(
                f"nothing says how much power {missing[0]} takes, so the plan of least energy is not known",
                "give the watts of every processor",
            )
        self._energy = not missing and self.rules.prefer != "latency"

    def begin(self) -> State:
        """The state before anything has run: the plan that takes least if nothing is contended."""
        return State(self._best({}, next(iter(self.alternatives))))

    def after(self, state: State, told: Ran | Probed) -> tuple[State, Decision | None]:
        """What follows from an inference, or from a probe.

        Returns:
            The state from now on, and the decision if there is one.
        """
        return self._ran(state, told) if isinstance(told, Ran) else self._probed(state, told)

    def _ran(self, state: State, ran: Ran) -> tuple[State, Decision | None]:
        """What follows from an inference."""
        seen = {**state.seen, **{name: self._looked(state, name, factor) for name, factor in _factors(ran).items()}}
        if ran.alternative != state.present:  # begun before the last decision, which it cannot know of
            return replace(state, seen=seen), None
        factors = _slowed(seen)
        if any(factors.keys() & _factors(ran).keys() - {name for name, each in state.seen.items() if each.contended}):
            # what was known of the others is old, and now it matters again
            seen = {name: self._away(each, 0) if name in factors and name not in _factors(ran) else each for name, each in seen.items()}
        best = self._best(factors, state.present)
        if best != state.present:
            left = {name: self._away(each, self.rules.probe_after) for name, each in seen.items() if name in _factors(ran)}
            reason = self._why(factors, state.present, best)
            return self._decided(State(state.present, {**seen, **left}), ran.number, "move", best, reason, factors)
        return self._watch(replace(state, seen=seen), ran.number, factors)

    def _away(self, seen: Seen, wait: int) -> Seen:
        """A processor as it is if it is not used from now on."""
        return replace(seen, wait=wait, gap=self.rules.probe_after)

    def _looked(self, state: State, name: str, factor: float) -> Seen:
        """What is known of a processor after it was seen once more."""
        before, rules = state.seen.get(name, Seen()), self.rules
        recent = (*before.recent, factor)[-_RECENT:]
        mean = before.mean + rules.weight * (median(recent) - before.mean)
        contrary = mean <= log(rules.free) if before.contended else mean >= log(rules.contended)
        votes = before.votes + 1 if contrary else 0
        found = replace(before, recent=recent, mean=mean, votes=votes)
        if votes < rules.inferences:
            return found
        return self._away(replace(found, votes=0, contended=not before.contended), rules.probe_after)

    def _probed(self, state: State, told: Probed) -> tuple[State, Decision | None]:
        """What follows from a look at a processor; nothing where another plan was taken meanwhile."""
        name = told.processor
        if state.probed != name:
            return state, None
        found = state.seen[name]
        factor = _factor(told.measured_ms, told.expected_ms)
        if factor is not None:  # it was not seen for long: what was known of it counts no more
            found = replace(found, recent=(factor,) * (_RECENT - 1), mean=factor, contended=factor > log(self.rules.free), votes=0)
        if found.contended:
            gap = min(2 * found.gap, self.rules.probe_most)
            found = replace(found, gap=gap, wait=gap)
        seen = {**state.seen, name: found}
        factors = _slowed(seen)
        best = self._best(factors, state.present)
        if found.contended:
            reason = f"{name} still takes {exp(found.mean):.2f} times its time: next look after {gap} inferences"
            return self._decided(State(state.present, seen), told.number, "stay away", best, reason, factors)
        reason = f"{name} is free again: {exp(found.mean):.2f} times its time"
        return self._decided(State(state.present, seen), told.number, "return", best, reason, factors)

    def _watch(self, state: State, number: int, factors: Mapping[str, float]) -> tuple[State, Decision | None]:
        """Come nearer to a look at processors that are not used, if one of them would pay if it was free; one look at a time."""
        if state.probed is not None:
            return state, None
        used = self.alternatives[state.present].computing_ms
        seen, due = dict(state.seen), None
        for name in factors:
            if used.get(name) or self._best({**factors, name: 1.0}, state.present) == state.present:
                continue
            seen[name] = replace(seen[name], wait=seen[name].wait - 1)
            due = due or (name if seen[name].wait <= 0 else None)
        state = replace(state, seen=seen)
        if due is None:
            return state, None
        using = [each for each in self.alternatives.values() if each.computing_ms.get(due)]
        least = min(using, key=lambda each: each.expected_ms(factors))
        reason = f"a look at {due}, which took {factors[due]:.2f} times its time"
        probe = Probe(due, least.name, least.computing_ms[due])
        return self._decided(replace(state, probed=due), number, "probe", state.present, reason, factors, probe)

    def _best(self, factors: Mapping[str, float], present: str) -> str:
        """The plan to run: the present one unless another saves enough, or keeps the deadline where that one does not."""
        expected = {name: each.expected_ms(factors) for name, each in self.alternatives.items()}
        allowed = inf if self.rules.deadline_ms is None else self.rules.deadline_ms
        keeping = [name for name, ms in expected.items() if ms <= allowed]
        costs = {name: self.alternatives[name].expected_mj(factors) for name in keeping} if self._energy and keeping else expected
        least = min(keeping or expected, key=lambda name: (costs[name], expected[name]))
        if keeping and present not in keeping:
            return least
        return least if costs[least] < (1 - self.rules.gain) * costs[present] else present

    def _why(self, factors: Mapping[str, float], present: str, best: str) -> str:
        slower = ", ".join(f"{name} takes {factor:.2f} times its time" for name, factor in factors.items())
        one, other = (self.alternatives[name].expected_ms(factors) for name in (present, best))
        why = f"{slower or 'no processor is contended'}: {other:.2f} ms expected in the place of {one:.2f} ms"
        if self._energy:
            less, more = (self.alternatives[name].expected_mj(factors) for name in (best, present))
            why += f", {less:.2f} mJ in the place of {more:.2f}"
        return why if self.rules.deadline_ms is None else f"{why}, {self.rules.deadline_ms:g} ms allowed"

    def _decided(
        self, state: State, number: int, kind: Kind, best: str, reason: str, factors: Mapping[str, float], probe: Probe | None = None
    ) -> tuple[State, Decision]:
        return replace(state, present=best), Decision(number, kind, state.present, best, reason, dict(factors), probe)


def _slowed(seen: Mapping[str, Seen]) -> dict[str, float]:
    """Factors on the times of processors that are contended."""
    return {name: exp(each.mean) for name, each in seen.items() if each.contended}


def _factors(ran: Ran) -> dict[str, float]:
    """Logarithms of measured over expected times, of processors that took some."""
    found = {name: _factor(ran.measured_ms.get(name, 0.0), expected) for name, expected in ran.expected_ms.items()}
    return {name: factor for name, factor in found.items() if factor is not None}


def _factor(measured: float, expected: float) -> float | None:
    """Logarithm of measured over expected time; None where one of them makes no sense."""
    return log(measured / expected) if 0 < measured < inf and 0 < expected < inf else None
