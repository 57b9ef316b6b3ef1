"""Report of `stretch branch`: a plan, its comparison with baselines, its uncertainty, and the built network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictors.models.roofline import ORIGINS
from scheduler.bundle.agreement import Agreement
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.compare import CONTENTION, baseline
from stretch.planning.cost.makespan import BranchTime
from stretch.planning.design.branch_design import BranchScale, shares_of
from stretch.planning.messages import format_probability
from stretch.planning.result import ObjectiveAnswer, PlanResult, Predicted
from stretch.report.brief import UNJUDGED_TEXT, plan_brief, ratio, share, shortened_text
from stretch.report.html.page import (
    Bar,
    Chart,
    ChartInterval,
    Grid,
    Page,
    Section,
    Stretched,
    intervals,
    spread,
    stretched_rows,
    timeline,
)
from stretch.stages.branched import Branched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stretch.transform.refine import Refined


def exact_words(rounding: Sequence[str]) -> str:
    """Return a text on the exactness of an exact design in fp32 and on planned precisions that round."""
    return "exact in fp32" + (f"; {' and '.join(rounding)} {'round' if len(rounding) > 1 else 'rounds'}" if rounding else "")


def _exact(plan: PlanResult, built: Branched | None) -> str:
    """Return a text on the output of an exact design, and on the reference of its comparison."""
    return f"what the original computes, {exact_words(plan.rounding)}" + (f"; {UNJUDGED_TEXT}" if built and built.unjudged else "")


def plan_page(
    plan: PlanResult,
    built: Branched | None = None,
    *,
    roofline: "Callable[[], tuple[str, Figure]] | None" = None,
    following: Sequence[str] = (),
) -> Page:
    """Return the report of a plan and of the built network.

    Args:
        following: Lines with the next commands.
    """
    source = "" if built is None else built.weights_source + (f" ({built.weights_detail})" if built.weights_detail else "")
    sections = [_network(plan), Section("segments", "Segments in numbers", (), _segments(plan)), _timeline(plan)]
    sections += [baselines_section(plan), certainty_section(plan), accuracy_section(plan, built)]
    if roofline is not None:
        words, figure = roofline()
        drawn = Chart("roofline", "The original's kernels on the best single processor", words, lambda: figure)
        sections.append(Section("kernels", "Kernels under the roofline", (), [drawn], printed=False))
    everything = Grid("All predictions and their baselines", ("figure", "value"), figures(plan, built), folded=True)
    return Page(
        title=f"{plan.graph.name} on {plan.device.id}",
        sections=[*sections, Section("figures", "All figures", (), [everything])],
        warnings=[*(built.warnings if built is not None else ()), *plan.warnings],
        source="predicted" + (", agreement measured" if built is not None and built.agreement is not None else ""),
        made_from=[
            *[(f"times of {name}, {precision}", ORIGINS[origin]) for (name, precision), origin in plan.origins.items()],
            *([("bundle", str(built.bundle))] if built is not None and built.bundle else []),
            *([("weights", source)] if source else []),
        ],
        notes=[*([f"weights: {source}"] if source else []), *(_built(built) if built is not None else [])],
        brief=plan_brief(plan, built, following),
    )


def _built(built: Branched) -> Iterator[str]:
    """Yield a line for each calibrated segment, the refinement and the checked files."""
    for error in built.calibration:
        yield f"calibrated {error.segment}: squared error {share(error.after)} of the original's square, {share(error.before)} before"
    if built.refinement is not None:
        yield f"refined in {built.refinement.steps} steps: {refinement_text(built.refinement)}"
    if built.manifest is not None:
        yield difference_line(built.manifest.checks)


def refinement_text(refinement: "Refined") -> str:
    """Return a text on the effect of the refinement."""
    rounded = refinement.rounded_after
    return (
        f"squared error of the outputs {refinement.after:.3f} of the original's square, {refinement.before:.3f} before, "
        + (f"{rounded:.3f} as int8 rounds it, {refinement.rounded_before:.3f} before the steps that round, " if rounded is not None else "")
        + f"on {refinement.images} images that no step looked at"
    )


def difference_line(checks: Mapping[str, Any]) -> str:
    """Return a line on the largest difference between exported files and torch."""
    return f"largest difference of any exported file from torch: {checks['max_error']:.1e} of its largest output"


def _network(plan: PlanResult) -> Section:
    rows, processors = stretched_rows(plan)
    words = [
        "Left: the original, one box per block. Right: the branches of each segment. A box is as high as its number of blocks and as "
        "wide as its channels. Parts of a feature map are drawn inside it; stripes mark rows that two processors compute."
    ]
    return Section("network", "Before and after", words, [Stretched(rows, processors)], printed=False)


def plan_bars(plan: PlanResult) -> list[Bar]:
    """Return the bars of the predicted run."""
    bars = []

    def add(name: str, start: float, part: BranchTime) -> None:
        for kind, spent in (("exchange", part.in_ms), ("computing", part.ms + part.contention_ms), ("exchange", part.out_ms)):
            if spent > 0:
                bars.append(Bar(part.scale.processor, start, spent, kind, name))
            start += spent

    for row in plan.run.segments:
        for branch in row.branches:
            add(row.segment.name, row.start_ms + branch.start_ms, branch)
        if row.join_ms > 0:
            bars.append(Bar(row.branches[0].scale.processor, row.start_ms + row.ms - row.join_ms, row.join_ms, "join"))
    for side, time in plan.run.sides:
        add(side.name, time.start_ms, time)
    return bars


def _timeline(plan: PlanResult) -> Section:
    predicted, bars = plan.predicted, plan_bars(plan)
    busy: dict[str, float] = {}
    for bar in bars:
        if bar.kind == "computing":
            busy[bar.row] = busy.get(bar.row, 0.0) + bar.ms
    words = join_words([f"{name} computes for {ms:.2f} ms" for name, ms in busy.items()]) + f" of {predicted.makespan_ms:.2f} ms"
    words += f"; transfers and joins take {predicted.communication_ms:.2f} ms."
    drawn = timeline("timeline", "Who computes when, predicted", words, {"predicted": bars}, predicted.makespan_ms)
    ideal = f"Lower bound (perfect split): {predicted.ideal_split_ms:.2f} ms; the design reaches {predicted.ideal_fraction:.0%} of it."
    return Section("when", "Timeline", [ideal], [drawn])


def _segments(plan: PlanResult) -> list[Grid]:
    rows = [
        (
            row.segment.name,
            row.kind,
            "×".join(map(str, row.shape[1:])),
            f"{branch.scale.processor} {plan.config.precision.get(branch.scale.processor, '')}".rstrip(),
            f"{branch.scale.depth}/{row.segment.depth}",
            f"{branch.scale.width}/{row.segment.width}",
            branch.scale.entry if branch.scale.entry != "none" else "",
            _join(row.design.join, branch.scale),
            f"{branch.macs / 1e6:.1f}",
            f"{branch.in_ms:.2f}",
            f"{branch.ms + branch.contention_ms:.2f}",
            f"{branch.out_ms:.2f}",
        )
        for row in plan.run.segments
        for branch in row.branches
    ]
    titles = ("segment", "kind", "shape", "processor", "depth", "width", "entry", "join", "MMACs", "in ms", "predicted ms", "out ms")
    segments = f"{len(plan.run.segments)} segment{'s' if len(plan.run.segments) != 1 else ''}"
    grids = [Grid(f"{segments} and their branches", titles, rows, right=(4, 5, 8, 9, 10, 11), folded=len(rows) > 40)]
    if plan.run.sides:
        outside = []
        for side, time in plan.run.sides:
            name, operators = time.scale.processor, sum(op.kind != "input" for op in side.ops)
            ends = _first_and_count([op.name for op in side.inputs]), _first_and_count(side.outputs)
            numbers = str(operators), f"{time.macs / 1e6:.1f}", f"{time.ms:.2f}"
            outside.append((side.name, f"{name} {plan.config.precision.get(name, '')}".rstrip(), *ends, *numbers))
        columns = ("part", "processor", "reads", "writes", "operators", "MMACs", "predicted ms")
        grids.append(Grid("Parts outside the backbone", columns, outside, right=(4, 5, 6)))
    return grids


def _first_and_count(names: Sequence[str]) -> str:
    """Return the first name, with the number of further names."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _join(join: str, branch: BranchScale) -> str:
    """Return the join of a branch, with its range of rows, paths or channels, such as ``rows 0:28``."""
    for word, part in shares_of(branch).items():
        if word != "ends":
            return f"{join} {part[0]}:{part[1]}"
    return join if join != "none" else ""


