"""`--html`: write a verb's result as an HTML report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError

if TYPE_CHECKING:
    pass

Html = Annotated[
    Path | None,
    typer.Option("--html", help="Write a self-contained HTML report without scripts to this file."),
]


def check_html(path: Path | None) -> None:
    """Check before the computation that the report can be written."""
    if path is not None:
        from stretch.tools.report.html.page import check_page

        check_page(path)


def check_picture(path: Path, processors: list[str]) -> None:
    """Check before the computation that the plot can be written."""
    if len(processors) > 1:
        raise UsageError("--plot draws one processor", f"choose one with --processor: {', '.join(processors)}")
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {path} is neither an .svg nor a .png file", "give the file one of these endings")
    if not path.parent.is_dir():
        raise UsageError(f"the folder of --plot {path} does not exist", "make it first")
