"""Terminal output of a plan: table of segments and branches, timeline as text bars, figures and controls."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from scheduler.bundle.agreement import Agreement
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER
from stretch.planning.result import BranchAnswer, ObjectiveAnswer, PlanAnswer, Predicted, SegmentAnswer, exact_words
from stretch.planning.sentences import chance
from stretch.report.fit import Fitting, column, plain_table

if TYPE_CHECKING:
    from stretch.api.branched import BranchedAnswer

#: Display names of controls.
CONTROLS = {
    "sequential_same_macs": "plain sequential network of the same MACs",
    "single": "original on {} alone",
    "whole_graph": "branched network as one graph on {}",
}
#: Characters of the widest timeline bar.
BAR_WIDTH = 72
_LEAST_BAR = 20


def design_table(plan: PlanAnswer) -> Fitting:
    """Segments × branches of a plan, in fewer columns where the terminal is narrow."""
    return Fitting([lambda: _wide(plan), lambda: _narrow(plan), lambda: _stacked(plan)])


def _wide(plan: PlanAnswer) -> Table:
    table = _scales()
    for title in ("entry", "join"):
        column(table, title)
    for title in ("MMACs", "predicted ms"):
        column(table, title, right=True)
    for segment, i, branch in _branches(plan):
        table.add_row(
            *_scale(plan, segment, i, branch),
            branch.entry if branch.entry != "none" else "",
            _join(branch),
            *_costs(branch),
        )
    return table


def _scales() -> Table:
    """A table with the columns of `_scale`."""
    table = plain_table()
    for title in ("segment", "shape", "processor"):
        column(table, title)
    for title in ("depth", "width"):
        column(table, title, right=True)
    return table


def _scale(plan: PlanAnswer, segment: SegmentAnswer, i: int, branch: BranchAnswer) -> tuple[str, ...]:
    """Where a branch is and how deep and wide; the segment is named at its first branch."""
    return (
        segment.name if i == 0 else "",
        _shape(segment) if i == 0 else "",
        _processor(plan, branch),
        f"{branch.depth}/{segment.depth}",
        f"{branch.width}/{segment.width}",
    )


def _narrow(plan: PlanAnswer) -> Table:
    """Entry and join in one column, and short headings."""
    table = _scales()
    column(table, "join")
    for title in ("MMACs", "ms"):
        column(table, title, right=True)
    for segment, i, branch in _branches(plan):
        table.add_row(
            *_scale(plan, segment, i, branch),
            "+".join(kind for kind in (branch.entry if branch.entry != "none" else "", _join(branch)) if kind),
            *_costs(branch),
        )
    return table


def _stacked(plan: PlanAnswer) -> Table:
    """A line for each segment, and its branches under it."""
    table = plain_table()
    column(table, "segment, processors", fold=True)
    for title in ("depth", "width"):
        column(table, title, right=True)
    for title in ("MMACs", "ms"):
        column(table, title, right=True)
    for segment, i, branch in _branches(plan):
        if i == 0:
            table.add_row(f"{segment.name} {_shape(segment)}")
        kinds = " ".join(f"{what} {kind}" for what, kind in (("entry", branch.entry), ("join", _join(branch))) if kind not in ("none", ""))
        table.add_row(
            f"  {_processor(plan, branch)}{f', {kinds}' if kinds else ''}",
            f"{branch.depth}/{segment.depth}",
            f"{branch.width}/{segment.width}",
            *_costs(branch),
        )
    return table


def _branches(plan: PlanAnswer) -> Iterator[tuple[SegmentAnswer, int, BranchAnswer]]:
    for segment in plan.segments:
        for i, branch in enumerate(segment.branches):
            yield segment, i, branch


def _join(branch: BranchAnswer) -> str:
    """How a branch meets the others, and which rows, paths or channels it computes, as in ``rows 0:28``."""
    part = branch.rows or branch.paths or branch.channels
    if part is not None:
        return f"{branch.join} {part[0]}:{part[1]}"
    return branch.join if branch.join != "none" else ""


def _shape(segment: SegmentAnswer) -> str:
    return "×".join(str(n) for n in segment.shape[1:])


def _processor(plan: PlanAnswer, branch: BranchAnswer) -> str:
    return f"{branch.processor} {plan.precision.get(branch.processor, '')}".rstrip()


def _costs(branch: BranchAnswer) -> tuple[str, str]:
    return f"{branch.macs / 1e6:.1f}", f"{branch.predicted_ms:.2f}"


class Timeline:
    """`timeline_bars` as wide as the terminal allows.

    Args:
        plan: The planner's answer.
    """

    def __init__(self, plan: PlanAnswer) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines."""
        label = max(len(name) for name in _processors(self._plan))
        width = max(_LEAST_BAR, min(BAR_WIDTH, options.max_width - label - 3))
        yield from (Text(line) for line in timeline_bars(self._plan, width))