def figures(plan: PlanResult, built: Branched | None = None) -> list[tuple[str, str]]:
    """Return all predictions of the plan and its baselines, as pairs of label and value."""
    predicted = plan.predicted
    makespan = predicted.makespan_ms

    def timed(ms: float | None, name: str | None) -> str:
        if ms is None:
            return "none meets the constraints"
        return f"{ms:.2f} ms on {name}" if name else f"{ms:.2f} ms"

    precision = predicted.best_single_precision
    single = predicted.best_single_processor + (f" ({precision})" if precision else "")
    sure = f"{format_probability(predicted.probability_faster['all'])} sure"
    sure += f"; measure next: {predicted.measure_next}" if predicted.measure_next else ""
    params = "of which the original has none" if plan.params_ratio is None else f"{share(plan.params_ratio)} of the original"
    return [
        ("MACs", f"{plan.run.macs / 1e6:.1f} M, {plan.macs_ratio:.1%} of the original"),
        ("computes", _computes(plan, built)),
        ("parameters", f"{plan.params / 1e6:.2f} M, {params}"),
        ("meeting points", str(plan.design.n_meet)),
        (
            "makespan",
            f"{makespan:.2f} ms (90 % interval {predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f} ms), "
            f"branched is {ratio(predicted.speedup)} against the best single processor ({predicted.source})",
        ),
        ("best single processor", timed(predicted.best_single_ms, single)),
        (
            "sequential, same MACs",
            timed(predicted.sequential_same_macs_ms, predicted.sequential_same_macs_processor)
            + (f", branched is {ratio(predicted.sequential_same_macs_ms / makespan)}" if predicted.sequential_same_macs_ms else "")
            + (", to be trained" if plan.exact else ""),
        ),
        *([("fewer blocks", f"{timed(short.ms, short.processor)}, {shortened_text(short)}")] if (short := predicted.shortened) else []),
        ("branched net as one graph", timed(predicted.whole_graph_ms, predicted.whole_graph_processor)),
        ("operators split", timed(predicted.operator_split_ms, None) + (", faster than the design" if _split_wins(plan) else "")),
        ("lower bound", f"{predicted.ideal_split_ms:.2f} ms (perfect split), the design reaches {predicted.ideal_fraction:.0%} of it"),
        *([("best in", _objective_text(plan.objective))] if plan.objective.requested != "latency" else []),
        ("search", _search(plan)),
        *([("accuracy", _accuracy(plan.accuracy))] if plan.accuracy else []),
        ("with other links", _links(predicted)),
        *([("energy", _energy(predicted))] if predicted.energy_mj else []),
        ("faster than all of these", sure),
        ("recommended", baseline(plan.recommended)),
        *([("recommended instead", changed)] if (changed := _changes(plan)) else []),
        *([("branching helps", pays)] if (pays := _break_even_text(predicted)) else []),
    ]


