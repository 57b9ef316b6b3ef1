"""What every verb shares: data on stdout, all else on stderr, `--json`."""

import contextlib
import contextvars
import functools
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.planning.sentences import as_flag, spelled

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.console import Console

#: Version of the JSON that verbs print; keys are added freely, renamed only with a new number.
SCHEMA = 1

#: Where our packages are.
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: Words of the command line that is being run; empty where a verb is called otherwise.
COMMAND_LINE: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("COMMAND_LINE", default=())

#: Width of tables where stdout is no terminal and COLUMNS is not set.
PLAIN_WIDTH = 140

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class Output:
    """Where a verb's words go.

    Args:
        as_json: Whether the result is one JSON object.
        quiet: Whether stderr carries errors alone.
        debug: Whether tracebacks are wanted.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.debug = debug
        #: Every warning so far, for the ``warnings`` key of the result.
        self.warnings: list[str] = []
        self._stdout = sys.stdout

    def emit(self, data: "Mapping[str, Any] | Struct", human: "Callable[[Console], None]") -> None:
        """Print the verb's result, once.

        Args:
            data: The JSON object, without ``schema`` and ``version``; of a struct, its fields.
        """
        if self.as_json:
            print_json(data, self._stdout)
            return
        console = make_console(self._stdout)
        human(console)
        self._stdout.flush()

    def note(self, message: str) -> None:
        """Say something on stderr."""
        if not self.quiet:
            self._say(message)

    def warn(self, message: str) -> None:
        """Warn on stderr, and remember it for the result."""
        message = spelled(message, as_flag)
        self.warnings.append(message)
        if not self.quiet:
            self._say(f"warning: {message}")

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """A bar on stderr with the time gone and the time left, drawn only if that is a terminal.

        Args:
            what: What is going on, such as ``exporting``.
            total: Number of steps, or None if it is not known.

        Yields:
            Call it after each step; an argument, if any, says what is next. `at` and `total`
            set how far it is, where that is not one step at a time.
        """
        if self.quiet or not sys.stderr.isatty():
            yield lambda doing="", at=None, total=None: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        far = [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        # without a number of steps nothing is known of how far it is
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), *(far if total is not None else [TimeElapsedColumn()])]
        with Progress(*columns, console=make_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=total)

            def step(doing: str = "", at: int | None = None, total: int | None = None) -> None:
                moved = {"advance": 1} if at is None else {"completed": at, "total": total}
                bar.update(task, description=f"{what} {doing}".rstrip(), **moved)

            yield step

    def _say(self, message: str) -> None:
        sys.stderr.write(printable(message) + "\n")
        sys.stderr.flush()


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of `function`, whose first parameter is its `Output`.

    `--json`, `--quiet` and `--debug` are added; with `--json` whatever a
    package prints on stdout goes to stderr, so that stdout is one object.
    """
    signature = inspect.signature(function, eval_str=True)
    first, *own = signature.parameters.values()
    if first.annotation is not Output:
        raise TypeError(f"the first parameter of verb `{function.__name__}` must be an Output")

    @functools.wraps(function)
    def command(*, as_json: bool = False, quiet: bool = False, debug: bool = False, **values: Any) -> None:
        out = Output(as_json, quiet, debug)
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), _own_warnings(out):
            function(out, **values)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("as_json", Json), ("quiet", Quiet), ("debug", Debug))
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + shared
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    # inspect would follow it to the function that still has `out`
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


@contextlib.contextmanager
def _own_warnings(out: Output) -> Iterator[None]:
    """Say what our packages warn of as every other warning is said: once, without the line of code it comes from."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        where = os.path.relpath(filename, _PACKAGES).split(os.sep)[0]
        if category is not UserWarning or where not in ("stretch", "scheduler", "predictors"):
            before(message, category, filename, lineno, *rest)
        elif str(message) not in out.warnings:
            out.warn(str(message))

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def make_console(stream: Any) -> "Console":
    """A rich console that takes neither markup nor control characters from names, and honours NO_COLOR."""
    from rich.console import Console

    class PlainNames(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            """Text for a string: control characters escaped, for rich lets them through."""
            return super().render_str(printable(text), **options)

    plain = not stream.isatty() and "COLUMNS" not in os.environ
    return PlainNames(file=stream, markup=False, emoji=False, highlight=False, width=PLAIN_WIDTH if plain else None)


def print_json(data: "Mapping[str, Any] | Struct", stream: Any) -> None:
    """Print one JSON object, its schema and our version first."""
    from stretch import __version__

    whole = {"schema": SCHEMA, "version": __version__} | (dict(data) if isinstance(data, Mapping) else _plain(data))
    stream.write(json.dumps(whole, indent=2, allow_nan=False, default=_plain) + "\n")
    stream.flush()


def printable(text: str) -> str:
    """The text with control characters escaped, so that a name from a file cannot drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _plain(value: Any) -> Any:
    """JSON form of numpy numbers, paths and structs."""
    import msgspec

    return msgspec.to_builtins(value, enc_hook=_scalar)


def _scalar(value: Any) -> Any:
    """JSON form of numpy numbers and paths, which msgspec does not know."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
