"""`stretch extract`: a design out of a trained run, as weights and as a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


@verb
def extract(
    out: Output,
    run: Annotated[Path, typer.Argument(help="Folder that `stretch train` wrote.")],
    design: Annotated[
        Path | None, typer.Option(help="Design (TOML) of the supernet's pool, or within it; the run's first by default.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the result; RUN/extracted by default.")] = None,
    export: Annotated[bool, typer.Option("--export/--no-export", help="Write a bundle, too.")] = True,
    controls: Annotated[bool, typer.Option("--controls/--no-controls", help="Write the sequential controls into the bundle.")] = True,
) -> None:
    """Take a trained design out of a run: weights, accuracy, a bundle to run."""
    from stretch.cli.train import import_torch

    import_torch()
    from stretch.train.extract import extract as take

    target = folder or run / "extracted"
    with out.progress("extracting") as step:
        step("weights")
        done = take(run, target, design=design, bundle=export, controls=controls)
    data: dict[str, Any] = {
        "checkpoint": str(done.checkpoint),
        "accuracy": {"supernet": done.inside, "extracted": done.extracted, "source": "measured"},
        "bundle": str(done.bundle) if done.bundle else None,
        "checks": done.manifest.checks if done.manifest else {},
        "warnings": out.warnings,
    }
    out.emit(data, lambda console: _print(console, data))


def _print(console: "Console", data: dict[str, Any]) -> None:
    accuracy = data["accuracy"]
    console.print(f"accuracy {accuracy['extracted']:.2%}, within the run {accuracy['supernet']:.2%}")
    # not wrapped: these lines are there to be copied
    console.print(f"weights: {data['checkpoint']}", soft_wrap=True)
    if data["bundle"]:
        console.print(f"bundle written; run it with: stretch run {data['bundle']}", soft_wrap=True)
