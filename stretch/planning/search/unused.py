"""Why a processor that a design may use is not used: the rule that keeps it out, and what using it would cost."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.search import search_exact
from stretch.planning.search.choose import Choice, macs_range
from stretch.planning.search.space import DesignSpace, Options


@dataclass(frozen=True)
class Unused:
    """A processor without work.

    Args:
        processor: Which.
        ms: The fastest design within the constraints that uses it, ms; None if there is none, or it was not searched for.
        best_ms: The design that was chosen, ms.
        rule: The rule that no branch on it meets, with the nearest any comes to it; empty if some branch meets them all.
    """

    processor: str
    ms: float | None
    best_ms: float
    rule: str

    def __str__(self) -> str:
        """One sentence."""
        reasons = []
        if self.ms is not None:
            reasons.append(f"the fastest design that uses it is predicted to take {self.ms:.2f} ms, {self.best_ms:.2f} ms without")
        if self.rule:
            reasons.append(self.rule)
        return f"the {self.processor} is not used: {'; '.join(reasons) or 'no design within the constraints uses it'}"

    def to_json(self) -> dict[str, Any]:
        """For the command line's JSON."""
        return {"processor": self.processor, "ms": self.ms, "best_ms": self.best_ms, "rule": self.rule or None, "reason": str(self)}


def unused_processors(graph: OpGraph, config: PlanConfig, choice: Choice, used: Sequence[str]) -> tuple[Unused, ...]:
    """Every processor of the request that a design leaves out.

    Args:
        graph: The original network.
        config: The request, checked.
        choice: The design, with the space it was chosen from.
        used: Its processors.
    """
    idle = [name for name in config.processors if name not in used]
    # Other searches choose from other designs: theirs cannot be compared with the fastest of these.
    comparable = config.strategy == "exact" and config.join != "concat" and config.params is None and config.objective == "latency"
    return tuple(
        Unused(name, _fastest_with(graph, config, choice, name) if comparable else None, choice.found.ms, _rule(choice.space, name, config))
        for name in idle
    )


def _fastest_with(graph: OpGraph, config: PlanConfig, choice: Choice, processor: str) -> float | None:
    """The fastest design that uses a processor: each segment in turn has to."""
    low, high = macs_range(graph, config)
    found = []
    for i, options in enumerate(choice.space.options):
        using = [group for group in options if processor in group.processors]
        if not using:
            continue
        forced = copy(choice.space)
        # nor may merged stages from further up take the place of this segment
        forced.options = [
            using if j == i else [o for o in other if j > i or j + o.span <= i] for j, other in enumerate(choice.space.options)
        ]
        best = search_exact(forced, low, high, choice.n_meet)
        if best is not None:
            found.append(best.ms)
    return min(found, default=None)


def _rule(space: DesignSpace, processor: str, config: PlanConfig) -> str:
    """The rule that every branch on a processor breaks, in words."""
    groups = [o for options in space.options for o in options if processor in o.processors and len(o.candidates) > 1]
    if not groups:
        return "no segment can branch to it"
    if any(group.allowed.any() for group in groups):
        return ""
    nearest = _nearest(space, groups)
    limits = {
        "--alpha": (config.alpha, "an exchange takes {:.2g} of the segment at best, at most {:g} is allowed"),
        "--beta": (
            config.beta,
            "the slowest branch takes {:.2g} times the segment on the fastest processor at best, at most {:g} is allowed",
        ),
        "--balance": (config.balance, "the fastest branch takes {:.2g} of the slowest at best, at least {:g} is asked for"),
        "--segment-macs": (config.segment_macs, "a branched segment has {:.2g} of the original's MACs at best, at least {:g} is asked for"),
    }
    for flag, (limit, words) in limits.items():
        value = nearest[flag]
        if (value > limit) if flag in ("--alpha", "--beta") else (value < limit):
            return f"no branch on it meets {flag}: {words.format(value, limit)}"
    return f"no branch on it meets {', '.join(limits)} all at once"


def _nearest(space: DesignSpace, groups: Sequence[Options]) -> dict[str, float]:
    """How near any combination comes to each rule by itself."""
    base = [space.fastest(group.segment) for group in groups]
    return {
        "--alpha": min(float(np.min(g.exchange_ms)) / ms for g, ms in zip(groups, base, strict=True)),
        "--beta": min(float(np.min(g.slowest_ms)) / ms for g, ms in zip(groups, base, strict=True)),
        "--balance": max(float(np.max(g.fastest_ms / g.slowest_ms)) for g in groups),
        "--segment-macs": max(float(np.max(g.macs)) / g.segment.graph.macs for g in groups),
    }
