"""Charts as pieces of SVG that stand in a page; matplotlib draws them."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Fills that can be told apart by their brightness and their strokes as well as by their colour (Okabe and Ito's palette).
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
    kind: str  # ``computing``, ``exchange``, ``join`` or ``others`` (what somebody else takes).
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
    title: str  # What it shows.
    words: str  # What is to be seen in it.
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


def _plain(text: str) -> str:
    """Text of which matplotlib makes no formula."""
    return text.replace("$", r"\$")


def timeline(name: str, title: str, words: str, groups: Mapping[str, Sequence[Bar]], total_ms: float) -> Chart:
    """What ran where and when.

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
                style = {"facecolor": colour, "edgecolor": INK, "linewidth": 0.4, "hatch": hatch}
                axes.broken_barh([(bar.start_ms, bar.ms)], (y - 0.38, 0.76), **style)
                if bar.kind == "computing" and bar.label and bar.ms > 0.011 * len(bar.label) * total_ms:
                    axes.text(bar.start_ms + bar.ms / 2, y, _plain(bar.label), ha="center", va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(rows)), [_plain(row if len(groups) == 1 else f"{row}, {group}") for group, row in rows])
        axes.set(xlim=(0, total_ms), ylim=(len(rows) - 0.5, -0.5), xlabel="ms")
        named = ((colour, hatch, label) for kind, (colour, hatch, label) in BARS.items() if kind in shown)
        handles = [Patch(facecolor=colour, edgecolor=INK, hatch=hatch, label=label) for colour, hatch, label in named]
        figure.legend(handles=handles, ncols=len(handles), loc="outside upper left", fontsize=9, frameon=False)
        return figure

    return Chart(name, title, words, draw, groups, total_ms)


def intervals(name: str, title: str, words: str, rows: Sequence[ChartInterval], unit: str) -> Chart:
    """Values with their intervals, one below the other."""

    def draw() -> "Figure":
        figure, axes = _figure(0.75 + 0.34 * len(rows))
        for y, row in enumerate(rows):
            edge, colour, hatch = (ACCENT, FILLS[0][0], "//") if row.strong else ("#5a5a5a", FILLS[5][0], "")
            axes.barh(y, row.value, height=0.56, color=colour, edgecolor=edge, hatch=hatch)
            if row.low < row.value or row.high > row.value:
                axes.errorbar(row.value, y, xerr=[[row.value - row.low], [row.high - row.value]], color=INK, capsize=4, linewidth=1.4)
            style = {"textcoords": "offset points", "va": "center", "fontsize": 9, "color": INK}
            axes.annotate(f"{row.value:.3g}", (max(row.high, row.value), y), (7, 0), **style)
        axes.set_yticks(range(len(rows)), [_plain(row.label) for row in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=unit, xlim=(0, 1.12 * max((max(row.high, row.value) for row in rows), default=1.0)))
        return figure

    return Chart(name, title, words, draw)


def spread(name: str, title: str, words: str, rows: Sequence[tuple[str, float, float]], middle: float, unit: str) -> Chart:
    """What a value becomes when something halves and when it doubles, one below the other."""

    def draw() -> "Figure":
        figure, axes = _figure(0.9 + 0.34 * len(rows))
        for y, (_, half, twice) in enumerate(rows):
            axes.plot([half, twice], [y, y], color="#5a5a5a", linewidth=2.5, zorder=1)
            axes.scatter([half], [y], marker="o", s=46, facecolor="white", edgecolor=INK, zorder=2, label="at half" if y == 0 else None)
            axes.scatter([twice], [y], marker="s", s=46, color=ACCENT, zorder=2, label="at twice" if y == 0 else None)
        axes.axvline(middle, color=INK, linestyle="--", linewidth=1, label="as it is")
        axes.axvline(1.0, color=OTHER, linestyle=":", linewidth=1.4, label="no faster than the best control")
        axes.set_yticks(range(len(rows)), [_plain(label) for label, *_ in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=unit)
        figure.legend(ncols=4, loc="outside upper left", fontsize=8, frameon=False)
        return figure

    return Chart(name, title, words, draw)


def histogram(name: str, title: str, words: str, values: Sequence[float], marks: Mapping[str, float], unit: str) -> Chart:
    """How often each value was."""

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
    """A value of one inference after another."""

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
