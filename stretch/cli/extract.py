"""`stretch extract`: extract a design from a trained run, as weights and as a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb
from stretch.report.agreement import agreement_lines

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.progress import Progress
    from stretch.train.answer import ExtractAnswer, RankingAnswer

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
def extract(
    out: Output,
    run: Annotated[Path, typer.Argument(help="Folder that `stretch train` wrote.")],
    design: Annotated[
        Path | None, typer.Option(help="Design (TOML) in the supernet's pool or within its range. Default: the first design of the run.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the result. Default: RUN/extracted.")] = None,
    export: Annotated[bool, typer.Option("--export/--no-export", help="Write a bundle, too.")] = True,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Write the sequential controls into the bundle, which it is compared with.")
    ] = True,
    rank: Annotated[
        int,
        typer.Option(
            help="Instead, evaluate this many designs of a supernet and write accuracy.json for `stretch branch --accuracy`.", min=0
        ),
    ] = 0,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Execute Python code that the run's recipe names as its model.")] = False,
) -> None:
    """Extract a trained design from a run: its weights, its accuracy and a bundle."""
    from stretch.cli.train import import_torch

    import_torch()
    from stretch.train.answer import ExtractAnswer, ExtractedAccuracy
    from stretch.train.extract import extract as take
    from stretch.train.rank import check_rank

    if rank:
        check_rank(run, rank)
    target = folder or run / "extracted"
    with out.progress("extracting") as progress:
        progress("weights")
        done = take(run, target, design=design, bundle=export, controls=controls, trust_code=trust_code)
        ranking = _rank(run, target, rank, progress, trust_code) if rank else None
    answer = ExtractAnswer(
        checkpoint=done.checkpoint,
        accuracy=ExtractedAccuracy(supernet=done.inside, extracted=done.extracted) if done.labelled else None,
        agreement=done.agreement,
        bundle=done.bundle,
        checks=done.manifest.checks if done.manifest else {},
        ranking=ranking,
        warnings=out.warnings,
    )
    out.emit(answer, lambda console: _print(console, answer))


def _rank(run: Path, target: Path, count: int, progress: "Progress", trust_code: bool) -> "RankingAnswer":
    """Fit and write the accuracy predictor."""
    from stretch.planning.cost.accuracy import save_accuracy
    from stretch.train.answer import ranking_answer
    from stretch.train.rank import rank

    ranking = rank(run, count, progress, trust_code=trust_code)
    file = target / "accuracy.json"
    save_accuracy(file, ranking.predictor)
    return ranking_answer(file, ranking.predictor)


def _print(console: "Console", answer: "ExtractAnswer") -> None:
    if answer.accuracy is not None:
        console.print(f"accuracy {answer.accuracy.extracted:.2%}, within the run {answer.accuracy.supernet:.2%}")
    if answer.agreement is not None:
        for line in agreement_lines(answer.agreement):
            console.print(line)
    # not wrapped, so that the commands can be copied
    console.print(f"weights: {answer.checkpoint}", soft_wrap=True)
    if ranking := answer.ranking:
        console.print(
            f"{ranking.designs} designs ranked: rank correlation {ranking.rank_correlation:.2f} (p {ranking.p_value:.2g}) on designs left out, "
            f"error {ranking.rmse:.2%}"
        )
        console.print(f"plan with it: stretch branch MODEL --device DEVICE --accuracy {ranking.file}", soft_wrap=True)
    if answer.bundle:
        console.print(f"bundle written; run it with: stretch run {answer.bundle}", soft_wrap=True)