def _split_wins(plan: PlanResult) -> bool:
    """Return whether the original with its operators split is predicted to be faster than the design."""
    return plan.predicted.makespan_ms > 1.005 * plan.predicted.operator_split_ms


def _break_even_text(predicted: Predicted) -> str | None:
    """Return a text on the speed of the other processors from which branching helps; None if unknown."""
    if predicted.crossover:
        return f"if all others were {ratio(predicted.crossover)} faster"
    if predicted.far_ahead and predicted.crossover_divided:
        return f"if all others were at least {predicted.crossover_divided:.3g}x faster"
    return None


def _computes(plan: PlanResult, built: Branched | None) -> str:
    """Return a text on the output, exact or not, and on the computation that branches repeat."""
    twice = f", {plan.repeated:.1%} of its MACs twice" if plan.repeated else ""
    twice += f", halos {plan.run.halo_ms:.2f} ms of its branches together" if plan.run.halo_macs else ""
    return f"{_exact(plan, built) if plan.exact else 'a network that differs from the original and needs training'}{twice}"


def _energy(predicted: Predicted) -> str:
    """Return a text on the energy of the branches and their baselines, with the counted states of processors."""
    single, same = predicted.best_single_energy_mj, predicted.sequential_same_macs_energy_mj
    counted = {part.state for part in predicted.energy if part.mj is not None}
    states = {"busy": "compute", "waiting": "wait", "idle": "have no work"}
    return (
        f"{predicted.energy_mj:.0f} mJ while processors {' or '.join(word for state, word in states.items() if state in counted)}"
        + (f", {single:.0f} mJ on the best single processor" if single else "")
        + (f", {same:.0f} mJ of the sequential network" if same else "")
    )


