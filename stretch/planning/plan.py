"""Decide a design: search, controls, recommendation (paper 003, section 4)."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from pathlib import Path

import msgspec

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from stretch.planning.choose import Choice, choose, macs_range
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.cost.accuracy_file import load_accuracy
from stretch.planning.cost.ahead import ahead
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import ideal_split_ms, timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import Segment, split_segments
from stretch.planning.network.trunk import trunk_of
from stretch.planning.result import PlanResult
from stretch.planning.search.controls import best_single, ranked_singles, sequential_same_macs
from stretch.planning.search.placing_sides import place_sides
from stretch.planning.search.rules import Rules
from stretch.planning.search.seams import without_seams
from stretch.planning.sentences import Mention, Sentence
from stretch.planning.unused import unused_processors
from stretch.planning.warnings import warnings_of


def plan(
    graph: OpGraph, device: DeviceProfile, config: PlanConfig | None = None, accuracy_source: AccuracySource | None = None
) -> PlanResult:
    """The fastest design that meets the constraints, and its controls.

    Args:
        config: What is asked for; defaults if None.
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.
    """
    request = config or PlanConfig()
    asked = Asked.of(graph, device, request, accuracy_source)
    asked, choice, instead = _choice(asked, request)
    result = designed(asked, choice)
    found, design = choice.found, result.design
    unused = unused_processors(asked.trunk, asked.config, choice, design.processors)
    if asked.config.best_in.tried and asked.config.strategy != "evolve":
        said = "the objective `{}` does not add up over segments: {} designs were tried, as with {}, and none is proved best"
        instead = (*instead, Sentence(said, asked.config.objective, str(found.evaluated), Mention("strategy", "evolve")))
    faster = _in_default_precisions(asked, request) if asked.config.exact and design.n_meet else None
    more = (*([faster] if faster else []), *(each.sentence for each in unused))
    return replace(result, unused=unused, warnings=(*instead, *_warnings(asked, result), *more))


def designed(asked: "Asked", choice: Choice, *, trained: bool = True) -> PlanResult:
    """The prediction and controls of a design that was searched for, without warnings.

    Args:
        choice: Of `stretch.planning.choose.choose` for the same request.
        trained: Whether the sequential network of the same cost, which would have to be trained, is among the controls.
    """
    found = choice.found
    parts = without_seams(asked.trunk, asked.stages, found.segments(asked.costs))
    design = place_sides(asked.graph, BranchDesign(asked.graph.name, asked.device.id, parts), asked.costs, asked.config.processors)
    tried = asked.config.tries
    search = _Search(
        found.optimal and not tried, None if tried or isnan(found.gap) else found.gap, found.evaluated, choice.space.size_log10
    )
    return _compare(asked, design, search, trained=trained)


def _in_default_precisions(asked: "Asked", request: PlanConfig) -> Sentence | None:
    """What int8 would change of an exact request that names no precisions; None where the profile's own are planned already."""
    device = asked.device
    names = request.processors or tuple(device.processors)
    usual = {name: device.processor(name).default_precision for name in names}
    if request.precision or usual == asked.config.precision or "int8" not in usual.values():
        return None
    planned = ", ".join(f"{name} {at}" for name, at in asked.config.precision.items())
    mention = Mention("precision", {name: at for name, at in usual.items() if at == "int8"})
    rounds = "int8 rounds, and its ranges are found on images"
    other = Asked.of(
        asked.graph, device, msgspec.structs.replace(asked.config, processors=names, precision=usual, min_width=request.min_width)
    )
    alone = ranked_singles(other.graph, other.costs, other.config.processors)[0]
    try:
        found = choose(other.trunk, other.config, other.costs, other.stages, None, explain=False).found
    except InfeasibleError:
        return Sentence(
            "planned in precisions that need no images ({}); with {} the {} alone takes {} ms, but {}",
            planned,
            mention,
            alone.processor,
            f"{alone.ms:.2f}",
            rounds,
        )
    return Sentence(
        "planned in precisions that need no images ({}); with {} the same request takes {} ms, {} times as fast as the {} alone then ({} ms), but {}",
        planned, mention, f"{found.ms:.2f}", f"{alone.ms / found.ms:.2f}", alone.processor, f"{alone.ms:.2f}", rounds,
    )  # fmt: skip


