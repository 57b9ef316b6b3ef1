"""`stretch export` of a run of `stretch train`: a design with its weights, its accuracy and a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.structs import filled
from scheduler.progress import Progress
from stretch.exporters.base import Exporter, TrustCode, exporters, written_page
from stretch.planning.messages import command_line
from stretch.report.html.page import Page

if TYPE_CHECKING:
    from stretch.train.extract import ExtractAnswer

#: Is in the folder of every run of `stretch train`.
RUN_FILE = "run.json"


def _write(
    source: str,
    out: Path | None,
    *,
    design: Annotated[
        Path | None,
        typer.Option(help="Of a run: design (TOML) in the supernet's pool or within its range. Default: the first design of the run."),
    ] = None,
    bundle: Annotated[bool, typer.Option("--bundle/--no-bundle", help="Of a run: write a bundle in addition to the weights.")] = True,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Of a run: write the sequential controls into the bundle.")
    ] = True,
    rank: Annotated[
        int,
        typer.Option(help="Of a run of a supernet: also evaluate this many designs and write accuracy.json for `stretch branch`.", min=0),
    ] = 0,
    trust_code: TrustCode = False,
    progress: Progress,
) -> "ExtractAnswer":
    from stretch.planning.cost.accuracy import save_accuracy
    from stretch.train.extract import ExtractAnswer, ExtractedAccuracy, RankingAnswer, check_rank, extract
    from stretch.train.extract import rank as rank_designs

    folder = Path(source)
    if rank:
        check_rank(folder, rank)
    target = out or folder / "extracted"
    progress("weights")
    done = extract(folder, target, design=design, bundle=bundle, controls=controls, trust_code=trust_code)
    ranking = None
    if rank:
        predictor = rank_designs(folder, rank, progress, trust_code=trust_code).predictor
        save_accuracy(target / "accuracy.json", predictor)
        ranking = filled(RankingAnswer, predictor, file=target / "accuracy.json")
    return filled(
        ExtractAnswer,
        done,
        accuracy=ExtractedAccuracy(supernet=done.inside, extracted=done.extracted) if done.labelled else None,
        checks=done.manifest.checks if done.manifest else {},
        ranking=ranking,
        warnings=[],
    )


def _page(answer: "ExtractAnswer") -> Page:
    from stretch.report.plan import agreement_lines

    lines = []
    if answer.accuracy is not None:
        lines.append(f"accuracy {answer.accuracy.extracted:.2%}, within the run {answer.accuracy.supernet:.2%}")
    if answer.agreement is not None:
        lines += agreement_lines(answer.agreement)
    lines.append(f"weights: {answer.checkpoint}")
    if (ranking := answer.ranking) is not None:
        lines += [
            f"{ranking.designs} designs ranked: rank correlation {ranking.rank_correlation:.2f} (p {ranking.p_value:.2g}) on designs left out, "
            f"error {ranking.rmse:.2%}",
            f"plan with it: stretch branch MODEL --device DEVICE --set accuracy={ranking.file}",
        ]
    return written_page((), (), [*lines, *([f"Next: {command_line('run', answer.bundle)}"] if answer.bundle else [])])


exporters.register("run")(
    Exporter(
        "a design of a trained run",
        _write,
        _page,
        instead_of="onnx",
        applies=lambda source, options: (source / RUN_FILE).is_file(),
        called="the folder of a run",
    )
)
