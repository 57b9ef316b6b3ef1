"""The reports of `stretch compare`, results side by side and files timed alternately, and of `stretch advise`, device by device."""

from collections.abc import Sequence
from dataclasses import replace

from scheduler.tools.bench.compare import BenchAnswer, BenchContender
from stretch.comparison import CompareAnswer, ComparedRow
from stretch.planning.messages import chance
from stretch.stages.advise import Advice, BranchesAdvice, DeviceAdvice
from stretch.tools.report.brief import advice_brief, ratio
from stretch.tools.report.html.page import ChartInterval, Fact, Grid, Page, Section, intervals

#: Rows of a chart, at most.
_DRAWN = 60

#: Devices up to which the report of advice ends with the command of each; of more, with those of branches alone.
MOST_COMMANDS = 6

#: Headings of `cells`.
HEADINGS = (
    "what", "ms", "90 %", "from", "speed-up", "over sequential", "MACs", "M params", "meeting points", "agreement", "probability", "recommended",
)  # fmt: skip

#: Headings of `bench_cells`.
BENCH_HEADINGS = (
    "measured here", "median ms", "95 %", "another run", "p90 ms", "of the first", "95 % of that", "MACs of the first's", "difference",
)  # fmt: skip


def cells(row: ComparedRow) -> tuple[str, ...]:
    """Cells of a row; unknown values are dashes."""
    return (
        row.name,
        _known(row.ms, ".2f"),
        _between(row.low_ms, row.high_ms, ".2f"),
        "–" if row.ms is None else row.source,
        _known(row.speedup, ".2f"),
        _known(row.speedup_over_sequential, ".2f"),
        _known(row.macs_ratio, ".3f"),
        "–" if row.params is None else f"{row.params / 1e6:.2f}",
        "–" if row.n_meet is None else str(row.n_meet),
        "exact" if row.exact else _known(row.agreement, ".1%"),
        "–" if row.probability is None else chance(row.probability),
        row.recommended or "–",
    )


def comparison_page(answer: CompareAnswer) -> Page:
    """The report of a comparison."""
    timed = [row for row in answer.rows if row.ms is not None]
    facts = []
    fast = [row for row in timed if row.speedup is not None]
    if fast:
        best = max(fast, key=lambda row: row.speedup or 0.0)
        facts.append(Fact("largest speed-up over the best single processor", ratio(best.speedup), best.name))
    drawn = [ChartInterval(row.name, row.ms or 0.0, row.low_ms or row.ms or 0.0, row.high_ms or row.ms or 0.0) for row in timed]
    if timed:
        least = min(timed, key=lambda row: row.ms or 0.0)
        facts.append(Fact("least time", f"{least.ms:.2f} ms", f"{least.name}, {least.source}"))
    grid = Grid("All rows; a dash means unknown", HEADINGS, [cells(row) for row in answer.rows], (1, 2, *range(4, 11)))
    return Page(
        title=f"{len(answer.rows)} results side by side",
        lead=[", ".join(row.name for row in answer.rows[:6]) + (f" and {len(answer.rows) - 6} more" if len(answer.rows) > 6 else "") + "."],
        facts=facts,
        sections=[*_times("Time per inference, with its interval if known", drawn), Section("rows", "Side by side", (), [grid])],
        warnings=answer.warnings,
        source=", ".join(dict.fromkeys(row.source for row in timed)) or "nothing timed",
    )


def bench_cells(row: BenchContender) -> tuple[str, ...]:
    """Return the cells of a variant; unknown values are dashes."""
    summary = row.summary
    return (
        row.name,
        f"{summary.median_ms:.3f}",
        _between(summary.low_ms, summary.high_ms, ".3f"),
        _between(summary.repeat_low_ms, summary.repeat_high_ms, ".3f"),
        f"{summary.p90_ms:.3f}",
        f"{summary.ratio:.3f}×",
        _between(summary.ratio_low, summary.ratio_high, ".3f"),
        _known(row.macs_ratio, ".3f"),
        _known(row.max_error, ".1e"),
    )