def _links(predicted: Predicted) -> str:
    """Return a text on the design's times with links at the lower and upper ends of their intervals."""
    rows = [row for row in predicted.links if row.factor != 1]
    return ", ".join(
        f"{row.makespan_ms:.2f} ms" + (f" ({ratio(row.speedup)})" if row.speedup else "") + f" at {row.factor:g} times their time"
        for row in rows
    )


def _ends(numbers: str) -> tuple[str, str]:
    """Return the words for smaller and for larger numbers of a group."""
    return ("at the lower ends", "at the upper ends") if numbers == CONTENTION else ("halved", "doubled")


def _changes(plan: PlanResult) -> str:
    """Return a text on other recommendations if numbers of the profile were halved or doubled; empty if none."""
    return "; ".join(
        f"{baseline(row.recommended)} with {row.numbers} {_ends(row.numbers)[row.factor > 1]}"
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


def _objective_text(objective: ObjectiveAnswer) -> str:
    """Return a text on the objective of the design and its value."""
    if objective.value is None:
        return objective.requested
    value = f"{objective.value:.3g}" if objective.unit else f"{objective.value:.4g}"
    return f"{objective.requested}: {value} {objective.unit}".rstrip()


def _search(plan: PlanResult) -> str:
    predicted, latency = plan.predicted, plan.objective.requested == "latency"
    size = "" if plan.space_log10 is None else f", of 10^{plan.space_log10:.1f}"
    if plan.run.sides:
        return f"parts outside the backbone are placed after the search, so no design is proved to be the best{size}"
    if predicted.optimal:
        return f"no design within the constraints is {'faster' if latency else 'better'}{size}"
    if predicted.gap is not None:
        return f"at most {predicted.gap * 100:.2f} % {'slower' if latency else 'worse'} than the best{size}"
    return "not searched for optimality"


def baselines_section(plan: PlanResult) -> Section:
    """Return the section that compares the design with its baselines, as a chart and a table."""
    predicted = plan.predicted
    rows = [ChartInterval("branched", predicted.makespan_ms, predicted.makespan_low_ms, predicted.makespan_high_ms, strong=True)]
    rows += [ChartInterval(baseline(control.name), control.ms, control.low_ms, control.high_ms) for control in plan.recommendation.compared]
    alone = {"operators split (MOSAIC, CoDL)": predicted.operator_split_ms, "lower bound (perfect split)": predicted.ideal_split_ms}
    rows += [ChartInterval(name, ms, ms, ms) for name, ms in alone.items()]
    compared = [control for control in plan.recommendation.compared if control.name not in predicted.reference]
    beaten = sum(control.ratio > 1 for control in compared)
    words = f"The branches are predicted to be faster than {beaten} of the {len(compared)} baselines."
    titles = ("baseline", "ms", "90 % interval", "branched is", "its interval", "surely faster", "measure next")
    numbers = []
    for r in plan.recommendation.compared:
        spans = (f"{r.low_ms:.2f} to {r.high_ms:.2f}", ratio(r.ratio), f"{r.low:.2f} to {r.high:.2f}")
        numbers.append((baseline(r.name), f"{r.ms:.2f}", *spans, format_probability(r.probability), r.measure or ""))
    table = Grid("Baselines in numbers", titles, numbers, right=(1, 2, 3, 4, 5), folded=True)
    drawn = intervals("compared", "Predicted times with 90 % intervals", words, rows, "ms")
    return Section("baselines", "Baselines", (), [drawn, table], printed=False)


def certainty_section(plan: PlanResult) -> Section:
    """Return the section on the uncertainty of the recommendation."""
    predicted = plan.predicted
    words = [
        f"The result depends most on {predicted.measure_next}; measure those next."
        if predicted.measure_next
        else "No number of the profile is uncertain."
    ]
    if predicted.crossover:
        words.append(
            f"Branching would help if all processors but the {predicted.best_single_processor} were {ratio(predicted.crossover)} faster."
        )
    if predicted.far_ahead:
        words.append(f"The {predicted.far_ahead} is so far ahead that even a perfect split would not be faster.")
    parts: list[Grid | Chart] = []
    groups = list(dict.fromkeys(change.numbers for change in predicted.changes))
    rows = []
    for group in groups:
        # smaller numbers first, then larger ones
        ends = [change.speedup for change in predicted.changes if change.numbers == group and change.speedup is not None]
        if len(ends) > 1:
            rows.append((group, ends[0], ends[-1]))
    ratios = [control.ratio for control in plan.recommendation.compared if control.name not in predicted.reference]
    if rows and ratios:
        turning = [group for group in groups if any(c.numbers == group and c.recommended != plan.recommended for c in predicted.changes)]
        dependence = f"The recommendation depends on {join_words(turning)}."
        title = "Speed-up over the best baseline if a number were halved or doubled, or contention at the ends of its intervals"
        note = dependence if turning else "None of them changes the recommendation."
        parts.append(spread("changes", title, note, rows, min(ratios), "branched is"))
    titles = ("number", "times", "branched, ms", "over the best baseline", "recommended then")
    cells = [
        (c.numbers, f"{c.factor:g}", f"{c.makespan_ms:.2f}", "" if c.speedup is None else ratio(c.speedup), baseline(c.recommended))
        for c in predicted.changes
    ]
    parts.append(Grid("Recommendations with other numbers", titles, cells, right=(1, 2, 3), folded=True))
    return Section("sure", "How certain this is", words, parts if predicted.changes else (), printed=False)


def accuracy_section(plan: PlanResult, built: Branched | None) -> Section:
    """Return the section on the accuracy or agreement."""
    agreement = built.agreement if built is not None else None
    if plan.exact:
        words = [f"Every segment computes {_exact(plan, built)}; nothing has to be trained."]
    elif agreement is None:
        words = [
            "The branched network differs from the original and was not compared with it yet. `--images FOLDER` measures on unlabelled "
            "images how often both predict the same class; `stretch train` trains it."
        ]
    else:
        words = list(agreement_lines(agreement))
    return Section("accuracy", "Accuracy", words, printed=agreement is not None)


def join_words(words: Sequence[str]) -> str:
    """Return the words joined with commas and `and`."""
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def agreement_lines(agreement: Agreement) -> Iterator[str]:
    """Yield lines on the agreement of a network with its original: in fp32, with the bundle's files, and by segment."""
    if agreement.value is None:
        if agreement.classes:
            several = f"{agreement.classes} classes" if agreement.classes > 1 else "one class"
            yield f"the original answers {several} for these images, nearly always the same: no agreement is given"
        yield f"measured on {agreement.images} held-out images: error of the outputs {agreement.error:.1%} of the original's"
    else:
        of = f", one of {agreement.classes} that it answers," if agreement.classes else ""
        yield (
            f"measured on {agreement.images} held-out images: the original's class{of} in {agreement.value:.1%} ({agreement.low:.1%} to {agreement.high:.1%}), "
            f"error of the scores {agreement.error:.1%} of the original's"
        )
    if (ran := agreement.bundle) is not None:
        places = ", ".join(
            f"{'/'.join(precisions)} on {name} (run here by {ran.delegates[name]})" for name, precisions in ran.precisions.items()
        )
        agreed = "" if ran.value is None else f"the original's class in {ran.value:.1%} ({ran.low:.1%} to {ran.high:.1%}), "
        yield f"measured with the bundle's files on {ran.images} of them, {places}: {agreed}error {ran.error:.1%}"
    for segment in agreement.segments:
        if segment.error is not None:
            agreed = "" if segment.value is None else f"the original's class in {segment.value:.1%}, "
            yield f"  {segment.segment} alone changed: {agreed}error {segment.error:.1%}"
