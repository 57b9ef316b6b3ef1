"""Why a processor that a design may use is not used: the rule that keeps it out, and what using it would cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from predictors.graph import OpGraph
from stretch.planning.answer import UnusedProcessor
from stretch.planning.choose import Choice, macs_range
from stretch.planning.config import PlanConfig
from stretch.planning.search.exact import search_exact
from stretch.planning.search.space import DesignSpace
from stretch.planning.sentences import Mention, Sentence, Spelling, spelled


@dataclass(frozen=True)
class Unused:
    """A processor without work."""

    processor: str  # Which.
    ms: float | None  # The fastest design within the constraints that uses it, ms; None if there is none, or it was not searched for.
    best_ms: float  # The design that was chosen, ms.
    rule: str  # The rule that no branch on it meets, with the nearest any comes to it; empty if some branch meets them all.

    @property
    def sentence(self) -> str:
        """Why, for people."""
        reasons = []
        if self.ms is not None:
            reasons.append(f"the fastest design that uses it is predicted to take {self.ms:.2f} ms, {self.best_ms:.2f} ms without")
        if self.rule:
            reasons.append(self.rule)
        reasons = reasons or ["no design within the constraints uses it"]
        return Sentence(f"the {{}} is not used: {'; '.join('{}' for _ in reasons)}", self.processor, *reasons)

    def answer(self, spelling: Spelling) -> UnusedProcessor:
        """As plain data, its sentences as one edge writes options."""
        rule = spelled(self.rule, spelling) if self.rule else None
        return UnusedProcessor(
            processor=self.processor, ms=self.ms, best_ms=self.best_ms, rule=rule, reason=spelled(self.sentence, spelling)
        )


def unused_processors(graph: OpGraph, config: PlanConfig, choice: Choice, used: Sequence[str]) -> tuple[Unused, ...]:
    """Every processor of the request that a design leaves out."""
    idle = [name for name in config.processors if name not in used]
    # Other searches choose from other designs: theirs cannot be compared with the fastest of these.
    free = config.params is None and config.min_accuracy is None and config.min_agreement is None and config.objective == "latency"
    comparable = config.strategy == "exact" and not config.widens and free
    return tuple(
        Unused(name, _fastest_with(graph, config, choice, name) if comparable else None, choice.found.ms, _rule(choice.space, name))
        for name in idle
    )


def _fastest_with(graph: OpGraph, config: PlanConfig, choice: Choice, processor: str) -> float | None:
    """The fastest design that uses a processor."""
    best = search_exact(choice.space, *macs_range(graph, config), choice.n_meet, using=processor)
    return None if best is None else best.ms


def _rule(space: DesignSpace, processor: str) -> str:
    """The rule that every branch on a processor breaks, in words."""
    groups = [ways for options in space.options for ways in options if processor in ways.processors and ways.branched]
    if not groups:
        return "no segment can branch to it"
    if any(group.allowed.any() for group in groups):
        return ""
    base = [space.alone_ms(group) for group in groups]
    for constraint, value in space.rules.asked:
        bound = [(group, ms) for group, ms in zip(groups, base, strict=True) if constraint.exact or not group.exact]
        why = constraint.missed(value, [group for group, _ in bound], [ms for _, ms in bound]) if bound else None
        if why is not None:
            return Sentence("no branch on it meets {}: {}", Mention(constraint.option.name), why)
    single = [Mention(each.option.name) for each, value in space.rules.asked if each.mask(value, groups[0], base[0]) is not None]
    return Sentence(f"no branch on it meets {', '.join('{}' for _ in single)} all at once", *single)
