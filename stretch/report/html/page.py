"""Contents of a report page, and its rendering to one file."""

import datetime
import platform
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.errors import StretchError, UsageError, install_line
from predictors.files import check_folder, write_whole
from stretch.profile.environment import version

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stretch.planning.cost.makespan import BranchTime, SegmentTime
    from stretch.planning.result import PlanResult


# Charts, which matplotlib draws as SVG elements of a page.

#: Fills that differ in colour (Okabe and Ito's palette), brightness and hatching.
FILLS = (("#9ecae9", "//"), ("#ffd58a", "\\\\"), ("#a5dbc2", ".."), ("#e9b8d4", "xx"), ("#f2b48a", "++"), ("#d9d9d9", "--"))
INK, ACCENT, OTHER = "#1a1a1a", "#004c99", "#8f3b00"

#: Colour, hatching and meaning of each kind of bar in a timeline.
BARS = {
    "computing": (FILLS[0][0], "", "computes"),
    "exchange": (FILLS[1][0], "////", "moves data"),
    "join": (FILLS[3][0], "xxxx", "joins branches"),
    "others": ("#ffffff", "....", "taken by others"),
}

#: Width of a chart in inches; pages show charts at this size or smaller.
WIDTH = 7.6


@dataclass(frozen=True)
class Bar:
    """A stretch of time on a row of a timeline."""

    row: str  # Name of the row.
    start_ms: float  # Start, from the beginning of the timeline.
    ms: float  # Duration.
    kind: str  # ``computing``, ``exchange``, ``join`` or ``others`` (other programs).
    label: str = ""  # Name of the segment or subgraph.


@dataclass(frozen=True)
class ChartInterval:
    """A value with the ends of its interval."""

    label: str  # Name of the value.
    value: float  # The value.
    low: float  # Lower end; the value itself without an interval.
    high: float  # Upper end.
    strong: bool = False  # Whether it is highlighted.


@dataclass(frozen=True)
class Chart:
    """A picture with an alternative text; drawn when a page is written."""

    name: str  # Unique in its page, one word.
    title: str  # Subject of the chart.
    words: str  # Alternative text with its content.
    draw: "Callable[[], Figure]"  # Returns the figure.
    groups: Mapping[str, Sequence[Bar]] = field(default_factory=dict)  # Bars of a timeline, by name of the run; empty for other charts.
    total_ms: float = 0.0  # Duration of a timeline.

    @property
    def svg(self) -> str:
        """The drawing as an ``svg`` element, with text as text and with ids that are unique in the page."""
        import matplotlib as mpl

        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}), warnings.catch_warnings():
            # the browser draws the text, with other fonts than matplotlib
            warnings.filterwarnings("ignore", message="Glyph")
            stream = StringIO()
            # without a date, equal numbers yield an equal page
            self.draw().savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        match = re.search(r"<svg.*</svg>", stream.getvalue(), re.DOTALL)
        assert match is not None
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", match[0], flags=re.DOTALL)
        # drop the ids of groups (figure_1, axes_1, …), which nothing refers to; make all other ids unique to this chart
        text = re.sub(r'<g id="[A-Za-z]+_[\d_]+"', "<g", text)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{self.name}-", text)
        labels = f"{self.name}-title {self.name}-words"
        text = re.sub(r"<svg[^>]*viewBox=\"([^\"]*)\"[^>]*>", rf'<svg viewBox="\1" role="img" aria-labelledby="{labels}">', text)
        head = f'<title id="{self.name}-title">{escape(self.title)}</title><desc id="{self.name}-words">{escape(self.words)}</desc>'
        return text.replace(">", ">" + head, 1)


def _escape_formulas(text: str) -> str:
    """Escape a text so that matplotlib does not parse formulas in it."""
    return text.replace("$", r"\$")


