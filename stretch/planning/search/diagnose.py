"""Why no design meets the constraints: the tightest rule and the nearest value at which there is one."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor, log10
from typing import Any

import msgspec

from predictors.errors import InfeasibleError, TightRule
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.constraints import Constraint, Limit
from stretch.planning.messages import Message, OptionName
from stretch.planning.search.exact import search_exact
from stretch.planning.search.space import DesignSpace, Rules

#: Bisections for the nearest value of a rule; the last one is exact to 1 in 4 000.
STEPS = 12

Feasible = Callable[[PlanConfig], bool]


@dataclass(frozen=True)
class _Suspect:
    """A number of a request that may be to blame."""

    constraint: Constraint  # The rule.
    limit: Limit  # The number.

    @property
    def name(self) -> str:
        return self.constraint.option.name

    def change(self, config: PlanConfig, number: float) -> PlanConfig:
        return msgspec.structs.replace(config, **{self.name: self.put(config, number)})

    def put(self, config: PlanConfig, number: float) -> Any:
        return self.limit.put(getattr(config, self.name), number)

    def rule(self, config: PlanConfig, nearest: float) -> TightRule:
        return TightRule(self.name, getattr(config, self.name), self.put(config, nearest))


def explain_infeasible(
    graph: OpGraph, space: DesignSpace, config: PlanConfig, build: Callable[[PlanConfig], DesignSpace]
) -> InfeasibleError:
    """The error for a request that no design meets.

    Every rule is dropped alone; of those whose absence helps, the one that needs the smallest relative change is named.
    """
    if not any(segment_options.branched for options in space.options for segment_options in options):
        hint = Message("give other meeting points with {}, or another model", OptionName("meet"))
        return InfeasibleError(f"`{graph.name}` has no segment that can branch", hint)

    def feasible(changed: PlanConfig) -> bool:
        rules = Rules.of(changed)
        other = space.under(rules) if rules.floors == Rules.of(config).floors else build(changed)
        low, high = ceil(changed.macs[0] * graph.macs), floor(changed.macs[1] * graph.macs)
        return search_exact(other, low, high, changed.n_meet) is not None

    can_branch = space.most_meetings
    if 0 < can_branch < config.n_meet and feasible(msgspec.structs.replace(config, n_meet=can_branch)):
        return tightest(graph.name, [TightRule("n_meet", config.n_meet, can_branch)])
    every = [option for options in space.options for option in options]
    suspects = [_Suspect(rule, limit) for rule, value in Rules.of(config).active for limit in rule.limits(value, every)]
    blamed = _blame_one(suspects, config, feasible) or _blame_two(suspects, config, feasible)
    if blamed:
        return tightest(graph.name, blamed)
    hint = Message("give other meeting points with {}, or other processors", OptionName("meet"))
    return InfeasibleError(f"no design of `{graph.name}` meets the constraints, and dropping any two of them does not help", hint)


def _blame_one(suspects: list[_Suspect], config: PlanConfig, feasible: Feasible) -> list[TightRule]:
    """The rule that needs the smallest relative change; none where no rule alone helps."""
    best: tuple[float, TightRule] | None = None
    for suspect in suspects:
        # Lower floors need a larger space; with three processors they are tried only where nothing else helped.
        if best is not None and suspect.constraint.offers and len(config.processors) > 2:
            continue
        if not feasible(suspect.change(config, suspect.limit.loosest)):
            continue
        number = _nearest(suspect, config, feasible)
        change = abs(number - suspect.limit.value) / abs(suspect.limit.value)
        if best is None or change < best[0]:
            best = (change, suspect.rule(config, number))
    return [] if best is None else [best[1]]


def _blame_two(suspects: list[_Suspect], config: PlanConfig, feasible: Feasible) -> list[TightRule]:
    """Two rules that together help where none alone does, with values that work together; none where no two do."""
    for first, second in combinations(suspects, 2):
        without_second = second.change(config, second.limit.loosest)
        if not feasible(first.change(without_second, first.limit.loosest)):
            continue
        one = _nearest(first, without_second, feasible)
        two = _nearest(second, first.change(config, one), feasible)
        if first.name == second.name:
            both = second.change(first.change(config, one), two)
            return [TightRule(first.name, getattr(config, first.name), getattr(both, first.name))]
        return [first.rule(config, one), second.rule(config, two)]
    return []


def _nearest(suspect: _Suspect, config: PlanConfig, feasible: Feasible) -> float:
    """The number nearest to the present one at which there is a design, rounded towards the loose side."""

    def works(number: float) -> bool:
        return feasible(suspect.change(config, number))

    ladder, tight, loose = suspect.limit.ladder, suspect.limit.value, suspect.limit.loosest
    if ladder is not None:
        # the last step is known to work
        return ladder[bisect_left(ladder, True, hi=len(ladder) - 1, key=works)]
    # First by factors of ten, so that bisection starts near the value.
    outward = 10.0 if loose > tight else 0.1
    near = tight * outward
    while (near < loose if loose > tight else near > loose) and not works(near):
        tight, near = near, near * outward
    loose = min(near, loose) if loose > tight else max(near, loose)
    for _ in range(STEPS):
        middle = (tight + loose) / 2
        tight, loose = (tight, middle) if works(middle) else (middle, loose)
    # with four digits, rounded up or down
    scale = 10.0 ** (3 - floor(log10(loose)))
    rounded = (ceil(loose * scale) if loose > suspect.limit.value else floor(loose * scale)) / scale
    return rounded if works(rounded) else loose


# The error for a request that no design meets, as data first and in words last.


def refusal(what: str | Message, rules: Sequence[TightRule]) -> InfeasibleError:
    """The error whose hint names the nearest values with a design; several rules give way together."""
    noun, verb = ("value", "is") if len(rules) == 1 else ("values", "are")
    hint = Message(
        f"the nearest {noun} with a design {verb} {{}}", _listed([OptionName(rule.rule, rule.nearest) for rule in rules], " with ")
    )
    return InfeasibleError(what, hint, rules)


def tightest(model: str, rules: Sequence[TightRule]) -> InfeasibleError:
    """The error that blames the tightest of a request's rules."""
    named = _listed([OptionName(rule.rule, rule.value) for rule in rules], " and ")
    verb = "is" if len(rules) == 1 else "are"
    return refusal(Message(f"no design of `{{}}` meets the constraints; the tightest {verb} {{}}", model, named), rules)


def _listed(mentions: Sequence[OptionName], between: str) -> Message:
    return Message(between.join("{}" for _ in mentions), *mentions)
