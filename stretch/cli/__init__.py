"""The command line: one file per verb, found by name and imported on first use.

A verb `foo` is a file `stretch/cli/foo.py` with a function `foo` (both with a final ``_`` if Python reserves the name), and
`foo bar` is a file `foo_bar.py`::

    '''`stretch foo`: its purpose.'''

    from typing import Annotated

    import typer

    from stretch.cli.output import Output


    def foo(
        out: Output,
        bundle: Annotated[str, typer.Argument(help="Folder of a bundle.")],
        repeat: Annotated[int, typer.Option(help="Number of runs.", min=1)] = 10,
    ) -> None:
        '''First sentence: shown by `stretch --help`.'''
        import torch  # heavy packages only inside the function

        with out.progress("measuring", total=repeat) as step:
            ...
            step()
        out.warn("gpu is mapped to a second CPU core")
        out.emit({"median_ms": 1.5}, lambda console: console.print("1.5 ms"))

The first parameter is the verb's `Output`, with `--json`, `--quiet` and `--debug`. Every other parameter
whose type is a record adds one option per field (`stretch.cli.options.verb_command`). A verb raises
the errors of `predictors.errors`; `Verbs.main` turns them into a sentence, a hint and an exit code. A verb that writes large files sets
``GRACE_S = WRITER_GRACE_S`` in its file: after Ctrl-C it then has more time to
remove unfinished files.
"""

# isort: off
from stretch.cli.start import end_at_interrupt

end_at_interrupt()
# isort: on

import ast
import contextlib
import difflib
import functools
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stretch.cli.failures import guard
from stretch.cli.help import HEADINGS, HELP_REMOTE, REMOTE, Verb
from stretch.cli.interrupt import GRACE_S
from stretch.cli.output import COMMAND_LINE
from stretch.plugins import tool_modules

#: Modules of this folder that are no verbs.
PARTS = frozenset({"extensions", "failures", "help", "interrupt", "options", "output", "pages", "planner", "start"})

#: Verbs in the order of `stretch --help`; others follow by name.
FIRST = tuple(name for names in HEADINGS.values() for name in names)


def find_verbs() -> dict[str, str]:
    """Return the module names of all verbs, of this folder and of tools, in the order of `stretch --help`, without imports."""
    modules = {
        module.name.rstrip("_").replace("_", " "): f"{__name__}.{module.name}"
        for module in iter_modules(__path__)
        if module.name not in PARTS
    }
    modules |= tool_modules("verb")
    return {name: modules[name] for name in (*FIRST, *sorted(modules.keys() - set(FIRST))) if name in modules}


#: Module of every verb, in the order of `stretch --help`.
VERBS = find_verbs()


class Verbs(TyperGroup):
    """A command group that imports a verb's file when the verb is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the click command of a verb; None for an unknown verb."""
        return command_of(cmd_name) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first words name, and the words after it; a verb may have two words, such as `profile fit`."""
        if " ".join(args[:2]) in VERBS:
            args = [" ".join(args[:2]), *args[2:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence of each verb under its heading, from the verb's file without an import."""
        more = tuple(name for name in VERBS if name not in FIRST)
        for heading, names in ({**HEADINGS, "More": more} if more else HEADINGS).items():
            with formatter.section(heading):
                formatter.write_dl([(name, _purpose(name)) for name in names if name in VERBS])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *ignored: Any, **extra: Any) -> Any:
        """Run the command line and exit with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        COMMAND_LINE.set(tuple(words))
        flags = words[: words.index("--")] if "--" in words else words
        REMOTE.set(HELP_REMOTE in flags)
        words = ["--help" if word == HELP_REMOTE and at < len(flags) else word for at, word in enumerate(words)]
        run = functools.partial(super().main, words, prog_name or "stretch", **extra | {"standalone_mode": False})
        hint = functools.partial(_usage_hint, words=words)
        sys.exit(guard(run, as_json="--json" in flags, debug="--debug" in flags, usage_hint=hint, grace_s=_grace_s(flags[:1])))


def _purpose(name: str) -> str:
    """Return the first line of the docstring of a verb's function."""
    path = Path(__file__).parents[2].joinpath(*VERBS[name].split(".")).with_suffix(".py")
    functions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return next((ast.get_docstring(node) or "" for node in functions if node.name.rstrip("_").replace("_", " ") == name), "").partition(
        "\n"
    )[0]


def _grace_s(words: Sequence[str]) -> float:
    """Return the time that a verb has after Ctrl-C, s: `GRACE_S` of its module, or the default."""
    # the call of the verb reports a module that cannot be imported
    with contextlib.suppress(Exception):
        return float(getattr(importlib.import_module(VERBS[words[0]]), "GRACE_S", GRACE_S))
    return GRACE_S


#: New names of settings, by the names of their former flags.
SETTINGS = {"map": "mapping"}


def _usage_hint(error: typer.TyperException, words: Sequence[str]) -> str:
    """Return a hint for a usage error: the closest verb, the setting that replaces a former flag, or the help."""
    verbs = [word for word in words if not word.startswith("-")]
    if verbs and verbs[0] not in VERBS:
        close = difflib.get_close_matches(verbs[0], VERBS, n=1, cutoff=0.5)
        return f"did you mean `{close[0]}`?" if close else f"verbs: {', '.join(VERBS)}"
    old = getattr(error, "option_name", None)
    if verbs and old:
        name = old.removeprefix("--no-").lstrip("-").replace("-", "_")
        name = f"preprocessing.{name}" if name in ("mean", "std", "size", "crop") else SETTINGS.get(name, name)
        if name.partition(".")[0] in command_of(verbs[0]).settings:
            return f"give it as --set {name}={'false' if old.startswith('--no-') else 'VALUE'}"
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context else 'stretch'} --help` lists what it takes"


def command_of(name: str) -> Verb:
    """Return the command of a verb."""
    # import late, because `stretch --help` does not need it
    from stretch.cli.options import verb_command

    module = importlib.import_module(VERBS[name])
    return verb_command(name, getattr(module, module.__name__.rpartition(".")[2], None) or getattr(module, name))


def _show_version(value: bool) -> None:
    if value:
        from stretch import __version__

        typer.echo(f"nn-stretch {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def stretch(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Split a neural network into branches that run on several processors at the same time."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
