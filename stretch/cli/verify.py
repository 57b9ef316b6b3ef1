"""`stretch verify`: is a bundle whole, and does it compute what it should?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


@verb
def verify(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    trust: Annotated[
        list[Path] | None, typer.Option(help="Public key (Ed25519 in PEM) that it has to be signed with; repeat for any of several.")
    ] = None,
) -> None:
    """Check a bundle: schema, hashes, graph, its signature on request, and its subgraphs against its whole model."""
    from scheduler.answer import verify_answer
    from scheduler.checks.verify import STEPS, verify_bundle

    with out.progress("verifying", total=STEPS) as progress:
        answer = verify_answer(bundle, verify_bundle(bundle, trust or (), progress))

    def human(console: "Console") -> None:
        for problem in answer.problems:
            console.print(f"problem: {problem}")
        if answer.ok:
            allowed = "its fp16 and int8 subgraphs round" if answer.tolerance is None else f"{answer.tolerance:.0e} is allowed"
            console.print(
                f"{bundle} is whole; its subgraphs differ from the whole model by {answer.max_error:.1e} of the largest output ({allowed})"
            )
            if answer.signer is not None:
                console.print(f"it is signed with the key {answer.signer}")
        else:
            console.print(f"{bundle} is not fit to run")

    out.emit(answer, human)
    if not answer.ok:
        raise typer.Exit(1)
