"""The report of `stretch compare`: results side by side."""

from stretch.comparison.rows import CompareAnswer
from stretch.report.comparison import HEADINGS, cells
from stretch.report.html.charts import Interval, intervals
from stretch.report.html.page import Fact, Grid, Page, Section

#: Rows of a chart, at most.
_DRAWN = 60


def comparison_page(answer: CompareAnswer, command: str = "") -> Page:
    """The page of a comparison."""
    timed = [row for row in answer.rows if row.ms is not None]
    facts = []
    sections = []
    fast = [row for row in timed if row.speedup is not None]
    if fast:
        best = max(fast, key=lambda row: row.speedup or 0.0)
        facts.append(Fact("largest speed-up over the best single processor", f"{best.speedup:.2f}×", best.name))
    if timed:
        least = min(timed, key=lambda row: row.ms or 0.0)
        facts.append(Fact("least time", f"{least.ms:.2f} ms", f"{least.name}, {least.source}"))
        drawn = [
            Interval(row.name, row.ms or 0.0, row.low_ms or row.ms or 0.0, row.high_ms or row.ms or 0.0, strong=row is least)
            for row in timed[:_DRAWN]
        ]
        more = f" The first {_DRAWN} of {len(timed)} are drawn." if len(timed) > _DRAWN else ""
        words = f"{least.name} takes the least time with {least.ms:.2f} ms.{more}"
        sections.append(
            Section(
                "times",
                "Times",
                (),
                [intervals("times-chart", "An inference of each, with what is known of its interval", words, drawn, "ms")],
            )
        )
    right = [i for i, (_, number) in enumerate(HEADINGS) if number]
    table = Grid(
        "All rows; a dash stands for what is not known", [title for title, _ in HEADINGS], [cells(row) for row in answer.rows], right=right
    )
    sections.append(Section("rows", "Side by side", (), [table]))
    return Page(
        title=f"{len(answer.rows)} results side by side",
        lead=[", ".join(row.name for row in answer.rows[:6]) + (f" and {len(answer.rows) - 6} more" if len(answer.rows) > 6 else "") + "."],
        facts=facts,
        sections=sections,
        warnings=answer.warnings,
        source=", ".join(dict.fromkeys(row.source for row in timed)) or "nothing timed",
        made_from=[("command", command)] if command else [],
    )
