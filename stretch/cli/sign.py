"""`stretch sign`: says who made a bundle, in a way that nobody else can."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stretch.cli.output import Output, verb


class SignAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was signed; the fields are the keys of `stretch sign --json`."""

    bundle: Path  # Its folder.
    signer: str  # Fingerprint of the key's public part.


@verb
def sign(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    key: Annotated[Path, typer.Option(help="Your private key: Ed25519 in PEM without a password, as OpenSSL makes one.")],
) -> None:
    """Sign a bundle, so that others can tell who made it; its hashes prove only that it is whole."""
    from scheduler.bundle.load import sign_bundle

    answer = SignAnswer(bundle=bundle, signer=sign_bundle(bundle, key))
    out.emit(answer, lambda console: console.print(f"{bundle} is signed with the key {answer.signer}"))
