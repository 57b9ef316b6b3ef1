"""The report of `stretch branch`: a plan, what it was compared with, how certain that is, and what was built and measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictors.models.roofline import ORIGINS
from scheduler.bundle.agreement import Agreement
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.compare import BRANCHED, CONTENTION, LEAST_GAIN, NO_CLEAR_WINNER
from stretch.planning.cost.makespan import HANDED_ON, together_ms
from stretch.planning.messages import chance, command_line
from stretch.planning.result import BranchAnswer, ObjectiveAnswer, PlanAnswer, Predicted, SideAnswer
from stretch.report.brief import UNJUDGED, plan_brief
from stretch.report.html.page import (
    Bar,
    Chart,
    ChartInterval,
    Fact,
    Grid,
    Page,
    Section,
    Stretched,
    intervals,
    spread,
    stretched_rows,
    timeline,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from predictors.models.roofline import Origin
    from stretch.stages.design import BranchedAnswer
    from stretch.transform.refine import Refined

#: What to say of a design whose processors hardly compute at once.
HAND_ON = "Parts of the network run one after the other, each where it is fast"

#: Figures that a page shows first.
_FIRST = ("makespan", "best single processor", "sequential, same MACs", "MACs", "computes", "faster than all of these")

#: Display names of controls.
CONTROLS = {
    "sequential_same_macs": "sequential network of the same MACs",
    "single": "original on {} alone",
    "whole_graph": "branched network as one graph on {}",
    NO_CLEAR_WINNER: "too close to call",
}


def exact_words(rounding: Sequence[str]) -> str:
    """In which precision an exact design is the original, and which planned precisions round."""
    return "exact in fp32" + (f"; {' and '.join(rounding)} {'round' if len(rounding) > 1 else 'rounds'}" if rounding else "")


def _exact(plan: PlanAnswer) -> str:
    """What the output of an exact design is, and what that was compared with."""
    return f"what the original computes, {exact_words(plan.rounding)}" + (f"; {UNJUDGED}" if getattr(plan, "unjudged", False) else "")


def plan_page(
    plan: "PlanAnswer | BranchedAnswer",
    *,
    origins: "dict[tuple[str, str], Origin]",
    roofline: "Callable[[], tuple[str, Figure]] | None" = None,
    following: Sequence[str] = (),
) -> Page:
    """The report of a plan, or of what was built after it; `following` are commands to type next."""
    weights, bundle = getattr(plan, "weights", None), getattr(plan, "bundle", None)
    source = "" if weights is None else weights.source + (f" ({weights.detail})" if weights.detail else "")
    sections = [_network(plan), Section("segments", "Segments in numbers", (), _segments(plan)), _timeline(plan)]
    sections += [controls_section(plan), certainty_section(plan), accuracy_section(plan)]
    if roofline is not None:
        words, figure = roofline()
        drawn = Chart("roofline", "The original's kernels on the best single processor", words, lambda: figure)
        sections.append(Section("kernels", "Kernels under the roofline", (), [drawn], printed=False))
    numbers = figures(plan)
    everything = Grid("What is predicted, and of what it is compared with", ("figure", "value"), numbers, folded=True)
    return Page(
        title=f"{plan.model} on {plan.device}",
        lead=[headline(plan), *instead(plan), _lead(plan), *([f"weights: {source}"] if source else [])],
        facts=[Fact(label, value) for label, value in numbers if label in _FIRST],
        facts_printed=False,
        sections=[*sections, Section("figures", "All figures", (), [everything])],
        warnings=plan.warnings,
        source="predicted" + (", agreement measured" if getattr(plan, "agreement", None) is not None else ""),
        made_from=[
            *[(f"times of {name}, {precision}", ORIGINS[origin]) for (name, precision), origin in origins.items()],
            *([("bundle", bundle)] if bundle else []),
        ],
        notes=list(_built(plan)),
        brief=plan_brief(plan, origins, following, _at_once_ms(plan)),
    )


def _built(plan: "PlanAnswer | BranchedAnswer") -> Iterator[str]:
    """What was built of a plan and measured of it, a line each; nothing of a plan alone."""
    for error in getattr(plan, "calibration", ()):
        yield f"calibrated {error.segment}: squared error {error.after:.3f} of the original's square, {error.before:.3f} before"
    if (refinement := getattr(plan, "refinement", None)) is not None:
        yield f"refined in {refinement.steps} steps: {refined_words(refinement)}"
    if bundle := getattr(plan, "bundle", None):
        instead = plan.recommended not in (BRANCHED, NO_CLEAR_WINNER)
        yield from bundle_lines(bundle, plan.checks, *(["--recommended"] if instead else []))
    elif getattr(plan, "withheld", False):
        yield "Nothing was written, because branches are not recommended and --only-if-faster was given."


def refined_words(refinement: "Refined") -> str:
    """What refining brought."""
    rounded = refinement.rounded_after
    return (
        f"squared error of the outputs {refinement.after:.3f} of the original's square, {refinement.before:.3f} before, "
        + (f"{rounded:.3f} as int8 rounds it, {refinement.rounded_before:.3f} before the steps that round, " if rounded is not None else "")
        + f"on {refinement.images} images that no step looked at"
    )


def bundle_lines(bundle: object, checks: Mapping[str, Any], *options: str) -> Iterator[str]:
    """What was compared as a bundle was written, and the command that runs it."""
    yield f"largest difference of any exported file from torch: {checks['max_error']:.1e} of its largest output"
    yield f"Next: {command_line('run', bundle, *options)}"


def _at_once_ms(plan: PlanAnswer) -> float:
    """Time in which at least two processors compute."""
    return together_ms((bar.row, bar.start_ms, bar.start_ms + bar.ms) for bar in plan_bars(plan) if bar.kind == "computing")


def _lead(plan: PlanAnswer) -> str:
    predicted = plan.predicted
    processors = joined(list(dict.fromkeys(part.processor for part in [*(b for s in plan.segments for b in s.branches), *plan.sides])))
    overlapping = plan.n_meet > 0 or bool(plan.sides)
    at_once = _at_once_ms(plan)
    how = (
        "Without branches, on" if not overlapping else "Branched over" if at_once > HANDED_ON * predicted.makespan_ms else "Handed on among"
    )
    text = (
        f"{how} {processors}, an inference is predicted to take {predicted.makespan_ms:.2f} ms, "
        f"the original on the {predicted.best_single_processor} {predicted.best_single_ms:.2f} ms; MACs: {plan.macs_ratio:.1%} of the original's."
    )
    if how.startswith("Handed"):
        text += f" {HAND_ON}: only {at_once:.2f} ms are computed side by side."
    return text


def headline(plan: PlanAnswer) -> str:
    """Return whether branches are recommended, by how much over the best single processor, and how sure that is."""
    predicted = plan.predicted
    single = next(rival for rival in plan.comparisons if rival.name.startswith("single:"))
    answers = {BRANCHED: "Branching is recommended", NO_CLEAR_WINNER: "Branching is too close to call"}
    return (
        f"{answers.get(plan.recommended, 'Branching is not recommended')}: {plan.model} on {plan.device}, predicted {single.ratio:.2f}x "
        f"over the {predicted.best_single_processor} ({predicted.best_single_precision}) alone "
        f"(90 % interval {single.low:.2f} to {single.high:.2f}, {chance(single.probability)} sure to be faster)."
    )


def instead(plan: PlanAnswer) -> Iterator[str]:
    """Yield what is faster than the design, and where branches are not recommended what is instead, or what would decide, and why."""
    predicted = plan.predicted
    if _split_wins(plan) and predicted.operator_split_ms < predicted.best_single_ms:
        yield (
            f"The original with its operators split over the processors is predicted to take {predicted.operator_split_ms:.2f} ms, less than "
            "this design: no constraint binds it, and `operator_split_design` of --json holds it."
        )
    if plan.recommended == BRANCHED:
        return
    if plan.recommended == NO_CLEAR_WINNER:
        near = min((rival for rival in plan.comparisons if rival.name not in predicted.reference), key=lambda rival: rival.probability)
        why = f"branched is {near.ratio:.2f}x over the {control_words(near.name)}, 90 % interval {near.low:.2f} to {near.high:.2f}"
        yield f"Undecided: {why}." + (f" Measure next: {near.measure}." if near.measure else "")
        return
    rival = next(rival for rival in plan.comparisons if rival.name == plan.recommended)
    why = f"{rival.ratio:.2f}x as fast as that ({chance(1 - rival.probability)} sure)"
    if rival.ratio >= 1:
        why = f"{rival.ratio:.3f}x faster, less than the {LEAST_GAIN - 1:.0%} that branches are to gain"
    if predicted.far_ahead:
        why += f", and the {predicted.far_ahead} is far ahead of the other processors"
    yield f"Recommended instead: the {control_words(plan.recommended)}, {rival.ms:.2f} ms; the branches are {why}."


def _network(plan: PlanAnswer) -> Section:
    rows, processors = stretched_rows(plan)
    words = [
        "Left the original, a box for each block; right what becomes of each segment. Boxes are as high as their blocks are many and as "
        "wide as their channels; parts of a feature map are drawn in it, with stripes where two processors compute the same rows."
    ]
    return Section("network", "Before and after", words, [Stretched(rows, processors)], printed=False)


def plan_bars(plan: PlanAnswer) -> list[Bar]:
    """The predicted run as bars."""
    bars = []

    def add(name: str, at: float, part: "BranchAnswer | SideAnswer", ms: float) -> None:
        for kind, spent in (("exchange", part.in_ms), ("computing", ms), ("exchange", part.out_ms)):
            if spent > 0:
                bars.append(Bar(part.processor, at, spent, kind, name))
            at += spent

    for segment in plan.segments:
        for branch in segment.branches:
            add(segment.name, segment.start_ms + branch.start_ms, branch, branch.predicted_ms + branch.contention_ms)
        if segment.join_ms > 0:
            met = segment.start_ms + segment.predicted_ms - segment.join_ms
            bars.append(Bar(segment.branches[0].processor, met, segment.join_ms, "join"))
    for side in plan.sides:
        add(side.name, side.start_ms, side, side.predicted_ms)
    return bars


def _timeline(plan: PlanAnswer) -> Section:
    predicted, bars = plan.predicted, plan_bars(plan)
    busy: dict[str, float] = {}
    for bar in bars:
        if bar.kind == "computing":
            busy[bar.row] = busy.get(bar.row, 0.0) + bar.ms
    words = joined([f"{name} computes for {ms:.2f} ms" for name, ms in busy.items()]) + f" of {predicted.makespan_ms:.2f} ms"
    words += f"; exchanges and joins take {predicted.communication_ms:.2f} ms."
    drawn = timeline("timeline", "Who computes when, predicted", words, {"predicted": bars}, predicted.makespan_ms)
    ideal = f"Lower bound (perfect split): {predicted.ideal_split_ms:.2f} ms; the design reaches {predicted.ideal_fraction:.0%} of it."
    return Section("when", "Timeline", [ideal], [drawn])


def _segments(plan: PlanAnswer) -> list[Grid]:
    rows = [
        (
            segment.name,
            segment.kind,
            "×".join(map(str, segment.shape[1:])),
            f"{branch.processor} {plan.precision.get(branch.processor, '')}".rstrip(),
            f"{branch.depth}/{segment.depth}",
            f"{branch.width}/{segment.width}",
            branch.entry if branch.entry != "none" else "",
            _join(branch),
            f"{branch.macs / 1e6:.1f}",
            f"{branch.in_ms:.2f}",
            f"{branch.predicted_ms + branch.contention_ms:.2f}",
            f"{branch.out_ms:.2f}",
        )
        for segment in plan.segments
        for branch in segment.branches
    ]
    titles = ("segment", "kind", "shape", "processor", "depth", "width", "entry", "join", "MMACs", "in ms", "predicted ms", "out ms")
    many = f"{len(plan.segments)} segment{'s' if len(plan.segments) != 1 else ''}"
    grids = [Grid(f"{many} and their branches", titles, rows, right=(4, 5, 8, 9, 10, 11), folded=len(rows) > 40)]
    if plan.sides:
        beside = []
        for side in plan.sides:
            where = f"{side.processor} {plan.precision.get(side.processor, '')}".rstrip()
            numbers = str(side.operators), f"{side.macs / 1e6:.1f}", f"{side.predicted_ms:.2f}"
            beside.append((side.name, where, _first(side.reads), _first(side.writes), *numbers))
        titles = ("beside", "processor", "reads", "writes", "operators", "MMACs", "predicted ms")
        grids.append(Grid("Parts beside the backbone", titles, beside, right=(4, 5, 6)))
    return grids


def _first(names: Sequence[str]) -> str:
    """The first of some tensors, and how many there are besides."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _join(branch: BranchAnswer) -> str:
    """How a branch meets the others, and which rows, paths or channels it computes, as in ``rows 0:28``."""
    part = branch.rows or branch.paths or branch.channels
    if part is not None:
        return f"{branch.join} {part[0]}:{part[1]}"
    return branch.join if branch.join != "none" else ""


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
    sure = f"{chance(predicted.probability_faster['all'])} sure"
    sure += f"; measure next: {predicted.measure_next}" if predicted.measure_next else ""
    params = "of which the original has none" if plan.params_ratio is None else f"{plan.params_ratio:.3f} of the original"
    return [
        ("MACs", f"{plan.macs / 1e6:.1f} M, {plan.macs_ratio:.3f} of the original"),
        ("computes", _computes(plan)),
        ("parameters", f"{plan.params / 1e6:.2f} M, {params}"),
        ("meeting points", str(plan.n_meet)),
        (
            "makespan",
            f"{makespan:.2f} ms (90 % interval {predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f} ms), "
            f"{predicted.speedup:.2f}x over the best single processor ({predicted.source})",
        ),
        ("best single processor", control(predicted.best_single_ms, single)),
        (
            "sequential, same MACs",
            control(predicted.sequential_same_macs_ms, predicted.sequential_same_macs_processor)
            + (f", branched is {predicted.sequential_same_macs_ms / makespan:.2f}x" if predicted.sequential_same_macs_ms else "")
            + (", to be trained" if plan.exact else ""),
        ),
        ("branched net as one graph", control(predicted.whole_graph_ms, predicted.whole_graph_processor)),
        ("operators split", control(predicted.operator_split_ms, None) + (", faster than the design" if _split_wins(plan) else "")),
        ("lower bound", f"{predicted.ideal_split_ms:.2f} ms (perfect split), the design reaches {predicted.ideal_fraction:.0%} of it"),
        *([("best in", _best_in(plan.objective))] if plan.objective.requested != "latency" else []),
        ("search", _search(plan)),
        *([("accuracy", _accuracy(plan.accuracy))] if plan.accuracy else []),
        ("with other links", _links(predicted)),
        *([("energy", _energy(predicted))] if predicted.energy_mj else []),
        ("faster than all of these", sure),
        ("recommended", control_words(plan.recommended)),
        *([("recommended instead", changed)] if (changed := _changes(plan)) else []),
        *([("branching pays", pays)] if (pays := _pays(predicted)) else []),
    ]


