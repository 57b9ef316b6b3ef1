"""`stretch extract`: a design out of a trained run, as weights and as a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

#: Seconds after Ctrl-C in which it leaves nothing half-written.
GRACE_S = WRITER_GRACE_S


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
    rank: Annotated[
        int,
        typer.Option(
            help="Evaluate this many designs of a supernet and write accuracy.json, which `stretch branch --accuracy` plans with.", min=0
        ),
    ] = 0,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Execute Python code that the run's recipe names as its model.")] = False,
) -> None:
    """Take a trained design out of a run: weights, accuracy, a bundle to run."""
    from stretch.cli.train import import_torch

    import_torch()
    from stretch.train.extract import extract as take
    from stretch.train.rank import check_rank

    if rank:
        check_rank(run, rank)
    target = folder or run / "extracted"
    with out.progress("extracting") as step:
        step("weights")
        done = take(run, target, design=design, bundle=export, controls=controls, trust_code=trust_code)
        ranking = _rank(run, target, rank, step, trust_code) if rank else None
    data: dict[str, Any] = {
        "checkpoint": str(done.checkpoint),
        "accuracy": {"supernet": done.inside, "extracted": done.extracted, "source": "measured"},
        "bundle": str(done.bundle) if done.bundle else None,
        "checks": done.manifest.checks if done.manifest else {},
        "ranking": ranking,
        "warnings": out.warnings,
    }
    out.emit(data, lambda console: _print(console, data))


def _rank(run: Path, target: Path, count: int, step: "Callable[[str], None]", trust_code: bool) -> dict[str, Any]:
    """Fit and write the accuracy predictor."""
    from stretch.planning.cost.accuracy import save_accuracy
    from stretch.train.rank import rank

    found = rank(run, count, step, trust_code=trust_code)
    file = target / "accuracy.json"
    save_accuracy(file, found.predictor)
    own = found.predictor
    return {
        "file": str(file),
        "designs": own.designs,
        "rank_correlation": own.rank_correlation,
        "p_value": own.p_value,
        "rmse": own.rmse,
        "source": "measured",
    }


def _print(console: "Console", data: dict[str, Any]) -> None:
    accuracy = data["accuracy"]
    console.print(f"accuracy {accuracy['extracted']:.2%}, within the run {accuracy['supernet']:.2%}")
    # not wrapped: these lines are there to be copied
    console.print(f"weights: {data['checkpoint']}", soft_wrap=True)
    if data["ranking"]:
        ranking = data["ranking"]
        console.print(
            f"{ranking['designs']} designs ranked: rank correlation {ranking['rank_correlation']:.2f} (p {ranking['p_value']:.2g}) on designs left out, "
            f"error {ranking['rmse']:.2%}"
        )
        console.print(f"plan with it: stretch branch MODEL --device DEVICE --accuracy {ranking['file']}", soft_wrap=True)
    if data["bundle"]:
        console.print(f"bundle written; run it with: stretch run {data['bundle']}", soft_wrap=True)
