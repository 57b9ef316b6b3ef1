"""`stretch verify`: check that a bundle is complete and its results are correct."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stretch.cli.output import Output


def verify(
    out: Output,
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle.")],
    trust: Annotated[
        list[Path] | None, typer.Option(help="Public key (Ed25519 in PEM) that it has to be signed with; repeat for any of several.")
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            metavar="KEY",
            help="Sign the bundle if nothing is wrong with it, so that others can verify its author: a private key, Ed25519 in PEM "
            "without a password, as OpenSSL writes it.",
        ),
    ] = None,
) -> None:
    """Check a bundle: schema, hashes, signature, and its results against the original."""
    from scheduler.bundle.load import sign_bundle
    from scheduler.checks.verify import STEPS, verify_bundle

    with out.progress("verifying", total=STEPS) as progress:
        answer = verify_bundle(bundle, trust or [], progress)
    if sign is not None and answer.ok:
        answer = msgspec.structs.replace(answer, signer=sign_bundle(bundle, sign))
    lines = [f"problem: {problem}" for problem in answer.problems]
    if answer.ok:
        allowed = "its fp16 and int8 subgraphs round" if answer.tolerance is None else f"{answer.tolerance:.0e} is allowed"
        lines.append(
            f"{bundle} is whole; its subgraphs differ from the whole model by {answer.max_error:.1e} of the largest output ({allowed})"
        )
        lines += [] if answer.uncompared is None else [f"it was {answer.uncompared}"]
        lines += [] if answer.signer is None else [f"it is signed with the key {answer.signer}"]
    else:
        lines.append(f"{bundle} is not fit to run")
    out.emit(answer, lambda console: console.print("\n".join(lines)))
    if not answer.ok:
        raise typer.Exit(1)
