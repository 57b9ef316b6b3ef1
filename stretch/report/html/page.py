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
from typing import TYPE_CHECKING, Literal

from predictors.errors import StretchError, UsageError, install_line
from predictors.files import write_whole
from stretch.profile.environment import version

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from stretch.planning.cost.makespan import BranchTime, SegmentTime
    from stretch.planning.result import PlanResult


# Charts as pieces of SVG in a page; matplotlib draws them.

#: Fills that differ in brightness and strokes as well as in colour (Okabe and Ito's palette).
FILLS = (("#9ecae9", "//"), ("#ffd58a", "\\\\"), ("#a5dbc2", ".."), ("#e9b8d4", "xx"), ("#f2b48a", "++"), ("#d9d9d9", "--"))
INK, ACCENT, OTHER = "#1a1a1a", "#004c99", "#8f3b00"

#: Colour, strokes and meaning of each kind of bar of a timeline.
BARS = {
    "computing": (FILLS[0][0], "", "computes"),
    "exchange": (FILLS[1][0], "////", "moves data"),
    "join": (FILLS[3][0], "xxxx", "joins branches"),
    "others": ("#ffffff", "....", "taken by others"),
}

#: Inches across; pages show charts at this size or smaller.
WIDTH = 7.6


@dataclass(frozen=True)
class Bar:
    """A stretch of time on a row of a timeline."""

    row: str  # On which.
    start_ms: float  # From the beginning.
    ms: float  # Its length.
    kind: str  # ``computing``, ``exchange``, ``join`` or ``others`` (other programs).
    label: str = ""  # Of the segment or subgraph.


@dataclass(frozen=True)
class ChartInterval:
    """A value with the ends of its interval."""

    label: str  # Of what.
    value: float  # The value.
    low: float  # Lower end; the value itself where it has none.
    high: float  # Upper end.
    strong: bool = False  # Whether it is the one that the others are compared with.


@dataclass(frozen=True)
class Chart:
    """A picture with words for those who cannot see it; drawn when a page is written."""

    name: str  # Unique in its page, one word.
    title: str  # Subject of the chart.
    words: str  # Its content in words.
    draw: "Callable[[], Figure]"  # Draws it.
    groups: Mapping[str, Sequence[Bar]] = field(default_factory=dict)  # Of a timeline, its bars by the name of their run.
    total_ms: float = 0.0  # Of a timeline, its length.

    @property
    def svg(self) -> str:
        """The drawing, an ``svg`` element: its text stays text, and its names are its own in the page."""
        import matplotlib as mpl

        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}), warnings.catch_warnings():
            # text is drawn by the browser, which has other fonts than matplotlib
            warnings.filterwarnings("ignore", message="Glyph")
            stream = StringIO()
            # without a date the same numbers give the same page
            self.draw().savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        match = re.search(r"<svg.*</svg>", stream.getvalue(), re.DOTALL)
        assert match is not None
        text = re.sub(r"<metadata>.*?</metadata>\s*", "", match[0], flags=re.DOTALL)
        # groups are called figure_1, axes_1 and so on, and nothing refers to them; other names must be this chart's own
        text = re.sub(r'<g id="[A-Za-z]+_[\d_]+"', "<g", text)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{self.name}-", text)
        labels = f"{self.name}-title {self.name}-words"
        text = re.sub(r"<svg[^>]*viewBox=\"([^\"]*)\"[^>]*>", rf'<svg viewBox="\1" role="img" aria-labelledby="{labels}">', text)
        head = f'<title id="{self.name}-title">{escape(self.title)}</title><desc id="{self.name}-words">{escape(self.words)}</desc>'
        return text.replace(">", ">" + head, 1)


def _escape_formulas(text: str) -> str:
    """Return the text of which matplotlib makes no formula."""
    return text.replace("$", r"\$")