def bench_page(answer: BenchAnswer) -> Page:
    """The report of a measurement."""
    rows, seen = answer.contenders, answer.conditions
    times = [row.summary for row in rows]
    drawn = [
        ChartInterval(row.name, t.median_ms, t.low_ms or t.median_ms, t.high_ms or t.median_ms) for row, t in zip(rows, times, strict=True)
    ]
    least = min(rows, key=lambda row: row.summary.median_ms)
    files = []
    for file in answer.files:
        size, macs = f"{file.bytes / 1e6:.2f}", "–" if file.macs is None else f"{file.macs / 1e6:.1f}"
        inputs = ", ".join(f"{name}: {shape}" for name, shape in file.inputs.items())
        files.append((file.name, file.kind, size, macs, inputs, file.sha256[:16]))
    machine = [
        ("processor", seen.processor),
        ("system", seen.system),
        ("cores", f"{', '.join(map(str, seen.cores))} of {len(seen.process_cores)} that this process may use"),
        ("governor", ", ".join(sorted(set(seen.governors.values()))) or "not told"),
        ("frequency, MHz", _pairs(seen.mhz_before, seen.mhz_after, ".0f")),
        ("temperature, °C", _pairs(seen.celsius_before, seen.celsius_after, ".1f")),
        ("load", f"{_known(seen.load_before, '.2f')} before, {_known(seen.load_after, '.2f')} after"),
        ("cores' time that the host gave to others", _known(seen.stolen, ".1%")),
        ("cores' time in which they computed", _known(seen.busy, ".0%")),
    ]
    titles = ("file", "kind", "MB", "M MACs", "inputs", "SHA-256")
    repeated = "“Another run” is where the median of another such measurement is expected in 95 % of all cases."
    contenders = Grid("A dash means unknown", BENCH_HEADINGS, [bench_cells(row) for row in rows], range(1, 9))
    return Page(
        title=f"{len(rows)} timed in turns" if len(rows) > 1 else f"{rows[0].name}, timed",
        lead=[answer.verdict],
        facts=[
            Fact("least time", f"{least.summary.median_ms:.3g} ms", least.name),
            Fact("rounds", f"{answer.starts * answer.rounds}", f"{answer.starts} starts of {answer.rounds} in {answer.seconds:.1f} s"),
            Fact("warm-up rounds", ", ".join(map(str, answer.warmup)), f"seed {answer.seed}"),
        ],
        sections=[
            *_times("Median of each with its 95 % interval", drawn),
            Section("contenders", "Side by side", (repeated,), [contenders]),
            Section("files", "Files", (), [Grid("Timed files", titles, files, (2, 3))], printed=False),
            Section("machine", "The machine", (), [Grid("As the system reported it", ("what", "how"), machine)]),
        ],
        warnings=answer.warnings,
        source=answer.source,
    )


def _times(title: str, rows: Sequence[ChartInterval]) -> list[Section]:
    """The times of what is compared, the least one drawn strongly."""
    if not rows:
        return []
    least = min(rows, key=lambda row: row.value)
    more = f" The first {_DRAWN} of {len(rows)} are drawn." if len(rows) > _DRAWN else ""
    words = f"{least.label} takes the least time with {least.value:.3g} ms.{more}"
    drawn = [replace(row, strong=row is least) for row in rows[:_DRAWN]]
    return [Section("times", "Times", (), [intervals("times-chart", title, words, drawn, "ms")])]


def _between(low: float | None, high: float | None, form: str) -> str:
    return "–" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _pairs(before: dict[str, float], after: dict[str, float], form: str) -> str:
    both = [f"{name} {value:{form}} → {after[name]:{form}}" for name, value in before.items() if name in after]
    return ", ".join(both) or "not told"


# The report of `stretch advise`: speed-ups as bars, with the best single processor of each device.


def advice_page(advice: Advice) -> Page:
    """The page of an answer for many devices."""
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
        drawn, said = intervals("ratios", title, words, rows, "speed-up"), ["Above 1 branching is faster; recommended values are bold."]
        sections.append(Section("gains", "Devices where branching helps", said, [drawn], printed=False))
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