def _choice(asked: "Asked", request: PlanConfig) -> tuple["Asked", Choice, tuple[Sentence, ...]]:
    """The best design, and what to say of it: an exact one where no rule that was asked for rules out the stretched ones, else a whole one."""
    # as a request without a word is completed for these processors
    usual = PlanConfig(processors=asked.config.processors).checked(asked.device)
    explained = asked.config != usual or not asked.far_ahead
    try:
        return asked, choose(asked.trunk, asked.config, asked.costs, asked.stages, asked.accuracy_source, explain=explained), ()
    except InfeasibleError as error:
        refused, config = error, asked.config
    own = any(rule.value != getattr(usual, rule.rule) for rule in refused.rules)
    if own or config.kinds or config.lossless or config.accuracy or config.widens or config.strategy != usual.strategy:
        raise refused
    exact = Asked.of(asked.graph, asked.device, msgspec.structs.replace(request, lossless=True, processors=config.processors))
    divided = Sentence("{}: the network is divided exactly instead, as with {}", refused.message, Mention("lossless"))
    instead = [(exact, divided)]
    if config.n_meet == usual.n_meet:
        whole = Sentence("{}, not even exactly: the network stays whole", refused.message)
        instead.append((replace(exact, config=msgspec.structs.replace(exact.config, n_meet=0)), whole))
    for other, said in instead:
        with suppress(InfeasibleError):
            return other, choose(other.trunk, other.config, other.costs, other.stages, None), (said,)
    raise refused


def evaluate(
    graph: OpGraph,
    device: DeviceProfile,
    design: BranchDesign,
    config: PlanConfig | None = None,
    accuracy_source: AccuracySource | None = None,
) -> PlanResult:
    """The prediction and controls of a design made elsewhere, such as by hand.

    Constraints are not enforced: what the design breaks stands in `warnings`.

    Args:
        config: Precisions, floors and ranges for the controls; defaults if None.
        accuracy_source: As of `plan`.
    """
    request = config or PlanConfig()
    if not request.processors:
        # A design may keep to one processor; its controls are then found among all of them.
        several = len({device.processor(p).family for p in design.processors}) > 1
        request = msgspec.structs.replace(request, processors=design.processors if several else tuple(device.processors))
    asked = Asked.of(graph, device, request, accuracy_source)
    result = _compare(asked, design, _Search())
    return replace(result, warnings=_warnings(asked, result))


@dataclass(frozen=True)
class Asked:
    """A request with what it is answered from."""

    graph: OpGraph  # The original network.
    device: DeviceProfile  # The device's profile.
    config: PlanConfig  # The request, checked.
    stages: tuple[Segment, ...]  # The network's segments between its own meeting points, or those asked for.
    costs: Costs  # On the device, in the planned precisions.
    accuracy_source: AccuracySource | None  # What predicts the accuracy of designs, where the request has one.

    @cached_property
    def trunk(self) -> OpGraph:
        """What is searched for a design: the network, or of one with several inputs or outputs its trunk."""
        return trunk_of(self.graph).graph

    @property
    def far_ahead(self) -> bool:
        """Whether one processor is so far ahead that it is best used alone."""
        predictor, precision = self.costs.predictor, self.config.precision
        best = min(precision.items(), key=lambda each: predictor.predict(self.graph, *each).computing_ms)
        return ahead(self.graph, predictor, precision, best).far

    @property
    def macs(self) -> tuple[int, int]:
        """Fewest and most multiply-accumulates of a design of the trunk."""
        return macs_range(self.trunk, self.config)

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        device: DeviceProfile,
        config: PlanConfig,
        accuracy_source: AccuracySource | None = None,
        like: "Asked | None" = None,
    ) -> "Asked":
        """A request, checked.

        Args:
            like: One for the same network, on another device or in other precisions, from which what was built is taken.
        """
        checked = config.checked(device)
        if accuracy_source is None and checked.accuracy:
            accuracy_source = load_accuracy(Path(checked.accuracy), graph.name)
        checked.check_source(accuracy_source)
        settings = LatencyPredictor(device), checked.precision, checked.rewrites_on(checked.processors, device)
        if like is not None and like.config.meet == checked.meet:
            return cls(graph, device, checked, like.stages, like.costs.on(*settings), accuracy_source)
        return cls(graph, device, checked, tuple(split_segments(graph, checked.meet or None)), Costs(*settings), accuracy_source)


@dataclass(frozen=True)
class _Search:
    """What is known of how a design was found; by default that it was not searched for."""

    optimal: bool | None = None
    gap: float | None = None
    evaluated: int = 1
    space_log10: float | None = None


def _compare(asked: Asked, design: BranchDesign, search: _Search, *, trained: bool = True) -> PlanResult:
    """A design beside its controls."""
    graph, config, costs, accuracy_source = asked.graph, asked.config, asked.costs, asked.accuracy_source
    singles = ranked_singles(graph, costs, config.processors)
    return PlanResult(
        graph,
        costs,
        config,
        design,
        asked.stages,
        timeline(graph, design, costs),
        singles[0],
        sequential_same_macs(graph, asked.stages, costs, singles, Rules.of(config), asked.macs) if trained else None,
        best_single(scaled_graph(graph, design), costs, config.processors),
        ideal_split_ms(graph, config.processors, costs.predictor, config.precision),
        search.optimal,
        search.gap,
        search.evaluated,
        search.space_log10,
        accuracy_source.answer(graph, design) if accuracy_source is not None else None,
    )


def _warnings(asked: Asked, result: PlanResult) -> tuple[str, ...]:
    """What a person should know of a plan."""
    low, high = asked.macs
    beside = asked.graph.macs - asked.trunk.macs
    return warnings_of(result, low + beside, high + beside)