def timeline_bars(plan: PlanAnswer, width: int = BAR_WIDTH) -> list[str]:
    """One line of text per processor: when it computes (#), moves data (~) or waits (.)."""
    total = plan.predicted.makespan_ms
    processors = _processors(plan)
    rows = {p: ["."] * width for p in processors}
    marks = [" "] * width
    for segment in plan.segments:
        start = segment.start_ms
        _write(marks, round(start / total * width), segment.name)
        for branch in segment.branches:
            at = start + branch.start_ms
            for kind, ms in (
                ("~", branch.in_ms),
                ("#", branch.predicted_ms + branch.contention_ms),
                ("~", branch.out_ms),
            ):
                for at_column in range(round(at / total * width), min(width, round((at + ms) / total * width))):
                    rows[branch.processor][at_column] = kind
                at += ms
    for side in plan.sides:
        at = side.start_ms
        for kind, ms in (("~", side.in_ms), ("#", side.predicted_ms), ("~", side.out_ms)):
            for at_column in range(round(at / total * width), min(width, round((at + ms) / total * width))):
                rows[side.processor][at_column] = kind
            at += ms
    label = max(len(p) for p in processors)
    lines = [f"{p:<{label}} |{''.join(row)}|" for p, row in rows.items()]
    lines.append(f"{'':<{label}}  {''.join(marks)}".rstrip())
    lines.append(f"{'':<{label}}  # computes  ~ moves data  . waits; the whole is {total:.2f} ms")
    return lines


def _processors(plan: PlanAnswer) -> list[str]:
    """Processors of a plan, in the order of their first use."""
    return list(dict.fromkeys((*(b.processor for s in plan.segments for b in s.branches), *(side.processor for side in plan.sides))))


def _write(row: list[str], at: int, text: str) -> None:
    """Write a label where it neither leaves the row nor touches the one before."""
    if at + len(text) > len(row) or any(c != " " for c in row[max(0, at - 1) : at + len(text)]):
        return
    row[at : at + len(text)] = text


def figures(plan: PlanAnswer) -> list[tuple[str, str]]:
    """Predictions of the plan and its controls, as label and value."""
    predicted = plan.predicted
    makespan = predicted.makespan_ms

    def control(ms: float | None, name: str | None) -> str:
        if ms is None:
            return "none meets the constraints"
        return f"{ms:.2f} ms on {name}" if name else f"{ms:.2f} ms"

    precision = predicted.best_single_precision
    single = predicted.best_single_processor + (f" ({precision})" if precision else "")
    rows = [
        ("MACs", f"{plan.macs / 1e6:.1f} M, {plan.macs_ratio:.3f} of the original"),
        ("computes", _computes(plan)),
        ("parameters", f"{plan.params / 1e6:.2f} M, {_share(plan.params_ratio)}"),
        ("meeting points", str(plan.n_meet)),
        (
            "makespan",
            f"{makespan:.2f} ms ({predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f} with a probability of 0.9), "
            f"{predicted.speedup:.2f}× the best single processor ({predicted.source})",
        ),
        ("best single processor", control(predicted.best_single_ms, single)),
        (
            "sequential, same MACs",
            control(predicted.sequential_same_macs_ms, predicted.sequential_same_macs_processor)
            + (", to be trained" if plan.exact else ""),
        ),
        ("branched net as one graph", control(predicted.whole_graph_ms, predicted.whole_graph_processor)),
        ("operators split", control(predicted.operator_split_ms, None)),
        ("ideal split", f"{predicted.ideal_split_ms:.2f} ms, of which the makespan reaches {predicted.ideal_fraction:.2f}"),
        *([("best in", _best_in(plan.objective))] if plan.objective.asked != "latency" else []),
        ("search", _search(plan)),
        *([("accuracy", _accuracy(plan.accuracy))] if plan.accuracy else []),
        ("with other links", _links(predicted)),
        *([("energy", _energy(predicted))] if predicted.energy_mj else []),
        ("faster than all of these", _probability(predicted)),
        ("recommended", plan.recommended),
        *([("recommended instead", changed)] if (changed := _changes(plan)) else []),
        *([("branching pays", pays)] if (pays := _pays(predicted)) else []),
    ]
    return rows


