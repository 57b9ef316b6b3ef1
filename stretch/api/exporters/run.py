"""`stretch export` of a run of `stretch train`: a design with its weights, its accuracy and a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.progress import Progress
from stretch.api.exporters.base import Exporter, exporters, written_page
from stretch.planning.messages import command_line
from stretch.report.html.page import Page

if TYPE_CHECKING:
    from stretch.train.extract import ExtractAnswer

#: Name of a file in the folder of every run of `stretch train`.
RUN_FILE = "run.json"

DesignFile = Annotated[
    Path | None,
    typer.Option(help="Of a run: design (TOML) in the supernet's pool or within its range. Default: the first design of the run."),
]
WithBundle = Annotated[bool, typer.Option("--bundle/--no-bundle", help="Of a run: write a bundle in addition to the weights.")]
WithControls = Annotated[bool, typer.Option("--controls/--no-controls", help="Of a run: write the sequential controls into the bundle.")]


def write_run(
    source: str,
    out: Path | None,
    *,
    design: DesignFile = None,
    bundle: WithBundle = True,
    controls: WithControls = True,
    progress: Progress,
) -> "ExtractAnswer":
    """Extract a design from a run, and write its weights and a bundle."""
    from stretch.train.extract import extract

    folder = Path(source)
    progress("weights")
    return extract(folder, out or folder / "extracted", design=design, bundle=bundle, controls=controls)


def run_page(answer: "ExtractAnswer") -> Page:
    """Return the report on the extracted design."""
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
        write_run,
        run_page,
        instead_of="onnx",
        applies=lambda source, options: (source / RUN_FILE).is_file(),
        called="the folder of a run",
    )
)
