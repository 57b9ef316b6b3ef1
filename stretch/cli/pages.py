"""`--html` and `--plot`: write a verb's result as an HTML report or a picture."""

from pathlib import Path
from typing import Annotated

import typer

from predictors.errors import UsageError


def _check_writable(path: Path | None) -> Path | None:
    """Return the file, if the report can be written to it, which is checked before the computation."""
    if path is not None:
        from stretch.report.html.page import check_page

        check_page(path)
    return path


Html = Annotated[
    Path | None,
    typer.Option("--html", help="Write a self-contained HTML report without scripts to this file.", callback=_check_writable),
]


def check_picture(path: Path, processors: list[str]) -> None:
    """Check before the computation that the plot can be written."""
    if len(processors) > 1:
        raise UsageError("--plot draws one processor", f"choose one with --processor: {', '.join(processors)}")
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {path} is neither an .svg nor a .png file", "give the file one of these endings")
    check_folder(path, "--plot")


def check_folder(path: Path | None, option: str) -> None:
    """Check before the computation that the folder of an option's file exists."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"the folder of {option} {path} does not exist", "make it first")
