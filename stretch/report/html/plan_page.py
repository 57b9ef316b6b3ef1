"""The report of `stretch branch`: a plan, what it was compared with, how certain that is, and what was measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from predictors.models.base import ORIGINS
from stretch.planning.answer import PlanAnswer, SegmentAnswer
from stretch.planning.sentences import chance
from stretch.report.html.charts import Bar, timeline
from stretch.report.html.page import Fact, Grid, Page, Section, Stretched
from stretch.report.html.plan_parts import (
    accuracy_fact,
    accuracy_section,
    agreement_of,
    certainty_section,
    controls_section,
    joined,
)
from stretch.report.html.stretched import stretched_rows
from stretch.report.table import control_words, figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from predictors.models.base import Origin
    from stretch.api.answer import BranchedAnswer


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
        origins: Source of the times of each processor and precision.
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