def timeline(name: str, title: str, words: str, groups: Mapping[str, Sequence[Bar]], total_ms: float) -> Chart:
    """Return a timeline of the parts of one or more runs.

    Args:
        groups: Bars by the name of their run, such as ``predicted`` and ``measured``; runs are drawn below each other.
    """

    def draw() -> "Figure":
        from matplotlib.patches import Patch

        rows = [(group, row) for group, bars in groups.items() for row in dict.fromkeys(bar.row for bar in bars)]
        figure, axes = _figure(0.9 + 0.42 * len(rows))
        shown = set()
        for group, bars in groups.items():
            for bar in bars:
                y = rows.index((group, bar.row))
                colour, hatch, _ = BARS[bar.kind]
                shown.add(bar.kind)
                axes.broken_barh([(bar.start_ms, bar.ms)], (y - 0.38, 0.76), facecolor=colour, edgecolor=INK, linewidth=0.4, hatch=hatch)
                if bar.kind == "computing" and bar.label and bar.ms > 0.011 * len(bar.label) * total_ms:
                    axes.text(bar.start_ms + bar.ms / 2, y, _escape_formulas(bar.label), ha="center", va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(rows)), [_escape_formulas(row if len(groups) == 1 else f"{row}, {group}") for group, row in rows])
        axes.set(xlim=(0, total_ms), ylim=(len(rows) - 0.5, -0.5), xlabel="ms")
        named = ((colour, hatch, label) for kind, (colour, hatch, label) in BARS.items() if kind in shown)
        handles = [Patch(facecolor=colour, edgecolor=INK, hatch=hatch, label=label) for colour, hatch, label in named]
        figure.legend(handles=handles, ncols=len(handles), loc="outside upper left", fontsize=9, frameon=False)
        return figure

    return Chart(name, title, words, draw, groups, total_ms)


