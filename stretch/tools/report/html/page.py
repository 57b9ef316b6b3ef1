"""Contents of a report page, and its rendering to one file."""

import datetime
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

from predictors.errors import StretchError, UsageError, install_line
from predictors.files import write_whole
from stretch.environment import version
from stretch.tools.report.html.charts import Chart
from stretch.tools.report.html.stretched import KINDS, StretchedRow

#: Packages whose versions a page states where they are installed.
_PACKAGES = ("nn-stretch", "torch", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Fact:
    """A key figure."""

    label: str  # What it is.
    value: str  # The number with its unit, or a word.
    note: str = ""  # What it has to be read with.


@dataclass(frozen=True)
class Grid:
    """A table."""

    caption: str  # What it shows.
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
    lead: Sequence[str]  # The answer in a sentence or two.
    facts: Sequence[Fact] = ()  # The numbers that are read first.
    sections: Sequence[Section] = ()  # In order.
    warnings: Sequence[str] = ()  # What a reader must know.
    source: str = "predicted"  # Where the numbers come from: ``predicted``, ``simulated``, ``measured``, or several of these.
    made_from: Sequence[tuple[str, str]] = ()  # What led to the page besides, as label and value: the command, the profile, the weights.
    notes: Sequence[str] = ()  # What a terminal has last, and a page not: what to do next.
    facts_printed: bool = True  # Whether a terminal has the facts, too.
    refused: bool = False  # Whether it tells why there is no result.
    language: Literal["en"] = field(default="en", init=False)


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
    """A page as the text of one HTML file; everything in it that is not ours is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("stretch.tools.report.html")
    loader = FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader)
    environment.tests["facts"] = lambda part: not isinstance(part, Grid | Chart | Stretched)
    environment.tests["grid"] = lambda part: isinstance(part, Grid)
    environment.tests["chart"] = lambda part: isinstance(part, Chart)
    return environment.get_template("page.jinja").render(
        page=page, style=(folder / "page.css").read_text(encoding="utf-8"), made=_made(), kinds=KINDS
    )


def write_page(page: Page, path: Path) -> None:
    """Write a page in one step: the file is whole or not there."""
    write_whole(path, render(page).encode(), "report", "choose another place with --html")


def _made() -> list[tuple[str, str]]:
    """Date and versions of a page."""
    versions = [f"{name} {known}" for name in _PACKAGES if (known := version(name))]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [
        ("made", now),
        ("versions", ", ".join([f"Python {platform.python_version()}", *versions])),
        ("computed on", platform.platform()),
    ]