def _pays(predicted: Predicted) -> str | None:
    """How fast the other processors would have to be; None where that is not known, or they are."""
    if predicted.crossover:
        return f"where all others are {predicted.crossover:.2f} times as fast"
    if predicted.far_ahead and predicted.crossover_divided:
        return f"where all others are at least {predicted.crossover_divided:.3g} times as fast"
    return None


def _computes(plan: PlanAnswer) -> str:
    """Whether the output is the original's, and what that costs twice."""
    twice = f", {plan.repeated:.1%} of its MACs twice" if plan.repeated else ""
    twice += f", halos {plan.halo_ms:.2f} ms of its branches together" if plan.halo else ""
    return f"{f'what the original computes, {exact_words(plan.rounding)}' if plan.exact else 'another network than the original'}{twice}"


def _energy(predicted: Predicted) -> str:
    """Of the branches and of what they are compared with, and which states of processors are counted."""
    single, same = predicted.best_single_energy_mj, predicted.sequential_same_macs_energy_mj
    counted = {part.state for part in predicted.energy if part.mj is not None}
    states = {"busy": "compute", "waiting": "wait", "idle": "have no work"}
    return (
        f"{predicted.energy_mj:.0f} mJ while processors {' or '.join(word for state, word in states.items() if state in counted)}"
        + (f", {single:.0f} mJ on the best single processor" if single else "")
        + (f", {same:.0f} mJ of the sequential network" if same else "")
    )


def _links(predicted: Predicted) -> str:
    """The design at the ends of what the profile says that transfers may take."""
    rows = [row for row in predicted.links if row.factor != 1]
    return ", ".join(
        f"{row.makespan_ms:.2f} ms" + (f" ({row.speedup:.2f}×)" if row.speedup else "") + f" at {row.factor:g} times their time"
        for row in rows
    )


def _probability(predicted: Predicted) -> str:
    sure = f"with a probability of {chance(predicted.probability_faster['all'])}"
    return sure + (f"; measure next: {predicted.measure_next}" if predicted.measure_next else "")


def _changes(plan: PlanAnswer) -> str:
    """What would be recommended where numbers of the profile are half or twice of what it says, if that is something else."""
    return "; ".join(
        f"{row.recommended} with {row.numbers} {'halved' if row.factor < 1 else 'doubled'}"
        for row in plan.predicted.changes
        if row.recommended != plan.recommended
    )


def _share(ratio: float | None) -> str:
    return "of which the original has none" if ratio is None else f"{ratio:.3f} of the original"


def _accuracy(accuracy: PredictedAccuracy) -> str:
    ranked = "" if accuracy.rank_correlation is None else f", rank correlation {accuracy.rank_correlation:.2f}"
    if accuracy.agreement is not None:
        between = f" ({accuracy.low:.1%} to {accuracy.high:.1%})" if accuracy.low is not None and accuracy.low != accuracy.high else ""
        return f"the original's class in {accuracy.agreement:.1%}{between} ({accuracy.source} from single segments{ranked})"
    error = "" if accuracy.rmse is None else f", error {accuracy.rmse:.2%}"
    return f"{accuracy.top1:.2%} ({accuracy.source} from subnets{ranked}{error})"


def _best_in(objective: ObjectiveAnswer) -> str:
    """Objective of the design, and its value."""
    if objective.value is None:
        return objective.asked
    value = f"{objective.value:.3g}" if objective.unit else f"{objective.value:.4g}"
    return f"{objective.asked}: {value} {objective.unit}".rstrip()


def _search(plan: PlanAnswer) -> str:
    predicted, latency = plan.predicted, plan.objective.asked == "latency"
    size = "" if plan.space_log10 is None else f", of 10^{plan.space_log10:.1f}"
    if predicted.optimal:
        return f"no design of the space is {'faster' if latency else 'better'}{size}"
    if predicted.gap is not None:
        return f"at most {predicted.gap * 100:.2f} % {'slower' if latency else 'worse'} than the best{size}"
    if plan.objective.strategy == "evolve":
        return f"the best of {plan.evaluated} designs that were tried{size}"
    return "not searched for optimality"


