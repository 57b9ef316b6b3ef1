"""`stretch refine`: a bundle brought closer to its original on unlabelled images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb
from stretch.report.agreement import agreement_lines

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.api.refining import RefineAnswer

#: Phases of the bar: read, images, two comparisons, twenty looks and files of a usual bundle.
PHASES = 36

#: Seconds after Ctrl-C in which it leaves nothing half-written.
GRACE_S = WRITER_GRACE_S


@verb
def refine(
    out: Output,
    *,
    bundle: Annotated[Path, typer.Argument(help="Folder of an fp32 bundle with its controls, which hold the original.")],
    images: Annotated[
        Path, typer.Option(help="Folder of unlabelled images (pictures or .npy), best those that the bundle was calibrated with.")
    ],
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of refining, on a GPU where there is one; 5 unless steps bound it.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps at most, of 64 views each.", min=1)] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the new bundle; by default the bundle itself is replaced.")
    ] = None,
    image_count: Annotated[int, typer.Option(help="Images that steps look at, at most; others are held back.", min=16)] = 256,
    run_images: Annotated[
        int,
        typer.Option(help="Images held back that the new bundle's files are run on in the precisions planned, at most; 0: none.", min=0),
    ] = 64,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", help="Where a processor runs for that, as dsp=dsp (its simulator) or gpu=opencl; on the CPU by default."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder that it goes on from after an interruption; beside the bundle by default, gone when all is done."),
    ] = None,
) -> None:
    """Distil a bundle's network from its original on unlabelled images, and measure how far they then agree."""
    from msgspec.structs import replace

    from scheduler.placement.mapping import parse_mapping
    from stretch.api.refining import checkpoint_folder, refine_bundle

    kept = checkpoint_folder(folder or bundle, checkpoint)
    try:
        with out.progress("refining", total=PHASES) as progress:
            answer = refine_bundle(
                bundle,
                images,
                out=folder,
                minutes=5.0 if minutes is None and steps is None else minutes,
                steps=steps,
                image_count=image_count,
                run_images=run_images,
                mapping=parse_mapping(mapping or []),
                checkpoint=kept,
                progress=progress,
            )
    except KeyboardInterrupt:
        if kept.is_dir() and any(kept.iterdir()):
            out.note(f"what was refined so far is in {kept}: the same command goes on from there")
        raise
    for warning in answer.warnings:
        out.warn(warning)
    answer = replace(answer, warnings=out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _print(console: "Console", answer: "RefineAnswer") -> None:
    found = answer.refinement
    console.print(
        f"{found.steps} steps in {found.seconds:.0f} s: squared error of the outputs {found.after:.3f} of the original's square, "
        f"{found.before:.3f} before, on {found.images} images that no step looked at"
    )
    if (change := answer.agreement) is not None:
        share = "" if change.before is None else f"the original's class in {change.before:.1%}, "
        console.print(f"before, on {change.images} images held back: {share}error {change.error_before:.3f} of the original's")
    if answer.measured is not None:
        for line in agreement_lines(answer.measured):
            console.print(line)
    console.print(f"largest difference of any exported file from torch: {answer.checks['max_error']:.1e} of its largest output")
    # not wrapped: this line is there to be copied
    console.print(f"bundle written; run it with: stretch run {answer.bundle}", soft_wrap=True)
