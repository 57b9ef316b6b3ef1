"""`stretch train`: train a recipe on a CPU or on GPUs, or refine a bundle."""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import StretchError, UsageError
from scheduler.cores import available_cores
from stretch.api.refining import RefineOptions, checkpoint_folder, refine_bundle
from stretch.api.verbs import TrainOptions
from stretch.api.verbs import train as train_recipe
from stretch.cli.failures import SPEAKER_VARIABLE
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, import_torch, only_flags
from stretch.cli.start import INTERRUPTED
from stretch.planning.messages import command_line
from stretch.report.html.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stretch.api.refining import RefineAnswer
    from stretch.train.loop import Epoch, Listener, Run
    from stretch.train.session import TrainAnswer

#: Steps of a refinement's progress bar: read, images, two comparisons, twenty evaluations and the files of a typical bundle.
REFINING = 36

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


def _complete_recipe(start: str) -> list[str]:
    from stretch.train.recipe import recipe_folder

    return [file.stem for file in sorted(recipe_folder().glob("*.toml")) if file.stem.startswith(start)]


def train(
    out: Output,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE_OR_BUNDLE",
            help="Recipe: a TOML file, or the name of an installed one. Or the folder of an fp32 bundle with its controls, whose network is "
            "refined: distilled from its original on unlabelled images.",
            autocompletion=_complete_recipe,
        ),
    ],
    options: TrainOptions,
    refinement: RefineOptions,
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run, by default runs/RECIPE; or of the new bundle, by default the bundle itself."),
    ] = None,
    gpus: Annotated[
        int, typer.Option(help="Number of processes, with one GPU each; more than one are started by torchrun.", min=1, max=64)
    ] = 1,
    images: Annotated[
        Path | None,
        typer.Option(help="Of a bundle: folder of unlabelled images (pictures or .npy), preferably those that it was calibrated with."),
    ] = None,
) -> None:
    """Train a branched network or a supernet from a recipe, or refine a bundle without labels."""
    if Path(recipe).is_dir():
        only_flags("a bundle", "recipe folder images minutes steps image_count run_images mapping checkpoint synthetic")
        if images is None:
            raise UsageError("a bundle is refined on images, and none are named", "give a folder of unlabelled images with --images")
        _refine(out, Path(recipe), images, refinement, folder)
        return
    only_flags("a recipe", "recipe folder changes resume dry_run trust_code gpus", "a recipe names its training data under [data]")
    from stretch.train.recipe import find_recipe, load_recipe

    epochs = load_recipe(find_recipe(recipe), tuple(options.changes)).train.epochs
    if gpus > 1 and "RANK" not in os.environ:
        raise typer.Exit(_torchrun(gpus, out))
    import_torch("train")
    # only the first process of a distributed run prints
    out.quiet = out.quiet or os.environ.get("RANK", "0") != "0"
    with out.progress("training") as step:
        done = train_recipe(recipe, folder, options, listener=_listener(out, step, epochs))
    if done is None:
        return
    out.show(done, lambda answer: Page(title="Trained", lead=[], notes=list(_lines(answer))))


def _refine(out: Output, bundle: Path, images: Path, options: RefineOptions, folder: Path | None) -> None:
    """Refine a bundle's network towards its original, and show their agreement."""
    kept = checkpoint_folder(folder or bundle, options.checkpoint)
    try:
        with out.progress("refining", total=REFINING) as progress:
            answer = refine_bundle(bundle, images, options, out=folder, progress=progress)
    except KeyboardInterrupt:
        if kept.is_dir() and any(kept.iterdir()):
            out.note(f"the checkpoint is in {kept}: the same command continues from there")
        raise
    out.show(answer, lambda answer: Page(title="Refined", lead=[], notes=list(_refined_lines(answer))))


def _refined_lines(answer: "RefineAnswer") -> "Iterator[str]":
    from stretch.report.plan import agreement_lines, difference_line, refinement_text

    refinement = answer.refinement
    yield f"{refinement.steps} steps in {refinement.seconds:.0f} s: {refinement_text(refinement)}"
    if (change := answer.agreement) is not None:
        share = "" if change.before is None else f"the original's class in {change.before:.1%}, "
        yield f"before, on {change.images} held-out images: {share}error {change.error_before:.1%} of the original's"
    if answer.measured is not None:
        yield from agreement_lines(answer.measured)
    yield difference_line(answer.checks)
    yield f"Next: {command_line('run', answer.bundle)}"


def _listener(out: Output, step: "Callable[..., None]", epochs: int) -> "Listener":
    """Return the listener that prints the progress of a run."""
    from stretch.train.loop import Listener

    class ConsoleListener(Listener):
        def note(self, message: str) -> None:
            out.note(message)

        def stepped(self, run: "Run") -> None:
            step(f"epoch {min(run.epoch + 1, epochs)} of {epochs}", at=run.epoch * run.per_epoch + run.done, total=epochs * run.per_epoch)

        def finished(self, row: "Epoch") -> None:
            accuracy = "" if row.accuracy is None else f", accuracy {row.accuracy:.2%}"
            agreement = "" if row.agreement is None else f", agreement with the original {row.agreement:.2%}"
            out.note(f"epoch {row.epoch}: loss {row.loss:.4f}{accuracy}{agreement}, {row.seconds:.1f} s")

    return ConsoleListener()


def _torchrun(gpus: int, out: Output) -> int:
    """Run this command again under torchrun, one process per GPU, and return the exit code; a failing process prints its own error."""
    import_torch("train")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    arguments = [*sys.argv[1:]]
    start = arguments.index("train") + 1 if "train" in arguments else 0
    out.note(f"starting {gpus} processes")
    # otherwise the launcher sets one thread per process and warns
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(available_cores()) // gpus)))
    logging.disable(logging.CRITICAL)  # the launcher's loggers have separate levels
    folder = tempfile.TemporaryDirectory(prefix="nn-stretch-")
    os.environ[SPEAKER_VARIABLE] = str(Path(folder.name, "failed"))
    try:
        main(["--standalone", f"--nproc-per-node={gpus}", "-m", "stretch.train", *arguments[start:]])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        if first.exitcode < 0:
            raise StretchError(
                f"process {first.local_rank} was ended by signal {-first.exitcode}", "go on after the last checkpoint with --resume"
            ) from error
        return first.exitcode
    except SignalException:
        # the first process has printed the error
        sys.exit(INTERRUPTED)
    finally:
        folder.cleanup()
    return 0


def _lines(answer: "TrainAnswer") -> "Iterator[str]":
    metrics = answer.metrics
    yield f"MACs over the original's: {', '.join(f'{ratio:.3f}' for ratio in metrics['macs_ratio'])}"
    if answer.run is None:
        yield f"dry run: one step in {metrics['seconds']:.1f} s, loss {metrics['loss']:.4f}, {metrics['memory_mib']:.0f} MiB"
        return
    what, key = (
        ("accuracy", "accuracy") if metrics["agreement"] is None else ("agreement with the original on images held back", "agreement")
    )
    yield f"{what} {metrics[key]:.2%}, best {metrics[f'best_{key}']:.2%}, loss {metrics['loss']:.4f}"
    yield (
        f"{metrics['epochs']} epoch{'s' * (metrics['epochs'] != 1)} in {metrics['seconds']:.1f} s on {metrics['device']}: "
        f"{metrics['images_per_second']:.0f} images/s, {metrics['memory_mib']:.0f} MiB"
    )
    if metrics.get("unreadable_images"):
        yield f"{metrics['unreadable_images']} images could not be read"
    yield f"take it out with: {command_line('export', answer.run)}"
