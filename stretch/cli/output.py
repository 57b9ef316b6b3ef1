"""Output of every verb: the result on stdout, also as `--json`, and everything else on stderr."""

import contextlib
import contextvars
import dataclasses
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from predictors.errors import MissingBackendError, UsageError, install_line
from stretch.cli.start import SCHEMA

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.console import Console

    from predictors.graph import OpGraph
    from stretch.report.html.page import Page

#: Folder that contains nn-stretch's packages.
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: Arguments of the running command line; empty if a verb runs without one.
COMMAND_LINE: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("COMMAND_LINE", default=())

#: Width of tables if stdout is no terminal and COLUMNS is not set.
PLAIN_WIDTH = 140


@dataclass
class Output:
    """Output streams of a verb, and the options of every verb."""

    details: Annotated[bool, typer.Option("--details", help="Print everything that is known, not only the answer.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings on stderr.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False
    #: All warnings so far, for the ``warnings`` key of the result.
    warnings: list[str] = dataclasses.field(default_factory=list, init=False)
    #: Lines for stderr that wait for the answer.
    _pending: list[str] = dataclasses.field(default_factory=list, init=False)
    _stdout: TextIO = dataclasses.field(default_factory=lambda: sys.stdout, init=False)

    @contextlib.contextmanager
    def streams(self) -> Iterator[None]:
        """Keep other output out of the JSON, print warnings of nn-stretch's packages like the verb's, and flush at the end."""
        with contextlib.redirect_stdout(sys.stderr) if self.as_json else contextlib.nullcontext(), _own_warnings(self):
            try:
                yield
            finally:
                self.flush()

    def emit(self, data: "Mapping[str, Any] | Struct", human: "Callable[[Console], None]") -> None:
        """Print the verb's result, once; `data` is the JSON object without ``schema`` and ``version``, or a struct with its fields."""
        if self.as_json:
            print_json(data, self._stdout)
            return
        console = make_console(self._stdout)
        human(console)
        self._stdout.flush()

    def show(self, answer: Any, page: "Callable[[Any], Page]", html: Path | None = None, data: "dict[str, Any] | None" = None) -> None:
        """Print the verb's result as a report, once, with all warnings so far, and on request write an HTML page.

        Args:
            page: Makes the report of the answer.
            html: Path of the page; no page if None.
            data: The JSON of the answer; its fields if None.
        """
        data = _to_builtins(answer) if data is None else data
        self._pending += [f"warning: {warning}" for warning in dict.fromkeys(data["warnings"]) if warning not in self.warnings]
        warnings = list(dict.fromkeys([*self.warnings, *data["warnings"]]))
        if html is not None:
            self.write_page(html, dataclasses.replace(page(answer), warnings=warnings))

        def human(console: "Console") -> None:
            from stretch.report.fit import print_page

            print_page(console, page(answer), self.flush, brief=not self.details)

        self.emit(data | {"warnings": warnings}, human)

    def write_page(self, path: Path, page: "Page") -> None:
        """Write a report, with its command line, and print its path after the answer."""
        from stretch.report.html.page import write_page

        words = COMMAND_LINE.get()
        command = [("command", shlex.join(["stretch", *words]))] if words else []
        with self.progress("writing the report"):
            write_page(dataclasses.replace(page, made_from=[*command, *page.made_from]), path)
        self._pending.append(f"report: {path}")

    def flush(self) -> None:
        """Print the waiting notes on stderr, after all previous output on stdout."""
        self._stdout.flush()
        pending, self._pending = self._pending, []
        for message in pending:
            self.note(message)

    def note(self, message: str) -> None:
        """Print a note on stderr."""
        if not self.quiet:
            self._write_line(message)

    def note_later(self, message: str) -> None:
        """Print a note on stderr after the answer."""
        self._pending.append(message)

    def warn(self, message: str) -> None:
        """Print a warning on stderr and add it to the result."""
        self.warnings.append(message)
        if not self.quiet:
            self._write_line(f"warning: {message}")

    def tell_size(self, shapes: Any, graph: "OpGraph") -> None:
        """Print the default input shape after the answer if `--input` is not given."""
        if shapes is None:
            sizes = ", ".join("×".join(map(str, op.shape)) for op in graph.inputs)
            self._pending.append(f"input {sizes}: the usual size, --input changes it")

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Show a progress bar on stderr with elapsed and remaining time, on a terminal only.

        Args:
            what: Description, such as ``exporting``.
            total: Number of steps, or None if unknown.

        Yields:
            A function to call after each step, with an optional description of the next step. `at` and `total`
            set the position directly.
        """
        if self.quiet or not sys.stderr.isatty():
            yield lambda doing="", at=None, total=None: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        far = [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        # without a number of steps only the elapsed time is known
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), *(far if total is not None else [TimeElapsedColumn()])]
        with Progress(*columns, console=make_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=total)

            def step(doing: str = "", at: int | None = None, total: int | None = None) -> None:
                moved = {"advance": 1} if at is None else {"completed": at, "total": total}
                bar.update(task, description=f"{what} {doing}".rstrip(), **moved)

            yield step

    def _write_line(self, message: str) -> None:
        sys.stderr.write(printable(message) + "\n")
        sys.stderr.flush()


def only_flags(what: str, names: str, hint: str = "") -> None:
    """Refuse all flags on the command line that are not in `names`; `what` is the subject for the message."""
    no_flags(what, " ".join(_flags_given().keys() - {*names.split(), *(option.name for option in dataclasses.fields(Output))}), hint)


def no_flags(what: str, names: str, hint: str = "") -> None:
    """Refuse the flags in `names` on the command line; `what` is the subject for the message."""
    flags_given = _flags_given()
    for name in names.split():
        if name in flags_given:
            raise UsageError(f"{flags_given[name]} does not go with {what}", hint or f"leave out {flags_given[name]}")


def _flags_given() -> dict[str, str]:
    """Return the flags on the command line, by parameter."""
    from typer._click.globals import get_current_context

    context = get_current_context(silent=True)
    if context is None:
        return {}
    sources = {param: context.get_parameter_source(param.name) for param in context.command.params}
    return {param.name: max(param.opts, key=len) for param, source in sources.items() if source and source.name == "COMMANDLINE"}


def import_torch(extra: str = "torch") -> None:
    """Import torch and safetensors; `extra` is the extra that installs them."""
    try:
        import safetensors
        import torch  # noqa: F401 - only to load it
    except ModuleNotFoundError as error:
        raise MissingBackendError(f"this needs {error.name}, which is not installed", install_line(extra)) from error
    del safetensors


@contextlib.contextmanager
def _own_warnings(out: Output) -> Iterator[None]:
    """Print Python warnings of nn-stretch's packages like other warnings: once, and without source lines."""
    before = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
    ) -> None:
        where = os.path.relpath(filename, _PACKAGES).split(os.sep)[0]
        if category is not UserWarning or where not in ("stretch", "scheduler", "predictors"):
            before(message, category, filename, lineno, file, line)
        elif str(message) not in out.warnings:
            out.warn(str(message))

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def make_console(stream: Any) -> "Console":
    """Return a rich console that escapes control characters, ignores markup and honours NO_COLOR."""
    from rich.console import Console

    class PlainNames(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            """Render a text with control characters escaped."""
            return super().render_str(printable(text), **options)

    plain = not stream.isatty() and "COLUMNS" not in os.environ
    return PlainNames(file=stream, markup=False, emoji=False, highlight=False, width=PLAIN_WIDTH if plain else None)


def print_json(data: "Mapping[str, Any] | Struct", stream: Any) -> None:
    """Print one JSON object, with schema and version first."""
    from stretch import __version__

    whole = {"schema": SCHEMA, "version": __version__} | (dict(data) if isinstance(data, Mapping) else _to_builtins(data))
    stream.write(json.dumps(whole, indent=2, allow_nan=False, default=_to_builtins) + "\n")
    stream.flush()


def printable(text: str) -> str:
    """Escape control characters, so that a name from a file cannot control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _to_builtins(value: Any) -> Any:
    """Convert NumPy numbers, paths and structs to JSON values."""
    import msgspec

    return msgspec.to_builtins(value, enc_hook=_scalar)


def _scalar(value: Any) -> Any:
    """Convert NumPy numbers and paths, which msgspec does not support, to JSON values."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
