"""`--html` and `--plot`: write a verb's result as an HTML report or a picture."""

from pathlib import Path
from typing import Annotated

import typer

from predictors.errors import UsageError
from predictors.files import check_folder


def _check_writable(path: Path | None) -> Path | None:
    """Return the path of a report; refuse one that cannot be written, before the computation."""
    if path is not None:
        from stretch.report.html.page import check_page

        check_page(path)
    return path


Html = Annotated[
    Path | None,
    typer.Option("--html", help="Write a self-contained HTML report without scripts to this file.", callback=_check_writable),
]


def check_picture(path: Path, processors: list[str]) -> None:
    """Refuse a plot that cannot be drawn or written, before the computation."""
    if len(processors) > 1:
        raise UsageError("--plot draws one processor", f"choose one with --processor: {', '.join(processors)}")
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {path} is neither an .svg nor a .png file", "give the file one of these endings")
    check_folder(path, "--plot")
