"""The best design of a request, and others that differ from it and are nearly as good."""

from dataclasses import dataclass
from math import isnan

from predictors.devices import DeviceProfile
from predictors.errors import UsageError
from predictors.graph import OpGraph
from stretch.planning.choose import choose
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.pareto import FrontDesign, designed
from stretch.planning.plan import Asked
from stretch.planning.search.diverse import diverse_designs
from stretch.planning.search.goal import Goal
from stretch.planning.sentences import Mention, Sentence


@dataclass(frozen=True)
class Several:
    """Designs that differ."""

    designs: tuple[FrontDesign, ...]  # From the best one on.
    values: tuple[float, ...]  # Of each, what it was to be best in.
    optimal: bool  # Whether no design of the space is better than the first one.
    gap: float | None  # How much better one might be, as a fraction; None where not known.
    within: float  # How many times the first one's value the others may have, at most.
    asked: Asked  # The request, checked, with what it is answered from.
    space_log10: float  # Decimal logarithm of the number of designs.
    evaluated: int  # Ways whose cost was computed.


def several(
    graph: OpGraph, device: DeviceProfile, config: PlanConfig, count: int, within: float, accuracy_source: AccuracySource | None = None
) -> Several:
    """The best design and others that differ from it: in the segments that branch, the processors, or the kinds of segments.

    Args:
        within: How many times the best one's value the others may have, at most.
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.
    """
    if not 1 <= within < float("inf"):
        raise UsageError(Sentence("{} {} is not a factor from 1 up", Mention("within"), f"{within:g}"), "write it as 1.2")
    asked = Asked.of(graph, device, config, accuracy_source)
    checked = asked.config
    for name, other in (
        ("objective", not checked.best_in.adds),
        ("strategy", checked.strategy != "exact"),
        ("join", checked.widens),
        ("params", checked.params is not None),
    ):
        if other:
            raise UsageError(
                Sentence("several designs that differ are not searched for with {}", Mention(name, getattr(checked, name))),
                Sentence("leave it out, or plan one design with {}", Mention(name)),
            )
    choice = choose(asked.backbone, checked, asked.costs, asked.stages, asked.accuracy_source)
    goal, space, best = Goal.of(checked.best_in, device, checked.processors), choice.space, choice.found
    found = diverse_designs(space, *asked.macs, choice.n_meet, goal, best, count, within)
    values = tuple(goal.value(space, each.picks) for each in found)
    gap = None if isnan(best.gap) else best.gap
    return Several(
        tuple(designed(asked, each) for each in found), values, best.optimal, gap, within, asked, space.size_log10, best.evaluated
    )