def _split_wins(plan: PlanAnswer) -> bool:
    """Whether the original with its operators split is predicted to be faster than the design."""
    return plan.predicted.makespan_ms > 1.005 * plan.predicted.operator_split_ms


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
    return f"{_exact(plan) if plan.exact else 'a network that differs from the original and needs training'}{twice}"


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


def _ends(numbers: str) -> tuple[str, str]:
    """How numbers are called that are smaller, and larger, than stated."""
    return ("at the lower ends", "at the upper ends") if numbers == CONTENTION else ("halved", "doubled")


def _changes(plan: PlanAnswer) -> str:
    """What would be recommended where numbers of the profile are half or twice of what it says, if that is something else."""
    return "; ".join(
        f"{row.recommended} with {row.numbers} {_ends(row.numbers)[row.factor > 1]}"
        for row in plan.predicted.changes
        if row.recommended != plan.recommended
    )


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
        return objective.requested
    value = f"{objective.value:.3g}" if objective.unit else f"{objective.value:.4g}"
    return f"{objective.requested}: {value} {objective.unit}".rstrip()


def _search(plan: PlanAnswer) -> str:
    predicted, latency = plan.predicted, plan.objective.requested == "latency"
    size = "" if plan.space_log10 is None else f", of 10^{plan.space_log10:.1f}"
    if plan.sides:
        return f"parts beside the backbone are placed after it is searched, so that no design is proved to be the best{size}"
    if predicted.optimal:
        return f"no design within the constraints is {'faster' if latency else 'better'}{size}"
    if predicted.gap is not None:
        return f"at most {predicted.gap * 100:.2f} % {'slower' if latency else 'worse'} than the best{size}"
    if plan.objective.strategy == "evolve":
        return f"the best of {plan.evaluated} designs that were tried{size}"
    return "not searched for optimality"


