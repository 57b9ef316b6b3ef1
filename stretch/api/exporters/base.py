"""Forms of `stretch export`; each is a file of this folder, or `exporters.py` of a tool."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from predictors.errors import UnknownNameError
from predictors.registry import Registry
from stretch.report.html.page import Grid, Page, Section

TrustCode = Annotated[bool, typer.Option("--trust-code", help="Execute the Python code that a model's name names.")]


@dataclass(frozen=True)
class Exporter:
    """One form of `stretch export`.

    Args:
        summary: A few words for the help of `--as`.
        write: Writes it: ``write(source, out, *, progress, ...)``, where paths are those that `stretch.api.export` was given. Gives a struct with
            `warnings`. Further parameters that are annotated as those of `stretch.api` are options of the verb.
        page: The report of that struct.
        hint: Advice about options that it does not take.
        instead_of: The form that it takes the place of where it `applies`; empty if it has a name of its own.
        applies: Whether it does, from the source and the options.
        called: Its name in the sentence about options that it does not take.
    """

    summary: str
    write: Callable[..., Any]
    page: Callable[[Any], Page]
    hint: str = ""
    instead_of: str = ""
    applies: Callable[[Path, Mapping[str, Any]], bool] = lambda source, options: False
    called: str = ""

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The exporter's parameters that are options."""
        parameters = inspect.signature(self.write).parameters
        return {name: parameter for name, parameter in parameters.items() if hasattr(parameter.annotation, "__metadata__")}


#: Forms by name; those of this package are registered once `stretch.api.exporters` is imported.
exporters: Registry[Exporter] = Registry("form of export")


def exporter_of(source: Path, form: str, options: Mapping[str, Any]) -> Exporter:
    """Return the exporter of a form for a source."""
    if form not in exporters:
        raise UnknownNameError.among(exporters.noun, form, [name for name in exporters if not exporters.get(name).instead_of])
    exporter = exporters.get(form)
    others = (exporters.get(name) for name in exporters)
    return next((other for other in others if other.instead_of == form and other.applies(source, options)), exporter)


def written_page(titles: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> Page:
    """Return a report of what was written: a table, if there are rows, and notes."""
    grid = Grid("Written files", titles, rows, right=range(3, len(titles)))
    return Page(title="Exported", lead=[], sections=[Section("written", "Written", (), [grid])] if rows else [], notes=notes)
