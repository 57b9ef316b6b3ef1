"""Decide a design: search, controls, recommendation (paper 003, section 4)."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from pathlib import Path

import msgspec

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.predictor import LatencyPredictor, not_measured
from predictors.rewrites import changing, exact
from predictors.rewrites.grouped import GROUPED, is_grouped
from predictors.rows import height
from stretch.planning.choose import Choice, choose, macs_range
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.cost.accuracy_file import load_accuracy
from stretch.planning.cost.ahead import ahead
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import BRANCHED, LEAST_GAIN, NO_CLEAR_WINNER, Rival
from stretch.planning.cost.makespan import ideal_split_ms, timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.backbone import backbone_of
from stretch.planning.network.segments import Segment, mixing, split_segments
from stretch.planning.result import PlanResult, UnusedProcessor
from stretch.planning.search.controls import best_single, ranked_singles, sequential_same_macs
from stretch.planning.search.exact import search_exact
from stretch.planning.search.merging import without_seams
from stretch.planning.search.placing import place_sides
from stretch.planning.search.rules import Rules
from stretch.planning.search.space import DesignSpace
from stretch.planning.sentences import Mention, Sentence, chance

#: Kinds of opaque operators that are named.
MOST_NAMED = 6


def _measure(rival: Rival) -> str:
    """What to measure to know better which of two runs is faster."""
    return f"what decides most is {rival.measure}: measure that next" if rival.measure else "nothing of the two is uncertain"


def _alone(result: PlanResult) -> str:
    """That one processor is far ahead, and how fast the others would have to be."""
    outcome = result.ahead
    pays = f"the others would have to be {outcome.crossover:.3g} times as fast for that to pay" if outcome.crossover else "that never pays"
    return (
        f"use {outcome.processor} alone, it is far ahead: it takes {result.best_single.ms:.2f} ms for `{result.graph.name}`, of which it computes "
        f"for {outcome.alone_ms:.2f} ms; divided without any loss, meeting once on the way, computing would take {outcome.divided_ms:.2f} ms; {pays}"
    )


def _undivided(result: PlanResult) -> str | None:
    """Which operators keep blocks from being split by rows; None where none does."""
    undivided: dict[str, list[str]] = {}
    for stage in result.stages:
        tall = [i for i, op in enumerate(stage.graph.ops) if height(op.shape) > 1]
        order = {op.name: i for i, op in enumerate(stage.graph.ops)}
        # what is behind the last tensor with rows divides nothing that is left to divide
        for kind in dict.fromkeys(stage.graph.by_name[name].kind for name in mixing(stage.graph) if order[name] < tall[-1]):
            undivided.setdefault(kind, []).append(stage.name)
    if not undivided:
        return None
    where = ", ".join(f"`{kind}` in {', '.join(stages)}" for kind, stages in undivided.items())
    return f"blocks around operators that need every row of what they read are not split by rows: {where}"


def _opaque(result: PlanResult) -> str | None:
    """How many operators no family describes, and which; None where there is none."""
    graph = result.graph
    names = Counter(str(op.attrs["variant"]) for op in graph.ops if op.kind == "opaque")
    if not names:
        return None
    listed = ", ".join(f"{count} `{name}`" for name, count in names.most_common(MOST_NAMED))
    more = f" and {len(names) - MOST_NAMED} other kinds" if len(names) > MOST_NAMED else ""
    return (
        f"{names.total()} of the {len(graph.ops)} operators are computed by torch's own: {listed}{more}; their channels stay as they are, "
        "and their times are estimated from their sizes alone"
    )


def _rewritten(result: PlanResult) -> str | None:
    """Which operators have others in their place, and where; None where none has."""
    rewritten: dict[str, list[str]] = {}
    for part in result.design.segments:
        for branch in part.branches:
            for name in changing(branch.rewrites):
                rewritten.setdefault(name, []).append(branch.processor)
    if not rewritten:
        return None
    text = ", ".join(f"{name} on {' and '.join(dict.fromkeys(places))}" for name, places in rewritten.items())
    return (
        f"operators of scaled branches have others in their place: {text}; part of the speed-up is theirs, the best single processor runs "
        "the original's"
    )


def _in_parts(result: PlanResult) -> str | None:
    """Where operators run in parts that compute the same; None where none does."""
    branches = [branch for part in result.design.segments for branch in part.branches if set(branch.rewrites) & set(exact)]
    if not branches:
        return None
    where = " and ".join(dict.fromkeys(branch.processor for branch in branches))
    return f"grouped convolutions on {where} run in parts, a convolution for each group, and compute the same"


def _unsupported(result: PlanResult) -> str | None:
    """Which operators of the network processors leave to the CPU; None where there is none."""
    there = {op.kind for op in result.graph.ops}
    named = {name: result.device.processor(name).profile.unsupported for name in result.config.processors}
    unsupported = {name: [kind for kind in kinds if kind in there] for name, kinds in named.items()}
    left = scaled_graph(result.graph, result.design) if any(GROUPED in kinds for kinds in named.values()) else None
    for name, kinds in named.items():
        if GROUPED in kinds and left is not None and any(is_grouped(left, op) and op.tags.get("processor") == name for op in left.ops):
            unsupported[name] = [*unsupported[name], GROUPED]
    text = "; ".join(f"{name} lacks {', '.join(f'`{kind}`' for kind in kinds)}" for name, kinds in unsupported.items() if kinds)
    return f"{text}: the CPU computes them, and times count the exchange there and back" if text else None


def warnings_of(result: PlanResult, low: int, high: int) -> tuple[str, ...]:
    """Warnings for a plan.

    Args:
        low: Fewest multiply-accumulates that were asked for.
    """
    warnings = []
    if opaque := _opaque(result):
        warnings.append(opaque)
    warnings += [value for value in (_rewritten(result), _in_parts(result), _unsupported(result)) if value]
    guessed = not_measured(result.device.id, ((f"{name} in {precision}", origin) for (name, precision), origin in result.origins.items()))
    if guessed:
        warnings.append(guessed)
    once = result.run.macs - result.run.repeated_macs
    if not low <= once <= high:
        warnings.append(
            f"the design has {once / result.graph.macs:.3f} of the original's multiply-accumulates, outside {result.config.macs[0]:g} to {result.config.macs[1]:g}"
        )
    merged = [result.stages_of(row.segment) for row in result.run.segments if len(row.branches) > 1 and not join_of(row.design.join).exact]
    names = [f"{stages[0].name} to {stages[-1].name}" for stages in merged if len(stages) > 1]
    known = result.accuracy is not None and result.accuracy.basis == "sensitivity"
    if names and not known:
        warnings.append(
            f"stages are merged ({', '.join(names)}), so branches meet less often: fewer meeting points lower the accuracy "
            "(NN-Stretch, MobiSys 2023, table 3), by how much is known less well than for branches that meet after every stage"
        )
    if "rows" in result.config.planned_kinds and (why := _undivided(result)):
        warnings.append(why)
    if result.design.n_meet == 0:
        warnings.append("no segment of the design has more than one branch: nothing runs side by side")
    if result.recommended.startswith("single:") and result.ahead.far:
        warnings.append(_alone(result))
    elif result.recommended == NO_CLEAR_WINNER:
        near = min(result.recommendation.beatable, key=lambda rival: rival.probability)
        warnings.append(
            f"{NO_CLEAR_WINNER}: `{near.name}` is predicted to take {near.ms:.2f} ms, the branched model {result.run.makespan_ms:.2f} ms, "
            f"and their ratio lies between {near.low:.2f} and {near.high:.2f} with a probability of 0.9; {_measure(near)}"
        )
    elif result.recommended != BRANCHED:
        rival = next(rival for rival in result.recommendation.rivals if rival.name == result.recommended)
        if rival.ratio < 1:
            said = (
                f"`{rival.name}` is predicted to be faster than the branched model, with a probability of {chance(1 - rival.probability)}"
            )
        else:
            gain = f"less than the {LEAST_GAIN - 1:.0%} that branches are to gain"
            said = f"use `{rival.name}`: the branched model is predicted to be {rival.ratio:.3f} times as fast, {gain}"
        warnings.append(f"{said}; {_measure(rival)}")
    return tuple(warnings)


def plan(
    graph: OpGraph, device: DeviceProfile, config: PlanConfig | None = None, accuracy_source: AccuracySource | None = None
) -> PlanResult:
    """The fastest design that meets the constraints, and its controls.

    Args:
        config: What is asked for; defaults if None.
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.
    """
    request = config or PlanConfig()
    query = PlanningProblem.of(graph, device, request, accuracy_source)
    query, choice, instead = _choice(query, request)
    result = designed(query, choice)
    outcome, design = choice.result, result.design
    unused = unused_processors(query.backbone, query.config, choice, design.processors)
    if query.config.best_in.tried and query.config.strategy != "evolve":
        said = "the objective `{}` does not add up over segments: {} designs were tried, as with {}, and none is proved best"
        instead = (*instead, Sentence(said, query.config.objective, str(outcome.evaluated), Mention("strategy", "evolve")))
    faster = _in_default_precisions(query, request) if query.config.exact and design.n_meet else None
    more = (*([faster] if faster else []), *(item.reason for item in unused))
    return replace(result, unused=unused, warnings=(*instead, *_warnings(query, result), *more))


def designed(problem: "PlanningProblem", choice: Choice, *, trained: bool = True) -> PlanResult:
    """The prediction and controls of a design that was searched for, without warnings.

    Args:
        choice: Of `stretch.planning.choose.choose` for the same request.
        trained: Whether the sequential network of the same cost, which would have to be trained, is among the controls.
    """
    result = choice.result
    parts = without_seams(problem.backbone, problem.stages, result.segments(problem.costs))
    design = place_sides(
        problem.graph, BranchDesign(problem.graph.name, problem.device.id, parts), problem.costs, problem.config.processors
    )
    tried = problem.config.tries
    search = _Search(
        result.optimal and not tried, None if tried or isnan(result.gap) else result.gap, result.evaluated, choice.space.size_log10
    )
    return _compare(problem, design, search, trained=trained)


def _in_default_precisions(problem: "PlanningProblem", request: PlanConfig) -> Sentence | None:
    """What int8 would change of an exact request that names no precisions; None where the profile's own are planned already."""
    device = problem.device
    names = request.processors or tuple(device.processors)
    usual = {name: device.processor(name).default_precision for name in names}
    if request.precision or usual == problem.config.precision or "int8" not in usual.values():
        return None
    planned = ", ".join(f"{name} {at}" for name, at in problem.config.precision.items())
    mention = Mention("precision", {name: at for name, at in usual.items() if at == "int8"})
    rounds = "int8 rounds, and its ranges are found on images"
    other = PlanningProblem.of(
        problem.graph, device, msgspec.structs.replace(problem.config, processors=names, precision=usual, min_width=request.min_width)
    )
    alone = ranked_singles(other.graph, other.costs, other.config.processors)[0]
    try:
        result = choose(other.backbone, other.config, other.costs, other.stages, None, explain=False).result
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
        planned, mention, f"{result.ms:.2f}", f"{alone.ms / result.ms:.2f}", alone.processor, f"{alone.ms:.2f}", rounds,
    )  # fmt: skip


