"""Advice on whether to branch a network, for each of many devices, from the planner's results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.devices import ITEM_BYTES, DeviceProfile, Precision
from predictors.errors import InfeasibleError, UsageError
from predictors.graph import OpGraph
from predictors.host import HOST, is_host
from predictors.models.roofline import MEASURED
from predictors.predictor import Estimate, LatencyPredictor, origin_of
from scheduler.progress import Progress, silent
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import (
    BRANCHED,
    MIN_GAIN,
    NO_CLEAR_WINNER,
    ControlComparison,
    baseline,
    draw_factors,
    interval,
    recommend_among,
    single_run,
)
from stretch.planning.cost.makespan import HANDOVER_SHARE, computing_spans, parallel_ms
from stretch.planning.messages import command_line, format_value
from stretch.planning.network.segments import components
from stretch.planning.plan import MERGED_OPTIONS, PlanningProblem, choose, choose_merged, predict
from stretch.planning.result import PlanResult, Shortened, ranked_singles

#: Kinds of branches, in recommendations and in the JSON.
EXACT, STRETCHED = "exact", "stretched"

#: The control that needs training, as stretched branches do.
RETRAINED_BASELINE = "sequential_same_macs"

#: Names of precisions, the widest first.
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")


class SingleAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The original on the fastest single processor."""

    processor: str  # Name of the processor, with its core set if this is not the default.
    precision: str  # Precision of the run.
    ms: float  # Predicted time, transfers of input and output included.
    low_ms: float  # Lower end of the 90 % interval of the time.
    high_ms: float  # Upper end.


class BranchesAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The best branches of one kind."""

    ms: float  # Their predicted makespan.
    speedup: float  # Time of the best single processor over the makespan.
    low: float  # Lower end of the 90 % interval of the speed-up.
    high: float  # Upper end.
    processors: list[str]  # Processors of the branches.
    macs_ratio: float  # Multiply-accumulates over the original's, including repeated ones.
    recommended: str  # Recommendation as in the JSON of `stretch branch`: `branched`, a control, or `no clear winner`.
    shortened: Shortened | None  # The original without some blocks, as fast on one processor; None for exact branches.


class DeviceAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one device."""

    device: str  # Id of its profile.
    name: str  # Name of the device.
    calibrated: bool  # Whether the times of all its processors were fitted to measurements on the device.
    advice: str  # The advice, in a few words.
    reason: str  # Reason, in one sentence.
    recommended: str  # ``exact``, ``stretched``, ``single:PROCESSOR`` or `no clear winner`.
    best_single: SingleAdvice  # The original on one processor.
    optional: SingleAdvice | None  # The original on the fastest processor that plans only use on request; None without one.
    exact: BranchesAdvice | None  # Branches that compute exactly the original's output; None if none were planned.
    stretched: BranchesAdvice | None  # Scaled branches, which are another network; None without any.
    exact_at_most: float | None  # Upper bound on the speed-up of exact branches over the best single processor; None with one processor.
    command: str  # Command that reproduces the plan.


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice on one network for many devices; the fields are the keys of `stretch advise --json`."""

    model: str  # Name of the network.
    input: tuple[int, ...]  # Shape of its input, with the batch.
    macs: int  # Multiply-accumulates.
    params: int  # Number of parameters.
    source: str  # Always ``predicted``.
    precision: str | None  # Requested precision; None for each processor's default.
    answers: list[DeviceAdvice]  # The device with the fastest option first.
    warnings: list[str]  # Warnings for the user.

    def __repr__(self) -> str:
        """Return the advice for each device, in one line per device."""
        lines = [f"{answer.device}: {answer.advice}, {_ms(answer):.2f} ms" for answer in self.answers]
        return "\n".join([f"{self.model}: {self.macs / 1e6:.1f} M multiply-accumulates, the fastest device as advised first", *lines])


def advise(
    model: str,
    graph: OpGraph,
    devices: Sequence[DeviceProfile],
    precision: str | None = None,
    *,
    words: Sequence[str] = (),
    progress: Progress = silent,
) -> Advice:
    """Return the advice on a network for each device.

    Exact branches are not searched if `min_divided_ms` shows that they cannot gain `MIN_GAIN`; every other recommendation
    comes from a plan (`stretch.planning.cost.compare.recommend_among`).

    Args:
        model: Name of the model for the commands.
        graph: The network, captured once.
        precision: ``fp32``, ``fp16`` or ``int8``, see `precisions_at`; each processor's default if None.
        words: Options of commands in addition to the model, such as ``--input 3x64x64``.
        progress: Called after each device.

    Raises:
        UsageError: If the precision is unknown, or no device supports it.
    """
    check_precision(devices, precision)
    answers: list[DeviceAdvice] = []
    request: PlanningProblem | None = None
    for device in devices:
        if planned := precisions_at(device, precision):
            answer, request = _on_device((model, *words), graph, device, planned, request)
            answers.append(answer)
        progress(device.id)
    guessed = ", ".join(sorted(answer.device for answer in answers if not answer.calibrated))
    return Advice(
        model=graph.name,
        input=graph.inputs[0].shape,
        macs=graph.macs,
        params=graph.params,
        source="predicted",
        precision=precision,
        answers=sorted(answers, key=lambda answer: (_ms(answer), answer.device)),
        warnings=[f"not fully measured, so times are estimates: {guessed}"] if guessed else [],
    )


def check_precision(devices: Sequence[DeviceProfile], precision: str | None) -> None:
    """Refuse an unknown precision, and a precision that no device supports."""
    if not any(precisions_at(device, precision) for device in devices):
        names = ", ".join(device.id for device in devices)
        raise UsageError(f"no processor of {names} runs in `{precision}` or a wider precision", f"choose {', '.join(PRECISIONS)}")


def precisions_at(device: DeviceProfile, precision: str | None) -> dict[str, Precision]:
    """Return the precision of each processor that supports the requested one or a wider one.

    Args:
        precision: The requested precision; a processor without it uses the next wider one. Each processor's default if None.
    """
    if precision is None:
        return {name: device.processor(name).default_precision for name in device.default_processors}
    if precision not in PRECISIONS:
        raise UsageError(f"`{precision}` is no precision", f"choose {', '.join(PRECISIONS)}")
    result = {}
    for name in device.default_processors:
        wide = [item for item in device.processor(name).precisions if ITEM_BYTES[item] >= ITEM_BYTES[precision]]
        if wide:
            result[name] = min(wide, key=lambda item: ITEM_BYTES[item])
    return result


@dataclass(frozen=True)
class _PlannedKind:
    """A plan with branches of one kind, or the reason why none exists."""

    result: PlanResult | None
    why: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # Planner options of the plan, in addition to its kind.

    @property
    def single(self) -> ControlComparison:
        """Comparison with the best single processor."""
        assert self.result is not None
        return next(control for control in self.result.recommendation.compared if control.name.startswith("single:"))

    @property
    def is_worth_branching(self) -> bool:
        """Whether they are recommended."""
        return self.result is not None and self.result.recommended == BRANCHED

    @property
    def advice(self) -> BranchesAdvice | None:
        """The plan as a record; None without a plan."""
        if self.result is None:
            return None
        return BranchesAdvice(
            ms=self.result.run.makespan_ms,
            speedup=self.single.ratio,
            low=self.single.low,
            high=self.single.high,
            processors=list(self.result.design.processors),
            macs_ratio=self.result.macs_ratio,
            recommended=self.result.recommended,
            shortened=self.result.shortened,
        )


def _on_device(
    model: Sequence[str], graph: OpGraph, device: DeviceProfile, precision: Mapping[str, str], like: PlanningProblem | None
) -> tuple[DeviceAdvice, PlanningProblem | None]:
    """Return the advice for one device, limited to the processors in `precision`, and the last planning problem for reuse."""
    names, defaults = tuple(precision), precisions_at(device, None)
    request = PlanConfig(processors=() if len(names) == len(defaults) else names, precision=dict(precision))
    if len(names) > 1:
        problem = like = PlanningProblem.of(graph, device, msgspec.structs.replace(request, lossless=True), like=like)
        costs = problem.costs
        single = ranked_singles(graph, costs, names)[0]
        at_most = single.ms / min_divided_ms(graph, costs)
        exact = _PlannedKind(None, f"exact branches reach at most {at_most:.2f}x against the {single.processor} alone")
        if at_most >= MIN_GAIN:
            exact = _plan_kind(problem, trained=False)
        # reuse the costs, so that common parts of both kinds are timed once
        stretched = _plan_kind(replace(problem, config=msgspec.structs.replace(request, kinds=("stretch",)).resolve(device)), trained=True)
        recommended, reason = _recommend(exact, stretched, single)
    else:
        costs = Costs(LatencyPredictor(device), precision)
        single, at_most, exact, stretched = ranked_singles(graph, costs, names)[0], None, _PlannedKind(None), _PlannedKind(None)
        why = (
            "its profile has one processor"
            if len(defaults) == 1
            else f"{names[0]} is the only processor with that precision or a wider one"
        )
        recommended, reason = f"single:{single.processor}", why
    run = single_run(single, device)
    low, high = interval(run.drawn_ms(draw_factors(run.unknowns)))
    optional = _optional_processor(graph, device, costs.predictor)
    if optional:
        reason += f"; where an app may use it, the {optional.processor} alone takes {optional.ms:.2f} ms"
    kind = _open_question(exact, stretched) if recommended == NO_CLEAR_WINNER else recommended
    answer = DeviceAdvice(
        device=device.id,
        name=device.name,
        calibrated=all(origin_of(device.processor(name), at) in MEASURED for name, at in precision.items()),
        advice=_advice(recommended, exact, stretched, single),
        reason=reason,
        recommended=recommended,
        best_single=SingleAdvice(processor=single.processor, precision=single.precision, ms=single.ms, low_ms=low, high_ms=high),
        optional=optional,
        exact=exact.advice,
        stretched=stretched.advice,
        exact_at_most=at_most,
        command=_command(model, device, kind, request, single, stretched.options if kind == STRETCHED else {}),
    )
    return answer, like


def _optional_processor(graph: OpGraph, device: DeviceProfile, predictor: LatencyPredictor) -> SingleAdvice | None:
    """Return the estimate on the fastest processor that plans only use on request; None without one."""
    estimates = [predictor.predict(graph, name) for name in device.processors if name not in device.default_processors]
    fastest = min(estimates, key=lambda estimate: estimate.ms, default=None)
    if fastest is None:
        return None
    low, high = fastest.low_ms, fastest.high_ms
    return SingleAdvice(processor=fastest.processor, precision=fastest.precision, ms=fastest.ms, low_ms=low, high_ms=high)


def _plan_kind(planning_problem: PlanningProblem, *, trained: bool) -> _PlannedKind:
    """Return the best branches of a request, or the reason why none exist; `trained` states whether they need training."""
    try:
        choice = choose(planning_problem, explain=False)
    except InfeasibleError as error:
        if not trained:
            return _PlannedKind(None, error.message)
        if seldom := choose_merged(planning_problem):
            return _PlannedKind(predict(seldom.problem, seldom.design, seldom), options=MERGED_OPTIONS)
        return _PlannedKind(None, "no stretched branches meet the constraints")
    return _PlannedKind(predict(choice.problem, choice.design, choice, trained=trained))


def _recommend(exact: _PlannedKind, stretched: _PlannedKind, single: Estimate) -> tuple[str, str]:
    """Return the recommendation, and its reason as a sentence."""
    if exact.result and stretched.result and exact.is_worth_branching and stretched.is_worth_branching:
        # training is worth it if stretched branches beat the exact branches by the rule for controls
        runs = stretched.result.predicted_run, exact.result.predicted_run
        beaten = recommend_among(runs[0], {EXACT: runs[1]}, draw_factors(runs[0].unknowns | runs[1].unknowns)) == BRANCHED
        kind = STRETCHED if beaten else EXACT
    elif exact.is_worth_branching or stretched.is_worth_branching:
        kind = EXACT if exact.is_worth_branching else STRETCHED
    else:
        return _without_branches(exact, stretched, single)
    if kind == EXACT:
        return EXACT, f"{_gain(EXACT, exact)}, and they compute what the original computes{_rounding(exact)}"
    alternative = f"exact ones {exact.single.ratio:.2f}x" if exact.result else exact.why
    trained = "and faster than every baseline, but need training"
    if stretched.result and (shortened := stretched.result.shortened):
        alternative += f"; {shortened.summary}, its loss unknown"
    return STRETCHED, f"{_gain(STRETCHED, stretched)}, {trained}; {alternative}"


def _without_branches(exact: _PlannedKind, stretched: _PlannedKind, single: Estimate) -> tuple[str, str]:
    """Return the recommendation without recommended branches, and its reason as a sentence."""
    kinds = {EXACT: exact, STRETCHED: stretched}
    if kind := _open_question(exact, stretched):
        result = kinds[kind].result
        assert result is not None
        closest = min(result.recommendation.beatable, key=lambda control: control.probability)
        answer = f"{_gain(kind, kinds[kind])}, and {closest.ratio:.2f}x against the baseline {baseline(closest.name)} ({closest.low:.2f} to {closest.high:.2f})"
        return NO_CLEAR_WINNER, f"{answer}; the result depends most on {closest.measure or 'unknown numbers'}"
    parts = []
    for kind, item in kinds.items():
        if item.result is None:
            parts.append(item.why)
            continue
        parts.append(f"{kind} branches are predicted to be {item.single.ratio:.2f}x against the {single.processor} alone")
        if sequential := next(
            (control for control in item.result.recommendation.beatable if control.name == RETRAINED_BASELINE and control.ratio < 1), None
        ):
            parts[-1] += f", and {sequential.ratio:.2f}x against a plain sequential network of the same cost"
    return f"single:{single.processor}", "; ".join(parts)


def _open_question(exact: _PlannedKind, stretched: _PlannedKind) -> str | None:
    """Return the kind of branches with the largest predicted speed-up among those too close to call; None without any."""
    kinds = {kind: item.result for kind, item in ((EXACT, exact), (STRETCHED, stretched))}
    gains = {kind: result.speedup for kind, result in kinds.items() if result and result.recommended == NO_CLEAR_WINNER}
    return max(gains, key=lambda kind: gains[kind], default=None)


def _gain(kind: str, planned: _PlannedKind) -> str:
    """Return a text on the speed-up of branches over the best single processor."""
    assert planned.result is not None
    control, processor, run = planned.single, planned.result.best_single.processor, planned.result.run
    handed_on = parallel_ms(computing_spans(run)) <= HANDOVER_SHARE * run.makespan_ms
    return (
        f"{kind} branches on {' and '.join(planned.result.design.processors)} are predicted to be {control.ratio:.2f}x against "
        f"the {processor} alone (90 % interval {control.low:.2f} to {control.high:.2f})"
        + (", though parts run one after the other, each where it is fast" if handed_on else "")
    )


def _rounding(planned: _PlannedKind) -> str:
    rounds = planned.result.rounding if planned.result else []
    return f" (rounded in {' and '.join(rounds)})" if rounds else ""


def _advice(recommended: str, exact: _PlannedKind, stretched: _PlannedKind, single: Estimate) -> str:
    """Return the advice, in a few words."""
    for kind, planned, words in ((EXACT, exact, "split exactly over"), (STRETCHED, stretched, "stretch and train over")):
        if recommended == kind and planned.result:
            return f"{words} {' and '.join(planned.result.design.processors)}"
    alone = f"use the {single.processor} ({single.precision})"
    return f"too close to call; {alone} until you have measured the device" if recommended == NO_CLEAR_WINNER else alone


def _command(
    model: Sequence[str], device: DeviceProfile, kind: str | None, request: PlanConfig, single: Estimate, more: Mapping[str, Any]
) -> str:
    """Return the command that plans branches of a kind, or predicts one processor."""
    where = (*model, "--device", device.cli_name)
    if kind not in (EXACT, STRETCHED):
        return command_line("predict", *where, "--processor", single.processor, "--precision", single.precision)
    processors = ("--processors", format_value(request.processors)) if request.processors else ()
    kinds = ("--lossless",) if kind == EXACT else ("--kinds", "stretch")
    settings = [word for name, value in more.items() for word in ("--set", f"{name}={format_value(value)}")]
    return command_line("branch", *where, *processors, *kinds, "--precision", format_value(request.precision), *settings)


def _ms(answer: DeviceAdvice) -> float:
    """Return the time on a device that follows the advice, ms."""
    branches = {EXACT: answer.exact, STRETCHED: answer.stretched}.get(answer.recommended)
    return branches.ms if branches else answer.best_single.ms


#: Ratios of two processors' times at which the bound is evaluated; fewer make it looser, never wrong.
MAX_RATIOS = 48


def min_divided_ms(graph: OpGraph, costs: Costs) -> float:
    """Return a lower bound, ms, on the makespan of every exact division of a network over several processors; infinite for one processor.

    The processors may share each group of operators that no kernel spans in any proportion and order, without halo, join or
    contention. Transfers only cost the fixed time of each link, there and back, and the host adds its constant per inference. The bound
    holds if a part of a kernel takes at least
    its share of the kernel's time. This is a linear program: minimise T where the shares s of each group k add up to 1
    and each processor p ends in time, Σₖ sₚₖ tₚₖ + eₚ ≤ T. Any weights λ of the processors that add up to 1 yield the lower bound
    Σₖ minₚ λₚ tₚₖ + Σₚ λₚ eₚ; the result is the maximum over some weights.
    """
    names = tuple(costs.precision)
    launched = {name: costs.predictor.kernels(graph, name) for name in names}
    groups = components((op.name for op in graph.ops), [kernel.ops for kernels in launched.values() for kernel in kernels])
    times = np.ascontiguousarray(costs.group_times(launched, groups)[0].T)
    exchange = np.array([0.0 if is_host(p) else costs.transfer(HOST, p, 0) + costs.transfer(p, HOST, 0) for p in names])
    subsets = [list(subset) for count in range(2, len(names) + 1) for subset in combinations(range(len(names)), count)]
    return costs.handover(costs.host).ms + min(
        (_min_divided_ms(times[subset], exchange[subset]) for subset in subsets), default=float("inf")
    )


def _min_divided_ms(times: NDArray[np.float64], exchange: NDArray[np.float64]) -> float:
    """Return the bound for processors that all take part, ms; `times` are (processors × groups)."""
    busy = times[:, (times > 0).all(axis=0)]  # a group that takes no time on one processor adds nothing
    if not busy.size:
        return float(exchange.max())
    # the bound is piecewise linear in the weights, with bends where two processors take equally long for a group
    ratios = [np.unique(np.quantile(busy[0] / row, np.linspace(0, 1, MAX_RATIOS), method="nearest")) for row in busy[1:]]
    weights = np.array([(1.0, *item) for item in product(*ratios)])
    weights /= weights.sum(axis=1, keepdims=True)
    total = (weights[:, :, None] * busy).min(axis=1).sum(axis=1) + weights @ exchange
    return float(max(total.max(), exchange.max()))
