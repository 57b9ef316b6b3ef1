"""Figures whose points say where they come from: a mark for each source, and a filling for each series.

Readable without colour: measured is a circle, simulated a square, predicted a triangle, published a
larger diamond; the first series is filled, the second hollow, others half filled. What is published is
hollow first, so that a point of ours at the same place is seen within.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.records import Record, Row, Source
from stretch.report.html.page import ACCENT, INK, OTHER, Chart

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches across: letters stay legible where the picture is shrunk to a phone.
WIDTH = 6.4
#: Characters of a row's name before it takes a second line.
WRAP = 27
#: Shape of a point, by what its number is.
MARKS: dict[Source, str] = {"measured": "o", "simulated": "s", "predicted": "^", "paper": "D"}
#: How a point is filled, by the place of its series.
FILLS = ("full", "none", "left", "right", "top", "bottom")
#: Size and edge of a mark, in points.
OWN_MARK, PUBLISHED_MARK = (7.5, 1.2), (10, 1.6)
COLOURS: dict[Source, str] = {"measured": ACCENT, "simulated": "#00664d", "predicted": "#5b2a86", "paper": OTHER}


@dataclass(frozen=True)
class Point:
    """A number with its source."""

    value: float  # The number.
    source: Source  # How it came about.
    series: str = ""  # What it is one of; empty where a figure has one series of that source.
    low: float | None = None  # Lower end of its interval, where it has one.
    high: float | None = None  # Upper end.


@dataclass(frozen=True)
class Line:
    """A row of a panel."""

    name: str  # In words.
    points: tuple[Point, ...]  # What is shown on it.


@dataclass(frozen=True)
class Panel:
    """Rows that share an axis."""

    title: str  # What they have in common.
    axis: str  # What the axis counts, with its unit.
    lines: tuple[Line, ...]  # From above to below.
    bounds: tuple[tuple[Point, str], ...] = ()  # Numbers that hold for all rows, drawn across them, with their words.
    logarithmic: bool = False  # Whether equal factors are equally far apart.
    start: float | None = None  # Where the axis begins, where that is not left to the numbers.
    span: tuple[float, float] | None = None  # Both of its ends, where panels are to be compared with each other.


def point_of(record: Record, table: str, row: Row, column: str, series: str = "", ends: tuple[str, str] | None = None) -> Point | None:
    """A cell of a record as a point, its source as the record has it; None for an empty cell.

    Args:
        record: The record.
        table: Its table.
        row: A row of it.
        column: Of the number.
        series: As of `Point`.
        ends: Columns of the interval's ends; the same column twice holds half the interval.
    """
    value = row[column]
    if value is None:
        return None
    source = record.facts(table, row=str(next(iter(row.values()))), column=column).source
    assert source is not None
    low = high = None
    if ends is not None:
        low, high = (float(row[end] or 0) for end in ends)
        if ends[0] == ends[1]:
            low, high = float(value) - low, float(value) + high
    return Point(float(value), source, series, low, high)


def found(*points: Point | None) -> tuple[Point, ...]:
    """The points that are there."""
    return tuple(point for point in points if point is not None)


def rows_figure(panels: Sequence[Panel]) -> "Figure":
    """Panels of rows, one below the other, and a legend of what is shown.

    Args:
        panels: From above to below.
    """
    from matplotlib.figure import Figure

    heights = [(0.95 if last else 0.75) + _row(panel) * len(panel.lines) for panel, last in _with_labels(panels)]
    shown = _series(point for panel in panels for point in _points(panel))
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35 + 0.27 * ((len(shown) + 1) // 2)), layout="constrained")
    places = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for (panel, last), axes in zip(_with_labels(panels), places[:, 0], strict=True):
        _draw(panel, axes, shown)
        if last:
            axes.set_xlabel(panel.axis, fontsize=10)
    legend(figure, [handle(axes, *item, filling) for item, filling in shown.items()])
    return figure


def _row(panel: Panel) -> float:
    """Inches from a row to the next: rows of a panel are equally far apart, so the longest name counts."""
    return 0.3 + 0.17 * (max(len(_wrapped(line.name)) for line in panel.lines) - 1)


def _with_labels(panels: Sequence[Panel]) -> list[tuple[Panel, bool]]:
    """Each panel, and whether its axis is named: once for panels that follow each other and share it."""
    behind = [*(panel.axis for panel in panels[1:]), ""]
    return [(panel, panel.axis != after) for panel, after in zip(panels, behind, strict=True)]


def _points(panel: Panel) -> Iterator[Point]:
    yield from (point for line in panel.lines for point in line.points)
    yield from (point for point, _ in panel.bounds)


def _series(points: Iterator[Point]) -> dict[tuple[Source, str], str]:
    """Every source and series with how it is filled: in the order of sources, and of first use."""
    pairs = dict.fromkeys((point.source, point.series) for point in points)
    ordered = sorted(pairs, key=lambda pair: list(MARKS).index(pair[0]))
    fillings = {source: FILLS if source != "paper" else (FILLS[1], FILLS[0], *FILLS[2:]) for source in MARKS}
    return {pair: fillings[pair[0]][[item[1] for item in ordered if item[0] == pair[0]].index(pair[1])] for pair in ordered}


def _wrapped(name: str) -> list[str]:
    return textwrap.wrap(name, WRAP) or [name]


def _draw(panel: Panel, axes: "Axes", shown: dict[tuple[Source, str], str]) -> None:
    axes.set_yticks(range(len(panel.lines)), ["\n".join(_wrapped(line.name)) for line in panel.lines], fontsize=10)
    axes.set_ylim(len(panel.lines) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if panel.logarithmic:
        plain_log(axes, "x")
    for at, line in enumerate(panel.lines):
        for point in line.points:
            colour = COLOURS[point.source]
            if point.low is not None and point.high is not None:
                axes.plot([point.low, point.high], [at, at], color=colour, linewidth=1.4, zorder=2)
            marked(axes, point.value, at, point.source, shown[point.source, point.series])
    for point, words in panel.bounds:
        axes.axvline(point.value, color=COLOURS[point.source], linestyle=(0, (5, 3)), linewidth=1.4, zorder=1)
        marked(axes, point.value, len(panel.lines) - 0.55, point.source, shown[point.source, point.series])
        axes.annotate(words, (point.value, -0.6), xytext=(3, 2), textcoords="offset points", fontsize=9, color=COLOURS[point.source])
    if panel.start is not None:
        axes.set_xlim(left=panel.start)
    if panel.span is not None:
        axes.set_xlim(panel.span)
    above = {"pad": 16} if panel.bounds else {}
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", color=INK, **above)


def marked(axes: "Axes", x: float, y: float, source: Source, filling: str = "full") -> None:
    """A point of a source.

    Args:
        axes: Where.
        x: Across.
        y: Upwards.
        source: What its number is.
        filling: One of `FILLS`.
    """
    axes.plot([x], [y], **_style(source, filling), zorder=3, clip_on=False)


def _style(source: Source, filling: str) -> dict[str, object]:
    colour, published = COLOURS[source], source == "paper"
    size, edge = PUBLISHED_MARK if published else OWN_MARK
    style = {
        "marker": MARKS[source],
        "markersize": size,
        "markeredgewidth": edge,
        "linestyle": "none",
        "color": colour,
        "markeredgecolor": colour,
        "fillstyle": "full" if filling == "none" else filling,
        "markerfacecoloralt": "#ffffff",
    }
    return style | ({"markerfacecolor": "none" if published else "#ffffff"} if filling == "none" else {})


def handle(axes: "Axes", source: Source, series: str, filling: str = "full") -> "Artist":
    """An entry of a legend: the mark of a source, and the words of a series."""
    words = {"paper": "published"}.get(source, source)
    return axes.plot([], [], label=f"{words}: {series}" if series else words, **_style(source, filling))[0]


def legend(figure: "Figure", handles: Sequence["Artist"]) -> None:
    """What marks and lines mean, below everything, in two columns."""
    handles = list(handles)
    labels = ["\n".join(textwrap.wrap(str(item.get_label()), 40)) for item in handles]
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=9.5, frameon=False, handletextpad=0.6)


def plain_log(axes: "Axes", which: str) -> None:
    """A logarithmic axis whose numbers are written out.

    Args:
        axes: Whose.
        which: ``x`` or ``y``.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    current = getattr(axes, f"{which}axis")
    current.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    current.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    current.set_minor_formatter(NullFormatter())


def as_svg(name: str, title: str, words: str, figure: "Figure") -> str:
    """A figure as a file of its own: the same numbers give the same bytes.

    Args:
        name: One word.
        title: What it shows, for those who cannot see it.
        words: What is to be seen in it, for them too.
        figure: The drawing.
    """
    width, height = figure.get_size_inches()
    size = f'width="{width * 100:.0f}" height="{height * 100:.0f}"'
    drawn = Chart(name, title, words, lambda: figure).svg
    current = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return drawn.replace("<svg ", f"<svg {current} {size} ", 1) + "\n"
