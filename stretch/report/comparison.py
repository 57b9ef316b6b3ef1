"""Reports of `stretch compare`, results side by side, and of `stretch advise`, device by device."""

from collections.abc import Sequence
from dataclasses import replace

from stretch.planning.cost.compare import baseline
from stretch.planning.messages import format_probability
from stretch.report.brief import advice_brief, comparison_brief, ratio
from stretch.report.compared import CompareAnswer, ComparedRow
from stretch.report.html.page import ChartInterval, Fact, Grid, Page, Section, intervals
from stretch.stages.advise import Advice, BranchesAdvice, DeviceAdvice

#: Maximum number of rows in a chart.
_MAX_BARS = 60

#: Maximum number of devices for which the report of advice ends with the command of each; beyond it, only recommended branches have one.
MOST_COMMANDS = 6

#: Headings of `cells`.
HEADINGS = (
    "what", "ms", "90 %", "from", "speed-up", "over sequential", "MACs", "M params", "meeting points", "agreement", "probability", "recommended",
)  # fmt: skip


def cells(row: ComparedRow) -> tuple[str, ...]:
    """Return the cells of a row; unknown values are dashes."""
    return (
        row.name,
        _format_or_dash(row.ms, ".2f"),
        _interval_text(row.low_ms, row.high_ms, ".2f"),
        "–" if row.ms is None else row.source,
        _format_or_dash(row.speedup, ".2f"),
        _format_or_dash(row.speedup_over_sequential, ".2f"),
        _format_or_dash(row.macs_ratio, ".3f"),
        "–" if row.params is None else f"{row.params / 1e6:.2f}",
        "–" if row.n_meet is None else str(row.n_meet),
        "exact" if row.exact else _format_or_dash(row.agreement, ".1%"),
        "–" if row.probability is None else format_probability(row.probability),
        "–" if row.recommended is None else baseline(row.recommended),
    )


def comparison_page(answer: CompareAnswer) -> Page:
    """Return the report of a comparison."""
    timed = [row for row in answer.rows if row.ms is not None]
    facts = []
    if speedups := [(row.speedup, row.name) for row in timed if row.speedup is not None]:
        speedup, name = max(speedups, key=lambda pair: pair[0])
        facts.append(Fact("largest speed-up over the best single processor", ratio(speedup), name))
    drawn = [ChartInterval(row.name, row.ms or 0.0, row.low_ms or row.ms or 0.0, row.high_ms or row.ms or 0.0) for row in timed]
    if timed:
        least = min(timed, key=lambda row: row.ms or 0.0)
        facts.append(Fact("least time", f"{least.ms:.2f} ms", f"{least.name}, {least.source}"))
    grid = Grid("All rows; a dash means unknown", HEADINGS, [cells(row) for row in answer.rows], (1, 2, *range(4, 11)))
    return Page(
        title=f"{len(answer.rows)} results side by side",
        facts=facts,
        sections=[*_times("Time per inference, with its interval if known", drawn), Section("rows", "Side by side", (), [grid])],
        warnings=answer.warnings,
        source=", ".join(dict.fromkeys(row.source for row in timed)) or "nothing timed",
        brief=comparison_brief(answer),
    )


def _times(title: str, rows: Sequence[ChartInterval]) -> list[Section]:
    """Return a section with the times of the compared networks, the shortest highlighted."""
    if not rows:
        return []
    least = min(rows, key=lambda row: row.value)
    omission = f" The first {_MAX_BARS} of {len(rows)} are drawn." if len(rows) > _MAX_BARS else ""
    words = f"{least.label} takes the least time with {least.value:.3g} ms.{omission}"
    drawn = [replace(row, strong=row is least) for row in rows[:_MAX_BARS]]
    return [Section("times", "Times", (), [intervals("times-chart", title, words, drawn, "ms")])]


def _interval_text(low: float | None, high: float | None, form: str) -> str:
    return "–" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def _format_or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


# The report of `stretch advise`: speed-ups of branches over the best single processor of each device, as bars.


def advice_page(advice: Advice) -> Page:
    """Return the report of advice for many devices."""
    branched = [answer for answer in advice.answers if answer.recommended in ("exact", "stretched")]
    facts = [Fact("multiply-accumulates", f"{advice.macs / 1e6:,.0f} M", f"{advice.params / 1e6:.2f} M parameters")]
    rows = [
        ChartInterval(f"{answer.device}, {kind}", branches.speedup, branches.low, branches.high, strong=answer.recommended == kind)
        for answer in advice.answers
        for kind, branches in (("exact", answer.exact), ("stretched", answer.stretched))
        if branches is not None
    ]
    sections = []
    if rows:
        words = "; ".join(f"{row.label} {row.value:.2f}" for row in rows) + "."
        title = "Speed-up over the best single processor, with 90 % intervals"
        drawn, notes = intervals("ratios", title, words, rows, "speed-up"), ["Above 1 branching is faster; recommended values are bold."]
        sections.append(Section("gains", "Devices where branching helps", notes, [drawn], printed=False))
    sections.append(Section("devices", "Recommendations", (), [_grid(advice.answers)]))
    return Page(
        title=f"{advice.model}: should it be branched?",
        facts=facts,
        sections=sections,
        warnings=advice.warnings,
        made_from=[("input", "×".join(map(str, advice.input)))],
        notes=[
            f"{answer.device}: {answer.command}" for answer in advice.answers if len(advice.answers) <= MOST_COMMANDS or answer in branched
        ],
        brief=advice_brief(advice),
    )


def _grid(answers: list[DeviceAdvice]) -> Grid:
    titles = ("device", "best single", "ms", "exact split", "stretched split", "recommendation", "why")
    rows = []
    for answer in answers:
        single, ratios = answer.best_single, (_ratio(answer.exact), _ratio(answer.stretched))
        rows.append((answer.device, f"{single.processor} {single.precision}", f"{single.ms:.2f}", *ratios, answer.advice, answer.reason))
    return Grid("Devices, the fastest first", titles, rows)


def _ratio(branches: BranchesAdvice | None) -> str:
    return "–" if branches is None else ratio(branches.speedup, branches.low, branches.high)