def _choice(problem: "PlanningProblem", request: PlanConfig) -> tuple["PlanningProblem", Choice, tuple[Sentence, ...]]:
    """The best design, and what to say of it: an exact one where no rule that was asked for rules out the stretched ones, else a whole one."""
    # as a request without a word is completed for these processors
    usual = PlanConfig(processors=problem.config.processors).checked(problem.device)
    explained = problem.config != usual or not problem.far_ahead
    try:
        return (
            problem,
            choose(problem.backbone, problem.config, problem.costs, problem.stages, problem.accuracy_source, explain=explained),
            (),
        )
    except InfeasibleError as error:
        refused, config = error, problem.config
    current = any(rule.value != getattr(usual, rule.rule) for rule in refused.rules)
    if current or config.kinds or config.lossless or config.accuracy or config.widens or config.strategy != usual.strategy:
        raise refused
    exact = PlanningProblem.of(problem.graph, problem.device, msgspec.structs.replace(request, lossless=True, processors=config.processors))
    divided = Sentence("{}: the network is divided exactly instead, as with {}", refused.message, Mention("lossless"))
    instead = [(exact, divided)]
    if config.n_meet == usual.n_meet:
        whole = Sentence("{}, not even exactly: the network stays whole", refused.message)
        instead.append((replace(exact, config=msgspec.structs.replace(exact.config, n_meet=0)), whole))
    for other, said in instead:
        with suppress(InfeasibleError):
            return other, choose(other.backbone, other.config, other.costs, other.stages, None), (said,)
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
    query = PlanningProblem.of(graph, device, request, accuracy_source)
    result = _compare(query, design, _Search())
    return replace(result, warnings=_warnings(query, result))


