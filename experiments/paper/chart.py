"""Figures whose points show the source of their numbers: one mark per source, and one filling per series.

They are readable without colour: measured is a circle, simulated a square, predicted a triangle, published a larger diamond.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.records import Source
from stretch.report.html.page import ACCENT, OTHER, Chart

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Width in inches: letters stay legible if the picture is shrunk to a phone's width.
WIDTH = 6.4
#: Shape of a point, by the source of its number.
MARKS: dict[Source, str] = {"measured": "o", "simulated": "s", "predicted": "^", "paper": "D"}
#: Size and edge of a mark, in points.
OWN_MARK, PUBLISHED_MARK = (7.5, 1.2), (10, 1.6)
COLOURS: dict[Source, str] = {"measured": ACCENT, "simulated": "#00664d", "predicted": "#5b2a86", "paper": OTHER}


def marked(axes: "Axes", x: float, y: float, source: Source, filling: str = "full") -> None:
    """Draw a point of a source, with matplotlib's `fillstyle` as its filling."""
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
    """Return an entry of a legend: the mark of a source, and the name of a series."""
    words = {"paper": "published"}.get(source, source)
    return axes.plot([], [], label=f"{words}: {series}" if series else words, **_style(source, filling))[0]


def legend(figure: "Figure", handles: Sequence["Artist"]) -> None:
    """Add a legend of marks and lines below everything, in two columns."""
    handles = list(handles)
    labels = ["\n".join(textwrap.wrap(str(item.get_label()), 40)) for item in handles]
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=9.5, frameon=False, handletextpad=0.6)


def as_svg(name: str, title: str, words: str, figure: "Figure") -> str:
    """Return a figure as the text of an SVG file; equal numbers give equal bytes.

    Args:
        name: Name of the figure, one word.
        title: Subject of the figure, which screen readers read.
        words: Content of the figure, which screen readers also read.
        figure: The drawing.
    """
    width, height = figure.get_size_inches()
    size = f'width="{width * 100:.0f}" height="{height * 100:.0f}"'
    drawn = Chart(name, title, words, lambda: figure).svg
    current = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return drawn.replace("<svg ", f"<svg {current} {size} ", 1) + "\n"