def control_words(name: str) -> str:
    """Display name of a control."""
    kind, _, where = name.partition(":")
    return CONTROLS.get(kind, name).format(where)


def controls_section(plan: PlanAnswer) -> Section:
    """The design beside its controls, as a chart and a table."""
    predicted = plan.predicted
    rows = [ChartInterval("branched", predicted.makespan_ms, predicted.makespan_low_ms, predicted.makespan_high_ms, strong=True)]
    rows += [ChartInterval(control_words(rival.name), rival.ms, rival.low_ms, rival.high_ms) for rival in plan.comparisons]
    alone = {"operators split (MOSAIC, CoDL)": predicted.operator_split_ms, "divided without loss": predicted.ideal_split_ms}
    rows += [ChartInterval(name, ms, ms, ms) for name, ms in alone.items()]
    rivals = [rival for rival in plan.comparisons if rival.name not in predicted.reference]
    beaten = sum(rival.ratio > 1 for rival in rivals)
    words = f"The branches are predicted to be faster than {beaten} of the {len(rivals)} controls that could be run instead."
    titles = ("control", "ms", "90 % interval", "over branched", "its interval", "branched is faster", "measure next")
    numbers = []
    for r in plan.comparisons:
        spans = (f"{r.low_ms:.2f} to {r.high_ms:.2f}", f"{r.ratio:.2f}×", f"{r.low:.2f} to {r.high:.2f}")
        numbers.append((control_words(r.name), f"{r.ms:.2f}", *spans, chance(r.probability), r.measure or ""))
    table = Grid("Controls in numbers", titles, numbers, right=(1, 2, 3, 4, 5), folded=True)
    drawn = intervals("rivals", "Predicted times with 90 % intervals", words, rows, "ms")
    return Section("controls", "Against what else could be run", (), [drawn, table], printed=False)