@dataclass(frozen=True)
class PlanningProblem:
    """A request with what it is answered from."""

    graph: OpGraph  # The original network.
    device: DeviceProfile  # The device's profile.
    config: PlanConfig  # The request, checked.
    stages: tuple[Segment, ...]  # The network's segments between its own meeting points, or those asked for.
    costs: Costs  # On the device, in the planned precisions.
    accuracy_source: AccuracySource | None  # What predicts the accuracy of designs, where the request has one.

    @cached_property
    def backbone(self) -> OpGraph:
        """What is searched for a design: the network, or of one with several inputs or outputs its backbone."""
        return backbone_of(self.graph).graph

    @property
    def far_ahead(self) -> bool:
        """Whether one processor is so far ahead that it is best used alone."""
        predictor, precision = self.costs.predictor, self.config.precision
        best = min(precision.items(), key=lambda item: predictor.predict(self.graph, *item).computing_ms)
        return ahead(self.graph, predictor, precision, best).far

    @property
    def macs(self) -> tuple[int, int]:
        """Fewest and most multiply-accumulates of a design of the backbone."""
        return macs_range(self.backbone, self.config)

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        device: DeviceProfile,
        config: PlanConfig,
        accuracy_source: AccuracySource | None = None,
        like: "PlanningProblem | None" = None,
    ) -> "PlanningProblem":
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