def intervals(name: str, title: str, words: str, rows: Sequence[ChartInterval], unit: str) -> Chart:
    """Return a chart of values with their intervals, one per row."""

    def draw() -> "Figure":
        figure, axes = _figure(0.75 + 0.34 * len(rows))
        for y, row in enumerate(rows):
            edge, colour, hatch = (ACCENT, FILLS[0][0], "//") if row.strong else ("#5a5a5a", FILLS[5][0], "")
            axes.barh(y, row.value, height=0.56, color=colour, edgecolor=edge, hatch=hatch)
            if row.low < row.value or row.high > row.value:
                axes.errorbar(row.value, y, xerr=[[row.value - row.low], [row.high - row.value]], color=INK, capsize=4, linewidth=1.4)
            label, at = f"{row.value:.3g}", (max(row.high, row.value), y)
            axes.annotate(label, at, (7, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
        axes.set_yticks(range(len(rows)), [_escape_formulas(row.label) for row in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=unit, xlim=(0, 1.12 * max((max(row.high, row.value) for row in rows), default=1.0)))
        return figure

    return Chart(name, title, words, draw)


def spread(name: str, title: str, words: str, rows: Sequence[tuple[str, float, float]], middle: float, unit: str) -> Chart:
    """Return a chart of a value if a number is halved and doubled, one number per row."""

    def draw() -> "Figure":
        figure, axes = _figure(0.9 + 0.34 * len(rows))
        for y, (_, half, twice) in enumerate(rows):
            axes.plot([half, twice], [y, y], color="#5a5a5a", linewidth=2.5, zorder=1)
            axes.scatter([half], [y], marker="o", s=46, facecolor="white", edgecolor=INK, zorder=2, label="at half" if y == 0 else None)
            axes.scatter([twice], [y], marker="s", s=46, color=ACCENT, zorder=2, label="at twice" if y == 0 else None)
        axes.axvline(middle, color=INK, linestyle="--", linewidth=1, label="as it is")
        axes.axvline(1.0, color=OTHER, linestyle=":", linewidth=1.4, label="as fast as the best baseline")
        axes.set_yticks(range(len(rows)), [_escape_formulas(label) for label, *_ in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=unit)
        figure.legend(ncols=4, loc="outside upper left", fontsize=8, frameon=False)
        return figure

    return Chart(name, title, words, draw)


def histogram(name: str, title: str, words: str, values: Sequence[float], marks: Mapping[str, float], unit: str) -> Chart:
    """Return a histogram of values with labelled marks."""

    def draw() -> "Figure":
        figure, axes = _figure(2.6)
        # values that only differ in their last digits do not span forty bins
        around = max(1e-6, 1e-3 * abs(max(values)), (max(values) - min(values)) / 50)
        axes.hist(values, bins=40, range=(min(values) - around, max(values) + around), color=FILLS[0][0], edgecolor=INK, linewidth=0.5)
        for (label, at), style in zip(marks.items(), ("-", "--", ":", "-."), strict=False):
            axes.axvline(at, color=OTHER, linestyle=style, linewidth=1.4, label=f"{label} {at:.4g}")
        axes.set(xlabel=unit, ylabel="inferences")
        axes.grid(visible=True, axis="y", alpha=0.25)
        if marks:
            axes.legend(fontsize=8)
        return figure

    return Chart(name, title, words, draw)


def over_time(name: str, title: str, words: str, values: Sequence[float], unit: str) -> Chart:
    """Return a chart of a value over consecutive inferences."""

    def draw() -> "Figure":
        figure, axes = _figure(2.6)
        axes.plot(range(len(values)), values, color=ACCENT, linewidth=1, marker="." if len(values) <= 400 else None)
        axes.set(xlabel="inference", ylabel=unit, ylim=(0, None))
        axes.grid(visible=True, alpha=0.25)
        return figure

    return Chart(name, title, words, draw)


def _figure(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


# Diagram of a network before and after branching: each segment is a chain of blocks, next to its branches.

#: Minimum number of consecutive whole segments on one processor that are drawn as one.
LONG = 4

#: Height of a block and maximum height of a chain, pixels.
_BLOCK, _HIGHEST = 14, 168


@dataclass(frozen=True)
class Box:
    """A branch in the diagram."""

    processor: str  # Name of its processor.
    place: int  # Index of the processor in the legend.
    words: str  # Text on its work and time.
    kind: str  # ``chain`` of blocks, or a ``part`` of the feature map.
    blocks: int = 1  # Number of blocks in the chain.
    height: float = _BLOCK  # Height of the chain, px.
    width: float = 100.0  # Width of the chain, percent of the original's channels.
    top: float = 0.0  # Vertical start of the part, percent of the map's height; 0 for a chain.
    left: float = 0.0  # Horizontal start of the part, percent of the map's channels or paths; 0 for a chain.
    share: float = 100.0  # Extent of the part, percent: of the height for a band, else of the width.
    across: bool = False  # Whether parts are channels or paths, drawn side by side; bands of rows are drawn below each other.
    halo: float = 0.0  # Repeated computation, percent of its extent.


@dataclass(frozen=True)
class StretchedRow:
    """A row of the diagram: a segment, or several whole segments."""

    name: str  # Name of the segment, or of the first and the last.
    kind: str  # ``whole``, ``stretch``, ``rows``, ``channels``, ``graph`` or ``beside``.
    before: str  # Text on the original.
    blocks: int  # Number of blocks of the original.
    height: float  # Height of the original's chain, px.
    boxes: Sequence[Box]  # Branches of the row.
    meets: str  # Text on the meeting point; empty for one branch.


#: Names of the kinds of segments.
KINDS = {
    "whole": "stays whole",
    "stretch": "stretched: scaled copies side by side",
    "rows": "divided exactly: bands of rows",
    "channels": "divided exactly: some channels each",
    "graph": "divided exactly: along the network's own graph",
    "beside": "outside the backbone",
}


def stretched_rows(plan: "PlanResult") -> tuple[list[StretchedRow], list[str]]:
    """Return the rows of the diagram, and the processors in the order of the legend."""
    used = plan.design.processors
    processors = [name for name in dict.fromkeys((*plan.config.precision, *used)) if name in used]
    scale = min(_BLOCK, _HIGHEST / max([1, *(row.segment.depth for row in plan.run.segments)]))
    rows: list[StretchedRow] = []
    run: list[SegmentTime] = []

    def flush() -> None:
        if len(run) < LONG:
            rows.extend(_row(segment, processors, scale) for segment in run)
        elif run:
            rows.append(_group_whole_segments(run, processors))
        run.clear()

    for segment in plan.run.segments:
        if run and (segment.kind != "whole" or segment.branches[0].scale.processor != run[0].branches[0].scale.processor):
            flush()
        if segment.kind == "whole" and segment.branches:
            run.append(segment)
        else:
            rows.append(_row(segment, processors, scale))
    flush()
    for side, time in plan.run.sides:
        name, operators = time.scale.processor, sum(op.kind != "input" for op in side.ops)
        box = Box(name, processors.index(name), f"{name}: {time.ms:.2f} ms", "chain")
        rows.append(StretchedRow(side.name, "beside", f"{operators} operators", 1, _BLOCK, [box], ""))
    return rows, processors


def _row(row: "SegmentTime", processors: list[str], scale: float) -> StretchedRow:
    depth, join = row.segment.depth, row.design.join
    before = f"{_count(depth, 'block')} of {row.segment.width} channels"
    boxes = [_box(row, branch, processors.index(branch.scale.processor), scale) for branch in row.branches]
    joined = f"{f': {join}' if join != 'none' else ''}{f', {row.join_ms:.2f} ms' if row.join_ms else ''}"
    meets = f"meeting point{joined}" if len(boxes) > 1 else ""
    return StretchedRow(row.segment.name, row.kind, before, max(1, depth), scale * max(1, depth), boxes, meets)


def _box(row: "SegmentTime", time: "BranchTime", place: int, scale: float) -> Box:
    from stretch.planning.design.branch_design import range_of, shares_of

    segment, branch, takes, macs = row.segment, time.scale, f"{time.ms:.2f} ms", row.segment.graph.macs

    def chain(words: str, depth: int, width: float = 100.0) -> Box:
        blocks = max(1, depth)
        return Box(branch.processor, place, f"{branch.processor}: {words}{takes}", "chain", blocks, scale * blocks, width)

    if row.kind == "stretch":
        words = f"{branch.depth} of {_count(segment.depth, 'block')}, {branch.width} of {segment.width} channels, "
        return chain(words, branch.depth, min(100.0, 100.0 * branch.width / max(1, segment.width)))
    word, share = next(iter(shares_of(branch).items()), ("ends", ()))
    if word == "ends":
        return chain(f"up to {', '.join(map(str, share))}, " if share else "", segment.depth)
    (start, stop), across = range_of(share), word != "rows"
    spans = [range_of(shares_of(other.scale)[word]) for other in row.branches]
    first = min(spans)[0]
    whole = 0 if across or len(row.shape) != 4 else row.shape[2]
    extent = max(1, whole - first, *(last - first for _, last in spans))
    size, at = 100.0 * (stop - start) / extent, 100.0 * (start - first) / extent
    halo = 0.0 if across or not macs else max(0.0, time.macs / macs - size / 100)
    beyond = f", {halo:.1%} of the segment's MACs computed twice" if halo > 0.0005 else ""
    words = f"{branch.processor}: {word} {start} to {stop - 1}{beyond}, {takes}"
    left, top = (at, 0.0) if across else (0.0, at)
    halo = min(40.0, 100 * halo * 100 / max(size, 1))
    return Box(branch.processor, place, words, "part", share=size, left=left, top=top, halo=halo, across=across)


def _group_whole_segments(run: "Sequence[SegmentTime]", processors: list[str]) -> StretchedRow:
    """Return consecutive whole segments on one processor as one row."""
    processor = run[0].branches[0].scale.processor
    ms = sum(row.ms for row in run)
    blocks = sum(row.segment.depth for row in run)
    box = Box(processor, processors.index(processor), f"{processor}: {len(run)} segments whole, {ms:.2f} ms", "chain", LONG, LONG * _BLOCK)
    return StretchedRow(
        f"{run[0].segment.name} to {run[-1].segment.name}",
        "whole",
        f"{len(run)} segments, {_count(blocks, 'block')}",
        LONG,
        LONG * _BLOCK,
        [box],
        "",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


#: Packages whose versions a page states if they are installed.
_PACKAGES = ("nn-stretch", "torch", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Fact:
    """A key figure."""

    label: str  # Name of the figure.
    value: str  # The number with its unit, or a word.
    note: str = ""  # A remark for the reader.


@dataclass(frozen=True)
class Grid:
    """A table."""

    caption: str  # Caption of the table.
    columns: Sequence[str]  # Headings.
    rows: Sequence[Sequence[str]]  # Cells as text, one per heading.
    right: Sequence[int] = ()  # Indices of the columns with numbers.
    folded: bool = False  # Whether the table is collapsed at first.


@dataclass(frozen=True)
class Stretched:
    """A network before and after branching, segment by segment."""

    rows: Sequence[StretchedRow]  # The segments in order.
    processors: Sequence[str]  # Processors with work, in the order of the legend.


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    name: str  # Name of the anchor, one word.
    heading: str  # Title of the section.
    words: Sequence[str] = ()  # Paragraphs before the parts.
    parts: Sequence["Sequence[Fact] | Grid | Chart | Stretched"] = ()  # Facts, tables, pictures.
    printed: bool = True  # Whether a terminal also shows the section: its words, tables and timelines.


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str  # Title of the file and its first heading.
    lead: Sequence[str] = ()  # The answer in one or two sentences, for a page without `brief`.
    facts: Sequence[Fact] = ()  # Key figures.
    sections: Sequence[Section] = ()  # Sections, in order.
    warnings: Sequence[str] = ()  # Warnings for the reader.
    source: str = "predicted"  # Source of the numbers: ``predicted``, ``simulated``, ``measured``, or several of these.
    made_from: Sequence[tuple[str, str]] = ()  # Sources of the page, as label and value: the command, the profile, the weights.
    notes: Sequence[str] = ()  # Last lines in a terminal, absent from a page: the next step.
    facts_printed: bool = True  # Whether a terminal also shows the facts.
    #: Answer, numbers, reason, confidence and next command, at the start of every rendering; without `--details` a terminal shows only these.
    brief: Sequence["str | Grid"] = ()
    refused: bool = False  # Whether it states the reason for a missing result.

    @property
    def head(self) -> Sequence["str | Grid"]:
        """Lines at the start of the page: the answer, its numbers and reasons."""
        return [line for line in self.brief or self.lead if line not in self.following]

    @property
    def following(self) -> Sequence[str]:
        """Lines with the next commands."""
        return [line for line in self.brief if isinstance(line, str) and line.startswith(("Next: ", "      "))]


def check_page(path: Path) -> None:
    """Check that a page can be written, before the computation begins."""
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"--html {path} is no .html file", "give the file this ending")
    if path.is_dir():
        raise UsageError(f"--html {path} is a folder", "name a file")
    check_folder(path, "--html")
    try:
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise StretchError("reports need jinja2 and matplotlib", install_line("plot")) from error


def render(page: Page) -> str:
    """Render a page as one HTML file; all inserted text is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("stretch.report.html")
    loader = FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader)
    environment.tests["facts"] = lambda part: not isinstance(part, Grid | Chart | Stretched)
    environment.tests["grid"] = lambda part: isinstance(part, Grid)
    environment.tests["chart"] = lambda part: isinstance(part, Chart)
    return environment.get_template("page.jinja").render(
        page=page, style=(folder / "page.css").read_text(encoding="utf-8"), made=_provenance(), kinds=KINDS
    )


def write_page(page: Page, path: Path) -> None:
    """Write a page atomically."""
    write_whole(path, render(page).encode(), "report", "choose another place with --html")


def _provenance() -> list[tuple[str, str]]:
    """Return the date and versions of a page."""
    versions = [f"{name} {installed}" for name in _PACKAGES if (installed := version(name))]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [
        ("made", now),
        ("versions", ", ".join([f"Python {platform.python_version()}", *versions])),
        ("computed on", platform.platform()),
    ]
