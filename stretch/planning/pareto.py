"""The front of a network on a device: from what computes what the original computes to what is fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, UsageError
from predictors.graph import OpGraph
from stretch.planning.choose import choose, stretched_space
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.cost.makespan import timeline
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.plan import Asked
from stretch.planning.search.banded import with_exact_kinds, without_stretched
from stretch.planning.search.bounds import loss_of
from stretch.planning.search.exact import Within, search_exact, search_least_loss
from stretch.planning.search.layers import TIE
from stretch.planning.search.measures import told_by
from stretch.planning.search.placing_sides import place_sides
from stretch.planning.search.result import SearchResult
from stretch.planning.search.seams import without_seams
from stretch.planning.search.space import DesignSpace
from stretch.planning.sentences import Mention, Sentence

#: What latency may be weighed against.
Against = Literal["agreement", "accuracy", "macs"]


@dataclass(frozen=True)
class FrontDesign:
    """One design of a front.

    Args:
        design: The design.
        ms: Predicted makespan.
        loss: What it is predicted to lose, in the terms of what accuracy is predicted from; None where nothing predicts it.
        optimal: Whether no design of the space is faster and loses as little.
        n_meet: Meeting points where branches join.
        exact: Whether it computes what the original computes.
    """

    design: BranchDesign
    ms: float
    loss: float | None
    optimal: bool
    n_meet: int
    exact: bool


@dataclass(frozen=True)
class Front:
    """Designs none of which is better than another in both of what is weighed.

    Args:
        against: What latency is weighed against.
        designs: From the slowest to the fastest.
        asked: The request, checked, with what it is answered from.
        space_log10: Decimal logarithm of the number of designs.
        evaluated: Ways whose cost was computed.
    """

    against: Against
    designs: tuple[FrontDesign, ...]
    asked: Asked
    space_log10: float
    evaluated: int


def front(
    graph: OpGraph,
    device: DeviceProfile,
    config: PlanConfig,
    against: Against,
    count: int,
    accuracy_source: AccuracySource | None = None,
) -> Front:
    """Designs from the one that loses least to the fastest.

    Each is the fastest one within a bound on what is weighed against latency, by the exact search;
    the bounds lie evenly between the ends. A design that may lose nothing need not branch: where one
    processor alone is fastest, that is the end of the front.

    Args:
        graph: The original network.
        device: The device's profile.
        config: What is asked for.
        against: What latency is weighed against.
        count: Designs, at most.
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.

    Raises:
        UsageError: If the request makes no sense, or nothing predicts the accuracy.
        InfeasibleError: If no design meets the constraints.
    """
    asked = Asked.of(graph, device, config, accuracy_source)
    source, checked = asked.accuracy_source, asked.config
    _check(against, checked, source)
    space = _space(asked, source)
    search = _Levels(asked, space, against, source)
    found = search.found(count)
    if not found:
        # the planner's own refusal names the tightest rule
        choose(asked.trunk, replace(checked, min_accuracy=None, min_agreement=None), asked.costs, asked.stages, source)
        raise InfeasibleError(f"no design of `{graph.name}` meets the constraints")
    designs = tuple(_designed(asked, each, source) for each in _undominated(found, search.lost))
    return Front(against, designs, asked, space.size_log10, max(each.evaluated for each in found))


def _check(against: Against, config: PlanConfig, source: AccuracySource | None) -> None:
    """Refuse what cannot be weighed.

    Raises:
        UsageError: If so.
    """
    wanted = {"agreement": "min_agreement", "accuracy": "min_accuracy"}.get(against)
    if wanted is not None and (source is None or source.option != wanted):
        what = "agreement" if against == "agreement" else "top-1"
        raise UsageError(
            f"nothing predicts the {what} of designs",
            Sentence(
                "give {} or {}, or ask for {}", Mention("images", "DIR"), Mention("accuracy", "FILE"), Mention("pareto", "latency,macs")
            ),
        )
    if config.strategy != "exact" or config.widens or config.params is not None:
        raise UsageError(
            "fronts are searched by the exact search, without bounds on parameters and without joins that widen the trunk",
            Sentence("leave out {}, {} and {}", Mention("strategy"), Mention("join"), Mention("params")),
        )


def _space(asked: Asked, source: AccuracySource | None) -> DesignSpace:
    """All designs of a request, merged stages among them wherever what they lose is known or nobody asks."""
    config = asked.config
    free = config.merge == "auto" and not config.meet and (source is None or source.merges)
    space = stretched_space(asked.trunk, config, asked.costs, asked.stages, merged=config.merge == "always" or free)
    return space if set(config.planned_kinds) == {"stretch"} else with_exact_kinds(asked.trunk, config, space)


@dataclass(frozen=True)
class _Levels:
    """The fastest designs within bounds on what is weighed against latency.

    Args:
        asked: The request, checked.
        space: Its designs.
        against: What is weighed.
        source: What predicts the accuracy, if anything does.
    """

    asked: Asked
    space: DesignSpace
    against: Against
    source: AccuracySource | None

    def losses(self, options: Ways) -> NDArray[np.float64]:
        """What each option of a segment adds to what is weighed."""
        if self.against == "macs":
            found: NDArray[np.float64] = options.macs / self.asked.graph.macs
            return found
        assert self.source is not None
        return self.source.losses(options)

    def lost(self, found: SearchResult) -> float:
        """What a design adds up to."""
        return sum(float(self.losses(options)[index]) for options, index in found.picks)

    def found(self, count: int) -> list[SearchResult]:
        """Designs at both ends and between."""
        low, high = self.asked.macs
        n_meet = self.asked.config.n_meet
        fastest = search_exact(self.space, low, high, n_meet)
        if fastest is None:
            return []
        end = self._least(low, high)
        between = [
            search_exact(self.space, low, high, n_meet, within=Within(told_by(self.losses), most))
            for most in self._bounds(self.lost(end), self.lost(fastest), count)
        ]
        return [end, *(each for each in between if each is not None), fastest]

    def _least(self, low: int, high: int) -> SearchResult:
        """The fastest design that computes what the original computes, branched or not; where that is out of the range, the one that loses least."""
        if self.against != "macs":
            same = search_exact(without_stretched(self.space), low, high, 0)
            if same is not None:
                return same
        n_meet = self.asked.config.n_meet
        least = search_least_loss(self.space, low, high, n_meet, self.losses)
        assert least is not None, "there is a design, or this is not asked"
        return search_exact(self.space, low, high, n_meet, within=Within(told_by(self.losses), self.lost(least))) or least

    def _bounds(self, least: float, most: float, count: int) -> list[float]:
        """Bounds between two ends, even in what people read: accuracy, not loss."""
        if most <= least or count < 3:
            return []
        if self.source is None or self.against == "macs":
            return [float(x) for x in np.linspace(least, most, count)[1:-1]]
        ends = self.source.value(least), self.source.value(most)
        return [self.source.most_loss(float(value)) for value in np.linspace(*ends, count)[1:-1]]


def _undominated(found: Sequence[SearchResult], lost: Callable[[SearchResult], float]) -> list[SearchResult]:
    """The designs than which none is as fast and loses as little, from the slowest to the fastest."""
    kept: list[SearchResult] = []
    for each in sorted(found, key=lambda one: (one.ms, lost(one))):
        if not kept or lost(each) < lost(kept[-1]) - TIE:
            kept.append(each)
    return kept[::-1]


def _designed(asked: Asked, found: SearchResult, source: AccuracySource | None) -> FrontDesign:
    parts = without_seams(asked.trunk, asked.stages, found.segments(asked.costs))
    design = place_sides(asked.graph, BranchDesign(asked.graph.name, asked.device.id, parts), asked.costs, asked.config.processors)
    ms = timeline(asked.graph, design, asked.costs).makespan_ms if design.sides else found.ms
    loss = None if source is None else loss_of(found, source)
    return FrontDesign(design, ms, loss, found.optimal, design.n_meet, all(o.exact or not o.branched for o, _ in found.picks))