def certainty_section(plan: PlanAnswer) -> Section:
    """Section on the uncertainty of the recommendation."""
    predicted = plan.predicted
    words = [
        f"{predicted.measure_next} is the number that decides most: measure it next."
        if predicted.measure_next
        else "No number of the profile is uncertain."
    ]
    if predicted.crossover:
        words.append(
            f"Branching would pay where all processors but {predicted.best_single_processor} were {predicted.crossover:.2f} times as fast."
        )
    if predicted.far_ahead:
        words.append(f"{predicted.far_ahead} is so far ahead that not even a division without loss would be faster.")
    parts: list[Grid | Chart] = []
    groups = list(dict.fromkeys(change.numbers for change in predicted.changes))
    rows = []
    for group in groups:
        # first with smaller numbers, then with larger ones
        ends = [change.speedup for change in predicted.changes if change.numbers == group and change.speedup is not None]
        if len(ends) > 1:
            rows.append((group, ends[0], ends[-1]))
    ratios = [rival.ratio for rival in plan.comparisons if rival.name not in predicted.reference]
    if rows and ratios:
        turning = [group for group in groups if any(c.numbers == group and c.recommended != plan.recommended for c in predicted.changes)]
        other = f"Something else would be recommended with other {joined(turning)}."
        title = "Speed-up over the best control if a number were half or twice what it is, or contention at the ends of its intervals"
        note = other if turning else "None of them changes what is recommended."
        parts.append(spread("changes", title, note, rows, min(ratios), "times as fast"))
    titles = ("number", "times", "branched, ms", "over the best control", "recommended then")
    cells = [
        (c.numbers, f"{c.factor:g}", f"{c.makespan_ms:.2f}", "" if c.speedup is None else f"{c.speedup:.2f}×", c.recommended)
        for c in predicted.changes
    ]
    parts.append(Grid("What would change with other numbers", titles, cells, right=(1, 2, 3), folded=True))
    return Section("sure", "How certain this is", words, parts if predicted.changes else (), printed=False)


def accuracy_section(plan: PlanAnswer) -> Section:
    """Section on the accuracy, measured or not."""
    agreement: Agreement | None = getattr(plan, "agreement", None)
    if plan.exact:
        words = [f"Every segment computes {_exact(plan)}; nothing has to be trained."]
    elif agreement is None:
        words = [
            "The branches are another network than the original, and nobody has compared them yet. `--images DIR` measures on your own "
            "unlabelled images how often both see the same class; `stretch train` trains it."
        ]
    else:
        words = list(agreement_lines(agreement))
    return Section("accuracy", "Accuracy", words, printed=agreement is not None)


def joined(words: Sequence[str]) -> str:
    """Words joined with commas and `and`."""
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


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
