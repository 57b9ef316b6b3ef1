"""The report of `stretch compare --measure`: files timed in turns."""

from scheduler.measure.bench.answer import BenchAnswer
from stretch.report.bench import HEADINGS, cells, surroundings
from stretch.report.html.charts import Interval, intervals
from stretch.report.html.page import Fact, Grid, Page, Section

#: Rows of a chart, at most.
_DRAWN = 60


def bench_page(answer: BenchAnswer, command: str = "") -> Page:
    """The page of a measurement."""
    rows = answer.contenders
    least = min(rows, key=lambda row: row.summary.median_ms)
    drawn = [
        Interval(
            row.name,
            row.summary.median_ms,
            row.summary.low_ms or row.summary.median_ms,
            row.summary.high_ms or row.summary.median_ms,
            strong=row is least,
        )
        for row in rows[:_DRAWN]
    ]
    more = f" The first {_DRAWN} of {len(rows)} are drawn." if len(rows) > _DRAWN else ""
    words = f"{least.name} takes the least time with {least.summary.median_ms:.3g} ms.{more}"
    right = [i for i, (_, number) in enumerate(HEADINGS) if number]
    files = Grid(
        "What was timed",
        ["file", "kind", "MB", "M MACs", "inputs", "SHA-256"],
        [
            (
                file.name,
                file.kind,
                f"{file.bytes / 1e6:.2f}",
                "–" if file.macs is None else f"{file.macs / 1e6:.1f}",
                ", ".join(f"{name}: {shape}" for name, shape in file.inputs.items()),
                file.sha256[:16],
            )
            for file in answer.files
        ],
        right=[2, 3],
    )
    return Page(
        title=f"{len(rows)} timed in turns" if len(rows) > 1 else f"{rows[0].name}, timed",
        lead=[f"{answer.verdict[0].upper()}{answer.verdict[1:]}."],
        facts=[
            Fact("least time", f"{least.summary.median_ms:.3g} ms", least.name),
            Fact("rounds", f"{answer.starts * answer.rounds}", f"{answer.starts} starts of {answer.rounds}"),
        ],
        sections=[
            Section("times", "Times", (), [intervals("times-chart", "Median of each with its 95 % interval", words, drawn, "ms")]),
            Section(
                "contenders",
                "Side by side",
                ("“Another run” is where the median of another such measurement is expected in 95 % of all cases.",),
                [Grid("A dash stands for what is not known", [title for title, _ in HEADINGS], [cells(row) for row in rows], right=right)],
            ),
            Section("files", "Files", (), [files]),
            Section("machine", "The machine", (), [Grid("As the system told it", ["what", "how"], surroundings(answer))]),
        ],
        warnings=answer.warnings,
        source=answer.source,
        made_from=[("command", command)] if command else [],
    )