def _compare(problem: PlanningProblem, design: BranchDesign, search: _Search, *, trained: bool = True) -> PlanResult:
    """A design beside its controls."""
    graph, config, costs, accuracy_source = problem.graph, problem.config, problem.costs, problem.accuracy_source
    singles = ranked_singles(graph, costs, config.processors)
    return PlanResult(
        graph,
        costs,
        config,
        design,
        problem.stages,
        timeline(graph, design, costs),
        singles[0],
        sequential_same_macs(graph, problem.stages, costs, singles, Rules.of(config), problem.macs) if trained else None,
        best_single(scaled_graph(graph, design), costs, config.processors),
        ideal_split_ms(graph, config.processors, costs.predictor, config.precision),
        search.optimal,
        search.gap,
        search.evaluated,
        search.space_log10,
        accuracy_source.answer(graph, design) if accuracy_source is not None else None,
    )


def _warnings(problem: PlanningProblem, result: PlanResult) -> tuple[str, ...]:
    """What a person should know of a plan."""
    low, high = problem.macs
    beside = problem.graph.macs - problem.backbone.macs
    return warnings_of(result, low + beside, high + beside)


def unused_processors(graph: OpGraph, config: PlanConfig, choice: Choice, used: Sequence[str]) -> tuple[UnusedProcessor, ...]:
    """Every processor of the request that a design leaves out."""
    idle = [name for name in config.processors if name not in used]
    # Other searches choose from other designs: theirs cannot be compared with the fastest of these.
    free = config.params is None and config.min_accuracy is None and config.min_agreement is None and config.objective == "latency"
    comparable = config.strategy == "exact" and not config.widens and free
    return tuple(
        _unused(name, _fastest_with(graph, config, choice, name) if comparable else None, choice.result.ms, _rule(choice.space, name))
        for name in idle
    )


def _unused(processor: str, ms: float | None, best_ms: float, rule: str) -> UnusedProcessor:
    """A processor without work, and why in a sentence."""
    reasons = []
    if ms is not None:
        reasons.append(f"the fastest design that uses it is predicted to take {ms:.2f} ms, {best_ms:.2f} ms without")
    if rule:
        reasons.append(rule)
    reasons = reasons or ["no design within the constraints uses it"]
    reason = Sentence(f"the {{}} is not used: {'; '.join('{}' for _ in reasons)}", processor, *reasons)
    return UnusedProcessor(processor=processor, ms=ms, best_ms=best_ms, rule=rule or None, reason=reason)


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
    for constraint, value in space.rules.active:
        bound = [(group, ms) for group, ms in zip(groups, base, strict=True) if constraint.exact or not group.exact]
        why = constraint.missed(value, [group for group, _ in bound], [ms for _, ms in bound]) if bound else None
        if why is not None:
            return Sentence("no branch on it meets {}: {}", Mention(constraint.option.name), why)
    single = [Mention(item.option.name) for item, value in space.rules.active if item.mask(value, groups[0], base[0]) is not None]
    return Sentence(f"no branch on it meets {', '.join('{}' for _ in single)} all at once", *single)
