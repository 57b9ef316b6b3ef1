"""The report of `stretch advise`: where branches pay, as bars beside the best single processor of each device."""

from stretch.report.html.charts import ChartInterval, intervals
from stretch.report.html.page import Fact, Grid, Page, Section
from stretch.stages.advise import Advice, BranchesAdvice, DeviceAdvice


def advice_page(advice: Advice, command: str = "") -> Page:
    """The page of an answer for many devices."""
    branched = [answer for answer in advice.answers if answer.recommended in ("exact", "stretched")]
    first = advice.answers[0]
    facts = [
        Fact("branches pay on", f"{len(branched)} of {len(advice.answers)}", "devices"),
        Fact("fastest as advised", first.device, first.advice),
        Fact("multiply-accumulates", f"{advice.macs / 1e6:,.0f} M", f"{advice.params / 1e6:.2f} M parameters"),
    ]
    rows = [
        ChartInterval(f"{answer.device}, {kind}", branches.speedup, branches.low, branches.high, strong=answer.recommended == kind)
        for answer in advice.answers
        for kind, branches in (("exact", answer.exact), ("stretched", answer.stretched))
        if branches is not None
    ]
    sections = []
    if rows:
        words = "; ".join(f"{row.label} {row.value:.2f}" for row in rows) + "."
        title = "Times as fast as the best single processor, with 90 % intervals"
        sections.append(
            Section(
                "pays",
                "Where branches pay",
                ["Above 1 they are faster; bold is advised."],
                [intervals("ratios", title, words, rows, "times")],
            )
        )
    sections.append(Section("devices", "What to do", (), [_grid(advice.answers)]))
    return Page(
        title=f"{advice.model}: should it be branched?",
        lead=[f"Branches are advised on {', '.join(answer.device for answer in branched) or 'none of these devices'}."],
        facts=facts,
        sections=sections,
        warnings=advice.warnings,
        made_from=[*([("command", command)] if command else []), ("input", "×".join(map(str, advice.input)))],
    )


def _grid(answers: list[DeviceAdvice]) -> Grid:
    titles = ("device", "best alone", "ms", "exact", "stretched", "what to do", "why")
    rows = [
        (
            answer.device,
            f"{answer.best_single.processor} {answer.best_single.precision}",
            f"{answer.best_single.ms:.2f}",
            _ratio(answer.exact),
            _ratio(answer.stretched),
            answer.advice,
            answer.reason,
        )
        for answer in answers
    ]
    return Grid("Devices, the fastest as advised first", titles, rows)


def _ratio(branches: BranchesAdvice | None) -> str:
    return "–" if branches is None else f"{branches.speedup:.2f} ({branches.low:.2f} to {branches.high:.2f})"
