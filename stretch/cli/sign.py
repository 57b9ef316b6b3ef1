"""`stretch sign`: sign a bundle."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stretch.cli.output import Output, verb


class SignAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was signed; the fields are the keys of `stretch sign --json`."""

    bundle: Path
    signer: str  # Fingerprint of the key's public part.


@verb
def sign(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    key: Annotated[Path, typer.Option(help="Private key: Ed25519 in PEM without a password, as OpenSSL writes it.")],
) -> None:
    """Sign a bundle, so that others can verify its author; its hashes prove only its integrity."""
    from scheduler.bundle.load import sign_bundle

    answer = SignAnswer(bundle=bundle, signer=sign_bundle(bundle, key))
    out.emit(answer, lambda console: console.print(f"{bundle} is signed with the key {answer.signer}"))
