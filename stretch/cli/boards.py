"""`--on` and its flags, for verbs that can run on a board."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictors.errors import UsageError
from stretch.cli.output import no_flags

if TYPE_CHECKING:
    from scheduler.tools.boards.board import Where


def where(
    on: Annotated[
        str | None,
        typer.Option("--on", help="Run on this machine, user@host, through ssh; nn-stretch and all files it needs are copied there."),
    ] = None,
    there: Annotated[
        str | None,
        typer.Option("--there", help="With --on: folder on the board for copied files. Default: nn-stretch/board in the user's cache."),
    ] = None,
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", help="With --on: install the board's packages from this folder of wheels instead of the package index."),
    ] = None,
    extras: Annotated[str | None, typer.Option("--extras", help="With --on: extras to install as well, such as opencl,litert.")] = None,
    ssh_config: Annotated[
        Path | None, typer.Option("--ssh-config", help="With --on: ssh configuration file to use instead of your default one.")
    ] = None,
    more: tuple[str, ...] = (),
) -> "Where | None":
    """The board that the flags name, or None; `more` are extras that the verb needs."""
    from scheduler.tools.boards.board import Where
    from scheduler.tools.boards.facts import check_host

    if on is None:
        no_flags("a run without a board", "there wheels extras ssh_config", "name it with --on user@host")
        return None
    names = [] if extras is None else [name.strip() for name in extras.split(",")]
    if there is not None and (not there.strip() or not there.isprintable()):
        raise UsageError("--there is no name of a folder", "name one on the board, as --there nn-stretch")
    return Where(host=check_host(on), folder=there or "", wheels=wheels, extras=tuple(dict.fromkeys([*more, *names])), config=ssh_config)


def flags(quiet: bool, **values: Any) -> list[str]:
    """Arguments of a command line (`values`: values by flag, with `_` for `-`; None and False are omitted, and a list repeats the flag)."""
    words = ["--quiet"] if quiet else []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [f"{flag}={element}" for element in (value if isinstance(value, list) else [value])]
    return words
