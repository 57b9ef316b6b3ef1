"""`stretch verify`: is a bundle whole, does it compute what it should, and does a measurement say what its times say?"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from predictors.errors import UsageError
from stretch.cli.output import Output, verb


@verb
def verify(
    out: Output,
    what: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or the JSON file that `compare --measure` printed.")],
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
    if what.suffix == ".json" and not what.is_dir():
        if trust or sign:
            raise UsageError("a measurement is not signed", "leave out --trust and --sign")
        ok = _verify_measurement(out, what)
    else:
        ok = _verify_bundle(out, what, trust or [], sign)
    if not ok:
        raise typer.Exit(1)


def _verify_bundle(out: Output, bundle: Path, trust: list[Path], key: Path | None) -> bool:
    from predictors.structs import filled
    from scheduler.answer import VerifyAnswer
    from scheduler.bundle.load import sign_bundle
    from scheduler.checks.verify import STEPS, verify_bundle

    with out.progress("verifying", total=STEPS) as progress:
        answer = filled(VerifyAnswer, verify_bundle(bundle, trust, progress), bundle=bundle)
    if key is not None and answer.ok:
        answer = msgspec.structs.replace(answer, signer=sign_bundle(bundle, key))
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
    return answer.ok


def _verify_measurement(out: Output, file: Path) -> bool:
    from scheduler.tools.bench.compare import check_bench

    with out.progress("checking") as step:
        checked = check_bench(file, step)
    lines = [f"problem: {problem}" for problem in checked.problems]
    lines.append(
        f"{file} agrees with its {checked.rounds} times of {checked.contenders} variants, and its files are those here"
        if checked.ok
        else f"{file} cannot be relied on"
    )
    out.emit(checked, lambda console: console.print("\n".join(lines)))
    return checked.ok
