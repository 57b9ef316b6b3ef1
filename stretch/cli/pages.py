"""`--html`: a verb's result as a page."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.output import COMMAND_LINE, Output

if TYPE_CHECKING:
    from stretch.report.html.page import Page

Html = Annotated[
    Path | None,
    typer.Option("--html", help="Write a report, one file without scripts that needs no network, to this .html file."),
]


def check_html(path: Path | None) -> None:
    """Refuse a report that could not be written, before anything is computed."""
    if path is not None:
        from stretch.report.html.page import check_page

        check_page(path)


def write_html(out: Output, path: Path | None, make: "Callable[[str], Page]") -> None:
    """Write the report, where one is asked for, and say so."""
    if path is None:
        return
    from stretch.report.html.page import write_page

    with out.progress("writing the report"):
        write_page(make(command_line()), path)
    out.note(f"report: {path}")


def command_line() -> str:
    """The words that this program was started with, as one could type them; empty where a verb is called otherwise."""
    words = COMMAND_LINE.get()
    return shlex.join(["stretch", *words]) if words else ""
