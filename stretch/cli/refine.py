"""`stretch refine`: distil a bundle from its original on unlabelled images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb
from stretch.report.agreement import agreement_lines

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.api.refining import RefineAnswer

#: Steps of the progress bar: read, images, two comparisons, twenty evaluations and the files of a typical bundle.
PHASES = 36

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
def refine(
    out: Output,
    *,
    bundle: Annotated[Path, typer.Argument(help="Folder of an fp32 bundle with its controls, which contain the original.")],
    images: Annotated[
        Path, typer.Option(help="Folder of unlabelled images (pictures or .npy), preferably the calibration images of the bundle.")
    ],
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of refinement, on a GPU if there is one. Default: 5 without --steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Maximum number of steps, with a batch of 64 views each.", min=1)] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the new bundle. Default: replace the bundle.")] = None,
    image_count: Annotated[int, typer.Option(help="Maximum number of training images; others are held back.", min=16)] = 256,
    run_images: Annotated[
        int,
        typer.Option(
            help="Maximum number of held-back images that the bundle's files are run on, in their planned precisions; 0 for none.", min=0
        ),
    ] = 64,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="Delegate that stands in for a processor in that run, such as dsp=dsp (its simulator) or gpu=opencl. Default: the CPU.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder of the checkpoint to resume from after an interruption, removed at the end. Default: beside the bundle."),
    ] = None,
) -> None:
    """Distil a bundle's network from its original on unlabelled images, and measure their agreement."""
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
            out.note(f"the checkpoint is in {kept}: the same command continues from there")
        raise
    for warning in answer.warnings:
        out.warn(warning)
    answer = replace(answer, warnings=out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _print(console: "Console", answer: "RefineAnswer") -> None:
    refinement = answer.refinement
    console.print(
        f"{refinement.steps} steps in {refinement.seconds:.0f} s: squared error of the outputs {refinement.after:.3f} of the original's square, "
        f"{refinement.before:.3f} before, on {refinement.images} images that no step looked at"
    )
    if (change := answer.agreement) is not None:
        share = "" if change.before is None else f"the original's class in {change.before:.1%}, "
        console.print(f"before, on {change.images} images held back: {share}error {change.error_before:.3f} of the original's")
    if answer.measured is not None:
        for line in agreement_lines(answer.measured):
            console.print(line)
    console.print(f"largest difference of any exported file from torch: {answer.checks['max_error']:.1e} of its largest output")
    # not wrapped, so that the command can be copied
    console.print(f"bundle written; run it with: stretch run {answer.bundle}", soft_wrap=True)