def timeline(name: str, title: str, words: str, groups: Mapping[str, Sequence[Bar]], total_ms: float) -> Chart:
    """Draw where each part ran, and when.

    Args:
        groups: Bars by the name of their run, such as ``predicted`` and ``measured``, drawn one below the other.
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
    """Return the values with their intervals, one below the other."""

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
    """Draw a value with a number halved and doubled, one below the other."""

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
    """Return how often each value was."""

    def draw() -> "Figure":
        figure, axes = _figure(2.6)
        # values that differ by their last digits only have no forty bins between them
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
    """Return a value of one inference after another."""

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


# Diagram of a network before and after branching: each segment as a chain of blocks, with its branches next to it.

#: Segments in a row that stay whole on one processor are drawn as one from this number on.
LONG = 4

#: Height of a block in pixels, and of the highest chain of them.
_BLOCK, _HIGHEST = 14, 168


@dataclass(frozen=True)
class Box:
    """A branch in the picture."""

    processor: str  # Where it runs.
    place: int  # Of that processor in the legend, from 0.
    words: str  # Its work and time.
    kind: str  # ``chain`` of blocks, or a ``part`` of the feature map.
    blocks: int = 1  # Blocks of the chain.
    height: float = _BLOCK  # Of the chain, px.
    width: float = 100.0  # Of the chain, percent of the original's channels.
    top: float = 0.0  # Where its part begins, percent of the map's height; 0 for a chain.
    left: float = 0.0  # The same of the map's width or channels.
    share: float = 100.0  # Its extent, percent: of the height of a band, of the width else.
    across: bool = False  # Whether the part is one of channels or paths, drawn side by side; bands of rows lie one above the other.
    halo: float = 0.0  # Computation beyond its share, percent of its extent.


@dataclass(frozen=True)
class StretchedRow:
    """A segment, or several that stay whole."""

    name: str  # Of the segment, or of the first and last.
    kind: str  # ``whole``, ``stretch``, ``rows``, ``channels``, ``graph`` or ``beside``.
    before: str  # The original in words.
    blocks: int  # Blocks of the original.
    height: float  # Of the original's chain, px.
    boxes: Sequence[Box]  # Its branches.
    meets: str  # How they meet; empty where there is one.


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
    """Return the rows of the picture, and the processors in the order of the legend."""
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
    for side in plan.run.sides:
        name, operators = side.time.scale.processor, sum(op.kind != "input" for op in side.graph.ops)
        box = Box(name, processors.index(name), f"{name}: {side.time.ms:.2f} ms", "chain")
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
    from stretch.planning.design.division import range_of, shares_of

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
    """Return the segments that stay whole on one processor, as one row."""
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


#: Packages whose versions a page states where they are installed.
_PACKAGES = ("nn-stretch", "torch", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Fact:
    """A key figure."""

    label: str  # Its label.
    value: str  # The number with its unit, or a word.
    note: str = ""  # A remark for the reader.


@dataclass(frozen=True)
class Grid:
    """A table."""

    caption: str  # Its caption.
    columns: Sequence[str]  # Headings.
    rows: Sequence[Sequence[str]]  # Cells as text, as many as headings.
    right: Sequence[int] = ()  # Columns that are numbers, by their place.
    folded: bool = False  # Whether it is shown only when opened.


@dataclass(frozen=True)
class Stretched:
    """A network before and after, segment by segment."""

    rows: Sequence[StretchedRow]  # The segments in order.
    processors: Sequence[str]  # Those that run something, in the order of the legend.


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    name: str  # Of the anchor, one word.
    heading: str  # Its title.
    words: Sequence[str] = ()  # Paragraphs before the rest.
    parts: Sequence["Sequence[Fact] | Grid | Chart | Stretched"] = ()  # Facts, tables, pictures.
    printed: bool = True  # Whether a terminal has it, too: its words, tables and timelines.


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str  # Of the file and its first heading.
    lead: Sequence[str] = ()  # The answer in a sentence or two, where there is no `brief`.
    facts: Sequence[Fact] = ()  # The numbers that are read first.
    sections: Sequence[Section] = ()  # In order.
    warnings: Sequence[str] = ()  # Warnings for the reader.
    source: str = "predicted"  # Where the numbers come from: ``predicted``, ``simulated``, ``measured``, or several of these.
    made_from: Sequence[tuple[str, str]] = ()  # Sources of the page, as label and value: the command, the profile, the weights.
    notes: Sequence[str] = ()  # Last lines in a terminal, absent from a page: the next step.
    facts_printed: bool = True  # Whether a terminal has the facts, too.
    #: Answer, numbers, reason, confidence and next command, which begin every rendering; a terminal shows no more unless details are asked for.
    brief: Sequence["str | Grid"] = ()
    refused: bool = False  # Whether it gives the reason why there is no result.
    language: Literal["en"] = field(default="en", init=False)

    @property
    def head(self) -> Sequence["str | Grid"]:
        """Return what begins the page: the answer, its numbers and reasons."""
        return [line for line in self.brief or self.lead if line not in self.following]

    @property
    def following(self) -> Sequence[str]:
        """Return the lines that say what to type next."""
        return [line for line in self.brief if isinstance(line, str) and line.startswith(("Next: ", "      "))]


def check_page(path: Path) -> None:
    """Check before the computation that a page can be written."""
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"--html {path} is no .html file", "give the file this ending")
    if path.is_dir():
        raise UsageError(f"--html {path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UsageError(f"the folder of --html {path} does not exist", "make it first")
    try:
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise StretchError("reports need jinja2 and matplotlib", install_line("plot")) from error


def render(page: Page) -> str:
    """Return a page as the text of one HTML file; everything in it that is not ours is escaped."""
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
    """Write a page in one step: the file is whole or not there."""
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
