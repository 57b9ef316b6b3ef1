"""The option `--on` and its flags, for verbs that can run on a board."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import UsageError
from stretch.cli.extensions import extends
from stretch.cli.output import Output, no_flags

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle
    from scheduler.tools.boards.board import BoardTarget
    from stretch.cli.profile import ProfileOptions
    from stretch.cli.run import RunOptions


@extends("run", "profile")
@dataclass(frozen=True)
class OnBoard:
    """Options for a board in place of this machine."""

    on: Annotated[
        str | None,
        typer.Option("--on", help="Run on this machine, user@host, through ssh; nn-stretch and all files it needs are copied there."),
    ] = None
    there: Annotated[
        str | None,
        typer.Option("--there", help="With --on: folder on the board for copied files. Default: nn-stretch/board in the user's cache."),
    ] = None
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", help="With --on: install the board's packages from this folder of wheels instead of the package index."),
    ] = None
    extras: Annotated[str | None, typer.Option("--extras", help="With --on: extras to install as well, such as opencl,litert.")] = None
    ssh_config: Annotated[
        Path | None, typer.Option("--ssh-config", help="With --on: ssh configuration file to use instead of your default one.")
    ] = None

    def asked(self) -> bool:
        """Return whether a board is named."""
        if self.on is None:
            no_flags("a run without a board", "there wheels extras ssh_config", "name it with --on user@host")
            return False
        no_flags("--on", "html", "the page is made from a run of this machine")
        self.where()
        return True

    def where(self, *more: str) -> "BoardTarget":
        """Return the board in the options, with the extras that a verb needs."""
        from scheduler.tools.boards.board import BoardTarget
        from scheduler.tools.boards.facts import check_host

        assert self.on is not None
        names = [] if self.extras is None else [name.strip() for name in self.extras.split(",")]
        if self.there is not None and (not self.there.strip() or not self.there.isprintable()):
            raise UsageError("--there is no name of a folder", "name one on the board, as --there nn-stretch")
        extras = tuple(dict.fromkeys([*more, *names]))
        return BoardTarget(host=check_host(self.on), folder=self.there or "", wheels=self.wheels, extras=extras, config=self.ssh_config)

    def run(self, out: Output, bundle: "Bundle", options: "RunOptions") -> None:
        """Run a bundle on the board."""
        from stretch.tools.boards.verbs import run_there

        run_there(out, self.where(), bundle, options)

    def profile(self, out: Output, options: "ProfileOptions") -> None:
        """Measure the board's processors."""
        from stretch.tools.boards.verbs import measure_there

        measure_there(out, self.where("fit"), options)
