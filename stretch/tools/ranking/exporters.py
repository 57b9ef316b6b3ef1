"""`stretch export RUN --rank`: a design from a run of a supernet, and an accuracy predictor for other designs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from scheduler.progress import Progress
from stretch.api.exporters.base import Exporter, exporters
from stretch.api.exporters.run import RUN_FILE, DesignFile, WithBundle, WithControls, run_page, write_run

if TYPE_CHECKING:
    from stretch.train.extract import ExtractAnswer


def _write(
    source: str,
    out: Path | None,
    *,
    design: DesignFile = None,
    bundle: WithBundle = True,
    controls: WithControls = True,
    rank: Annotated[
        int,
        typer.Option(help="Of a run of a supernet: also evaluate this many designs and write accuracy.json for `stretch branch`.", min=0),
    ] = 0,
    progress: Progress,
) -> "ExtractAnswer":
    from stretch.planning.cost.accuracy import save_accuracy
    from stretch.tools.ranking.fit import check_rank
    from stretch.tools.ranking.fit import rank as rank_designs
    from stretch.train.extract import RankingAnswer

    folder = Path(source)
    check_rank(folder, rank)
    target = out or folder / "extracted"
    answer = write_run(source, target, design=design, bundle=bundle, controls=controls, progress=progress)
    predictor = rank_designs(folder, rank, progress).predictor
    save_accuracy(target / "accuracy.json", predictor)
    ranking = RankingAnswer(
        file=target / "accuracy.json",
        designs=predictor.designs,
        rank_correlation=predictor.rank_correlation,
        p_value=predictor.p_value,
        rmse=predictor.rmse,
    )
    return replace(answer, ranking=ranking)


exporters.register("ranked")(
    Exporter(
        "a design of a trained run, and a predictor of accuracy",
        _write,
        run_page,
        instead_of="onnx",
        applies=lambda source, options: bool(options.get("rank")) and (source / RUN_FILE).is_file(),
        called="the folder of a run",
    )
)
