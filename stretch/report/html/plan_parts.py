"""Sections of a plan's report on its quality: comparison with controls, uncertainty and accuracy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stretch.planning.answer import PlanAnswer, exact_words
from stretch.planning.sentences import chance
from stretch.report.html.charts import Chart, Interval, intervals, spread
from stretch.report.html.page import Fact, Grid, Section
from stretch.report.table import control_words

if TYPE_CHECKING:
    from scheduler.bundle.agreement import Agreement


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
