"""Base of the forms of `stretch export`; each form is a file of this folder, or `exporters.py` of a tool."""

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
        summary: Short description for the help of `--as`.
        write: Writes the form: ``write(source, out, *, progress, ...)``, with the paths of `stretch.api.export`. Returns a struct with
            `warnings`. Additional parameters with annotations as in `stretch.api` are options of the verb.
        page: Returns the report of this struct.
        hint: Hint for unsupported options.
        instead_of: The form that it replaces if it `applies`; empty for a form with its own name.
        applies: Returns whether it replaces this form, given the source and the options.
        called: Its name in the message on unsupported options.
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
        """Parameters of the exporter that are options."""
        parameters = inspect.signature(self.write).parameters
        return {name: parameter for name, parameter in parameters.items() if hasattr(parameter.annotation, "__metadata__")}


#: Forms by name; importing `stretch.api.exporters` registers the forms of this package.
exporters: Registry[Exporter] = Registry("form of export")


def named_forms() -> tuple[str, ...]:
    """Return the forms that `--as` names; the others replace one of them for some sources."""
    return tuple(name for name in exporters if not exporters.get(name).instead_of)


def exporter_of(source: Path, form: str, options: Mapping[str, Any]) -> Exporter:
    """Return the exporter of a form for a source."""
    if form not in exporters:
        raise UnknownNameError.among(exporters.noun, form, named_forms())
    exporter = exporters.get(form)
    alternatives = (exporters.get(name) for name in exporters)
    return next((other for other in alternatives if other.instead_of == form and other.applies(source, options)), exporter)


def written_page(titles: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> Page:
    """Return a report on written files: a table, if there are rows, and notes."""
    grid = Grid("Written files", titles, rows, right=range(3, len(titles)))
    return Page(title="Exported", lead=[], sections=[Section("written", "Written", (), [grid])] if rows else [], notes=notes)