def control_words(name: str) -> str:
    """Display name of a control."""
    kind, _, where = name.partition(":")
    return CONTROLS.get(kind, name).format(where)


def headline(plan: "BranchedAnswer") -> str:
    """Recommendation and written files."""
    predicted = plan.predicted
    gain = f"{predicted.speedup:.2f}× the best single processor"
    if plan.recommended == BRANCHED:
        said = f"recommended: the branches, {gain}"
    elif plan.recommended == NO_CLEAR_WINNER:
        said = f"no clear winner: the branches are predicted at {gain}, and the numbers of the device are too uncertain"
    else:
        ms = next((rival.ms for rival in plan.comparisons if rival.name == plan.recommended), predicted.best_single_ms)
        said = f"recommended: the {control_words(plan.recommended)}, {ms:.2f} ms; the branches take {predicted.makespan_ms:.2f} ms"
    if plan.withheld:
        return f"{said}; nothing was written, --anyway writes the branches all the same"
    return f"{said}; the branches were written" if plan.written else said


def plan_report(plan: PlanAnswer) -> RenderableType:
    """Table, timeline and figures, one under the other."""
    summary = Table(box=None, pad_edge=False, show_header=False)
    summary.add_column(no_wrap=True)
    summary.add_column()
    for label, value in figures(plan):
        summary.add_row(label, value)
    sides = (Text(""), sides_table(plan)) if plan.sides else ()
    parts: Sequence[RenderableType] = (design_table(plan), *sides, Text(""), Timeline(plan), Text(""), summary)
    return Group(*parts)


def sides_table(plan: PlanAnswer) -> Fitting:
    """The parts beside the backbone, in fewer columns where the terminal is narrow."""
    return Fitting([lambda: _sides(plan, tensors=True), lambda: _sides(plan, tensors=False)])


def _sides(plan: PlanAnswer, *, tensors: bool) -> Table:
    table = plain_table()
    for title in ("beside", "processor", *(("reads", "writes") if tensors else ())):
        column(table, title)
    for title in ("operators", "MMACs", "predicted ms"):
        column(table, title, right=True)
    for side in plan.sides:
        where = f"{side.processor} {plan.precision.get(side.processor, '')}".rstrip()
        named = (_first(side.reads), _first(side.writes)) if tensors else ()
        table.add_row(side.name, where, *named, str(side.operators), f"{side.macs / 1e6:.1f}", f"{side.predicted_ms:.2f}")
    return table


def _first(names: Sequence[str]) -> str:
    """The first of some tensors, and how many there are besides."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def print_plan(console: Console, plan: PlanAnswer) -> None:
    """Print `plan_report` on a console."""
    console.print(plan_report(plan))


def agreement_lines(agreement: Agreement) -> Iterator[str]:
    """Agreement of a network with its original: in fp32, with the files of its bundle, and by segment, one line each."""
    if agreement.value is None:
        if agreement.classes:
            several = f"{agreement.classes} classes" if agreement.classes > 1 else "one class"
            yield f"the original answers {several} for these images, nearly always the same: no agreement is given"
        yield f"measured on {agreement.images} images held back: error of the outputs {agreement.error:.3f} of the original's"
    else:
        of = f", one of {agreement.classes} that it answers," if agreement.classes else ""
        yield (
            f"measured on {agreement.images} images held back: the original's class{of} in {agreement.value:.1%} ({agreement.low:.1%} to {agreement.high:.1%}), "
            f"error of the scores {agreement.error:.3f} of the original's"
        )
    if (ran := agreement.bundle) is not None:
        where = ", ".join(
            f"{'/'.join(precisions)} on {name} (run here by {ran.delegates[name]})" for name, precisions in ran.precisions.items()
        )
        share = "" if ran.value is None else f"the original's class in {ran.value:.1%} ({ran.low:.1%} to {ran.high:.1%}), "
        yield f"measured with the bundle's files on {ran.images} of them, {where}: {share}error {ran.error:.3f}"
    for segment in agreement.segments:
        if segment.error is not None:
            share = "" if segment.value is None else f"the original's class in {segment.value:.1%}, "
            yield f"  {segment.segment} alone changed: {share}error {segment.error:.3f}"
