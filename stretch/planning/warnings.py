"""What a person should know of a plan: one sentence each."""

from collections import Counter

from predictors.joins import join_of
from predictors.predictor import not_measured
from predictors.rewrites import changing, exact
from predictors.rewrites.grouped import GROUPED, is_grouped
from predictors.rows import height
from stretch.planning.cost.compare import BRANCHED, LEAST_GAIN, NO_CLEAR_WINNER, Rival
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.parts import mixing
from stretch.planning.result import PlanResult
from stretch.planning.sentences import chance

#: Kinds of opaque operators that are named.
MOST_NAMED = 6


def _measure(rival: Rival) -> str:
    """What to measure to know better which of two runs is faster."""
    return f"what decides most is {rival.measure}: measure that next" if rival.measure else "nothing of the two is uncertain"


def _alone(result: PlanResult) -> str:
    """That one processor is far ahead, and how fast the others would have to be."""
    found = result.ahead
    pays = f"the others would have to be {found.crossover:.3g} times as fast for that to pay" if found.crossover else "that never pays"
    return (
        f"use {found.processor} alone, it is far ahead: it takes {result.best_single.ms:.2f} ms for `{result.graph.name}`, of which it computes "
        f"for {found.alone_ms:.2f} ms; divided without any loss, meeting once on the way, computing would take {found.divided_ms:.2f} ms; {pays}"
    )


def _undivided(result: PlanResult) -> str | None:
    """Which operators keep blocks from being split by rows; None where none does."""
    found: dict[str, list[str]] = {}
    for stage in result.stages:
        tall = [i for i, op in enumerate(stage.graph.ops) if height(op.shape) > 1]
        order = {op.name: i for i, op in enumerate(stage.graph.ops)}
        # what is behind the last tensor with rows divides nothing that is left to divide
        for kind in dict.fromkeys(stage.graph.by_name[name].kind for name in mixing(stage.graph) if order[name] < tall[-1]):
            found.setdefault(kind, []).append(stage.name)
    if not found:
        return None
    where = ", ".join(f"`{kind}` in {', '.join(stages)}" for kind, stages in found.items())
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
    found: dict[str, list[str]] = {}
    for part in result.design.segments:
        for branch in part.branches:
            for name in changing(branch.rewrites):
                found.setdefault(name, []).append(branch.processor)
    if not found:
        return None
    told = ", ".join(f"{name} on {' and '.join(dict.fromkeys(places))}" for name, places in found.items())
    return (
        f"operators of scaled branches have others in their place: {told}; part of the speed-up is theirs, the best single processor runs "
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
    found = {name: [kind for kind in kinds if kind in there] for name, kinds in named.items()}
    left = scaled_graph(result.graph, result.design) if any(GROUPED in kinds for kinds in named.values()) else None
    for name, kinds in named.items():
        if GROUPED in kinds and left is not None and any(is_grouped(left, op) and op.tags.get("processor") == name for op in left.ops):
            found[name] = [*found[name], GROUPED]
    told = "; ".join(f"{name} lacks {', '.join(f'`{kind}`' for kind in kinds)}" for name, kinds in found.items() if kinds)
    return f"{told}: the CPU computes them, and times count the exchange there and back" if told else None


def warnings_of(result: PlanResult, low: int, high: int) -> tuple[str, ...]:
    """Warnings for a plan.

    Args:
        low: Fewest multiply-accumulates that were asked for.
    """
    warnings = []
    if opaque := _opaque(result):
        warnings.append(opaque)
    warnings += [told for told in (_rewritten(result), _in_parts(result), _unsupported(result)) if told]
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
