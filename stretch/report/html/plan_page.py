"""The report of `stretch branch`: a plan, what it was compared with, how certain that is, and what was measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from predictors.models.base import ORIGINS
from stretch.planning.result import PlanAnswer, SegmentAnswer, exact_words
from stretch.planning.sentences import chance
from stretch.report.html.charts import Bar, Chart, Interval, intervals, spread, timeline
from stretch.report.html.page import Fact, Grid, Page, Section, Stretched
from stretch.report.html.stretched import stretched_rows
from stretch.report.table import control_words, figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from predictors.models.base import Origin
    from scheduler.bundle.agreement import Agreement
    from stretch.api.branched import BranchedAnswer


def controls_section(plan: PlanAnswer) -> Section:
    """The design beside its controls, as a chart and a table."""
    predicted = plan.predicted
    rows = [Interval("branched", predicted.makespan_ms, predicted.makespan_low_ms, predicted.makespan_high_ms, strong=True)]
    rows += [Interval(control_words(rival.name), rival.ms, rival.low_ms, rival.high_ms) for rival in plan.comparisons]
    rows.append(
        Interval("operators split (MOSAIC, CoDL)", predicted.operator_split_ms, predicted.operator_split_ms, predicted.operator_split_ms)
    )
    rows.append(Interval("divided without loss", predicted.ideal_split_ms, predicted.ideal_split_ms, predicted.ideal_split_ms))
    rivals = [rival for rival in plan.comparisons if rival.name not in predicted.told]
    beaten = sum(rival.ratio > 1 for rival in rivals)
    words = f"The branches are predicted to be faster than {beaten} of the {len(rivals)} controls that could be run instead."
    table = Grid(
        "Controls in numbers",
        ("control", "ms", "90 % interval", "over branched", "its interval", "branched is faster", "measure next"),
        [
            (
                control_words(r.name),
                f"{r.ms:.2f}",
                f"{r.low_ms:.2f} to {r.high_ms:.2f}",
                f"{r.ratio:.2f}×",
                f"{r.low:.2f} to {r.high:.2f}",
                chance(r.probability),
                r.measure or "",
            )
            for r in plan.comparisons
        ],
        right=(1, 2, 3, 4, 5),
        folded=True,
    )
    return Section(
        "controls",
        "Against what else could be run",
        (),
        [intervals("rivals", "Predicted times with 90 % intervals", words, rows, "ms"), table],
    )


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
    changes = {(change.numbers, change.factor): change for change in predicted.changes}
    rows = []
    for group in groups:
        half, twice = changes.get((group, 0.5)), changes.get((group, 2.0))
        if half and twice and half.speedup is not None and twice.speedup is not None:
            rows.append((group, half.speedup, twice.speedup))
    ratios = [rival.ratio for rival in plan.comparisons if rival.name not in predicted.told]
    if rows and ratios:
        turning = [group for group in groups if any(c.numbers == group and c.recommended != plan.recommended for c in predicted.changes)]
        note = (
            f"Something else would be recommended with other {joined(turning)}." if turning else "None of them changes what is recommended."
        )
        parts.append(
            spread(
                "changes",
                "Speed-up over the best control if a number were half or twice what it is",
                note,
                rows,
                min(ratios),
                "times as fast",
            )
        )
    parts.append(
        Grid(
            "What would change with other numbers",
            ("number", "times", "branched, ms", "over the best control", "recommended then"),
            [
                (c.numbers, f"{c.factor:g}", f"{c.makespan_ms:.2f}", "" if c.speedup is None else f"{c.speedup:.2f}×", c.recommended)
                for c in predicted.changes
            ],
            right=(1, 2, 3),
            folded=True,
        )
    )
    return Section("sure", "How certain this is", words, parts if predicted.changes else ())


def accuracy_section(plan: PlanAnswer) -> Section:
    """Section on the accuracy, measured or predicted."""
    if plan.exact:
        return Section(
            "accuracy",
            "Accuracy",
            [f"Every segment computes what the original computes, {exact_words(plan.rounding)}; nothing has to be trained."],
        )
    agreement = agreement_of(plan)
    if agreement is None:
        words = "The branches are another network than the original, and nobody has compared them yet. `--images DIR` measures on your own unlabelled images how often both see the same class; `stretch train` trains it."
        return Section("accuracy", "Accuracy", [words])
    rows = [
        (
            "whole network, fp32",
            _share(agreement.value),
            _share(agreement.low),
            _share(agreement.high),
            f"{agreement.error:.3f}",
            str(agreement.images),
        )
    ]
    if agreement.bundle is not None:
        b = agreement.bundle
        rows.append(
            (
                f"files in {joined(sorted({p for precisions in b.precisions.values() for p in precisions}))}",
                _share(b.value),
                _share(b.low),
                _share(b.high),
                f"{b.error:.3f}",
                str(b.images),
            )
        )
    rows += [
        (
            f"{segment.segment} alone",
            _share(segment.value),
            "",
            "",
            "" if segment.error is None else f"{segment.error:.3f}",
            str(agreement.images),
        )
        for segment in agreement.segments
    ]
    table = Grid(
        "Agreement with the original, measured on images held back",
        ("what", "same class", "low", "high", "error of the outputs", "images"),
        rows,
        right=(1, 2, 3, 4, 5),
    )
    return Section(
        "accuracy", "Accuracy", ["Measured on images that calibration did not look at; intervals have a probability of 0.95."], [table]
    )


def accuracy_fact(plan: PlanAnswer) -> Fact:
    """The same in a few words."""
    if plan.exact:
        return Fact("accuracy", "the original's", f"the same numbers are computed, divided over processors: {exact_words(plan.rounding)}")
    agreement = agreement_of(plan)
    if agreement is None:
        if plan.accuracy is not None and (value := plan.accuracy.agreement or plan.accuracy.top1) is not None:
            return Fact("accuracy, predicted", f"{value:.1%}", "not measured")
        return Fact("accuracy", "not known", "another network than the original: it was not compared, and needs training or images")
    if agreement.value is None:
        return Fact("error of the outputs", f"{agreement.error:.3f}", f"of the original's, on {agreement.images} images held back")
    note = f"of {agreement.images} images held back, {agreement.low:.1%} to {agreement.high:.1%}" if agreement.low is not None else ""
    return Fact("same class as the original", f"{agreement.value:.1%}", note)


def agreement_of(plan: PlanAnswer) -> "Agreement | None":
    """Measured agreement of a built network; None for a plan alone."""
    agreement: Agreement | None = getattr(plan, "agreement", None)
    return agreement


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def joined(words: Sequence[str]) -> str:
    """Words joined with commas and `and`."""
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def plan_page(
    plan: "PlanAnswer | BranchedAnswer",
    *,
    origins: "dict[tuple[str, str], Origin]",
    roofline: "tuple[str, Figure] | None" = None,
    command: str = "",
) -> Page:
    """The page of a plan, or of what was built after it.

    Args:
        plan: The answer; of a built network, with its agreement and calibration.
        roofline: The original's kernels on the best single processor: what the picture shows in words, and the picture.
    """
    return Page(
        title=f"{plan.model} on {plan.device}",
        lead=_lead(plan),
        facts=_facts(plan),
        sections=[
            _network(plan),
            _timeline(plan),
            controls_section(plan),
            certainty_section(plan),
            accuracy_section(plan),
            *([_kernels(roofline)] if roofline else []),
            Section("segments", "Segments in numbers", (), [_segments(plan)]),
            Section(
                "figures",
                "All figures",
                (),
                [Grid("What is predicted, and of what it is compared with", ("figure", "value"), figures(plan), folded=True)],
            ),
        ],
        warnings=plan.warnings,
        source="predicted" + (", agreement measured" if agreement_of(plan) is not None else ""),
        made_from=[
            *([("command", command)] if command else []),
            *[(f"times of {name}, {precision}", ORIGINS[origin]) for (name, precision), origin in origins.items()],
            *([("weights", _weights(plan))] if _weights(plan) else []),
            *([("bundle", bundle)] if (bundle := getattr(plan, "bundle", None)) else []),
        ],
    )


def _lead(plan: PlanAnswer) -> list[str]:
    predicted = plan.predicted
    processors = joined(list(dict.fromkeys(b.processor for s in plan.segments for b in s.branches)))
    overlapping = plan.n_meet > 0 or bool(plan.sides)
    answer = (
        f"{'Branched over' if overlapping else 'Without branches, on'} {processors}, an inference is predicted to take {predicted.makespan_ms:.2f} ms, "
        f"{predicted.speedup:.2f} times as fast as the original on {predicted.best_single_processor} "
        f"({predicted.best_single_ms:.2f} ms), with {plan.macs_ratio:.3f} of its multiply-accumulates."
    )
    return [answer, _advice(plan)]


def _advice(plan: PlanAnswer) -> str:
    probability = plan.predicted.probability_faster.get("all")
    faster = (
        ""
        if probability is None
        else f" The probability that the branches are faster than all that they are compared with is {chance(probability)}."
    )
    if plan.recommended == "branched":
        return f"Recommended: run the branches.{faster}"
    if plan.recommended == "no clear winner":
        return f"No clear winner: the numbers of this device are too uncertain to recommend branches or anything else.{faster}"
    return f"Recommended instead: the {control_words(plan.recommended)}.{faster}"


def _facts(plan: PlanAnswer) -> list[Fact]:
    predicted = plan.predicted
    facts = [
        Fact(
            "an inference",
            f"{predicted.makespan_ms:.2f} ms",
            f"{predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f} ms with a probability of 0.9",
        ),
        Fact(
            "against the best single processor",
            f"{predicted.speedup:.2f}×",
            f"{predicted.best_single_processor} alone: {predicted.best_single_ms:.2f} ms",
        ),
    ]
    if predicted.sequential_same_macs_ms is not None:
        ratio = predicted.sequential_same_macs_ms / predicted.makespan_ms
        note = f"{predicted.sequential_same_macs_ms:.2f} ms on {predicted.sequential_same_macs_processor}, to be trained as well"
        facts.append(Fact("against a plain network of the same MACs", f"{ratio:.2f}×", note))
    else:
        facts.append(Fact("against a plain network of the same MACs", "none", "no such network keeps the limits"))
    facts.append(
        Fact(
            "multiply-accumulates",
            f"{plan.macs_ratio:.3f}",
            f"of the original's {plan.macs / plan.macs_ratio / 1e6:,.0f} M" if plan.macs_ratio else "",
        )
    )
    probability = predicted.probability_faster.get("all")
    facts.append(
        Fact(
            "faster than all controls",
            "not known" if probability is None else f"probability {chance(probability)}",
            "drawn over the intervals of the profile's numbers",
        )
    )
    facts.append(accuracy_fact(plan))
    if predicted.measure_next is not None:
        facts.append(Fact("measure next", predicted.measure_next, "the number that decides most"))
    return facts


def _network(plan: PlanAnswer) -> Section:
    rows, processors = stretched_rows(plan)
    words = [
        "Left the original, a box for each block; right what becomes of each segment. Boxes are as high as their blocks are many and as "
        "wide as their channels; parts of a feature map are drawn in it, with stripes where two processors compute the same rows."
    ]
    return Section("network", "Before and after", words, [Stretched(rows, processors)])


def plan_bars(plan: PlanAnswer) -> list[Bar]:
    """The predicted run as bars."""
    bars = []
    for segment in plan.segments:
        for branch in segment.branches:
            at = segment.start_ms + branch.start_ms
            for kind, ms in (
                ("exchange", branch.in_ms),
                ("computing", branch.predicted_ms + branch.contention_ms),
                ("exchange", branch.out_ms),
            ):
                if ms > 0:
                    bars.append(Bar(branch.processor, at, ms, kind, segment.name))
                at += ms
        if segment.join_ms > 0:
            bars.append(
                Bar(segment.branches[0].processor, segment.start_ms + segment.predicted_ms - segment.join_ms, segment.join_ms, "join")
            )
    for side in plan.sides:
        at = side.start_ms
        for kind, ms in (("exchange", side.in_ms), ("computing", side.predicted_ms), ("exchange", side.out_ms)):
            if ms > 0:
                bars.append(Bar(side.processor, at, ms, kind, side.name))
            at += ms
    return bars


def _timeline(plan: PlanAnswer) -> Section:
    predicted, bars = plan.predicted, plan_bars(plan)
    busy: dict[str, float] = {}
    for bar in bars:
        if bar.kind == "computing":
            busy[bar.row] = busy.get(bar.row, 0.0) + bar.ms
    words = joined([f"{name} computes for {ms:.2f} ms" for name, ms in busy.items()]) + f" of {predicted.makespan_ms:.2f} ms"
    drawn = timeline(
        "timeline",
        "Who computes when, predicted",
        f"{words}; exchanges and joins take {predicted.communication_ms:.2f} ms.",
        {"predicted": bars},
        predicted.makespan_ms,
    )
    ideal = f"Divided without any loss the original would take {predicted.ideal_split_ms:.2f} ms; the design reaches {predicted.ideal_fraction:.0%} of that."
    return Section("when", "Timeline", [ideal], [drawn])


def _kernels(roofline: "tuple[str, Figure]") -> Section:
    from stretch.report.html.charts import chart

    words, figure = roofline
    return Section(
        "kernels",
        "Kernels under the roofline",
        (),
        [chart("roofline", "The original's kernels on the best single processor", words, figure)],
    )


def _segments(plan: PlanAnswer) -> Grid:
    rows = [
        (
            segment.name,
            segment.kind,
            "×".join(map(str, segment.shape[1:])),
            f"{branch.processor} {plan.precision.get(branch.processor, '')}".strip(),
            f"{branch.depth}/{segment.depth}",
            f"{branch.width}/{segment.width}",
            _part(branch.rows, "rows") or _part(branch.channels, "channels") or _part(branch.paths, "paths"),
            branch.join if branch.join != "none" else "",
            f"{branch.macs / 1e6:.1f}",
            f"{branch.in_ms:.2f}",
            f"{branch.predicted_ms + branch.contention_ms:.2f}",
            f"{branch.out_ms:.2f}",
        )
        for segment in plan.segments
        for branch in segment.branches
    ]
    titles = ("segment", "kind", "output", "processor", "blocks", "channels", "part", "join", "M MACs", "in, ms", "computes, ms", "out, ms")
    return Grid(f"{_many(plan.segments)} and their branches", titles, rows, right=(4, 5, 8, 9, 10, 11), folded=len(rows) > 40)


def _many(segments: Sequence[SegmentAnswer]) -> str:
    return f"{len(segments)} segment{'s' if len(segments) != 1 else ''}"


def _part(span: Sequence[int] | None, what: str) -> str:
    return "" if span is None else f"{what} {span[0]}:{span[1]}"


def _weights(plan: PlanAnswer) -> str:
    weights = getattr(plan, "weights", None)
    return "" if weights is None else weights.source + (f" ({weights.detail})" if weights.detail else "")
