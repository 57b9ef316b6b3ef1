"""`stretch train`: train a recipe on a CPU or on GPUs."""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.errors import StretchError
from predictors.install import install_line
from stretch.cli.failures import INTERRUPTED, SPEAKER_VARIABLE
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from stretch.train.answer import TrainAnswer
    from stretch.train.listen import Listener
    from stretch.train.loop import Epoch, Run

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
def train(
    out: Output,
    recipe: Annotated[str, typer.Argument(help="Recipe: a TOML file, or the name of an installed one.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the run. Default: runs/RECIPE.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the recipe, such as train.epochs=5.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the newest complete checkpoint of the run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything and train one step on synthetic images, without writing anything.")
    ] = False,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Execute Python code that the recipe names as its model.")] = False,
    gpus: Annotated[
        int, typer.Option(help="Number of processes, with one GPU each; more than one are started by torchrun.", min=1, max=64)
    ] = 1,
) -> None:
    """Train a branched network, or a supernet of many designs, from a recipe."""
    from stretch.train.recipe import find_recipe, load_recipe

    path = find_recipe(recipe)
    loaded = load_recipe(path, tuple(change or ()))
    target = folder or Path("runs") / path.stem
    if gpus > 1 and "RANK" not in os.environ:
        raise typer.Exit(_torchrun(gpus, out))
    import_torch()
    from stretch.train.answer import TrainAnswer
    from stretch.train.distributed import join_world
    from stretch.train.session import train_recipe

    with join_world(loaded.data.device) as world:
        if not world.first:
            out.quiet = True

        with out.progress("training") as step:
            listener = _listener(out, step, loaded.train.epochs)
            flags = {"resume": resume, "dry_run": dry_run, "trust_code": trust_code}
            done = train_recipe(loaded, path.parent, target, world=world, listener=listener, **flags)
        if not world.first:
            return
    for warning in done.warnings:
        out.warn(warning)
    answer = TrainAnswer(run=done.run, checkpoint=done.checkpoint, metrics=done.metrics, warnings=out.warnings)
    out.emit(answer, lambda console: _print(console, answer, trust_code))


def _listener(out: Output, step: "Callable[..., None]", epochs: int) -> "Listener":
    """The listener that prints the progress of a run."""
    from stretch.train.listen import Listener

    class Teller(Listener):
        def said(self, what: str) -> None:
            out.note(what)

        def stepped(self, run: "Run") -> None:
            step(f"epoch {min(run.epoch + 1, epochs)} of {epochs}", at=run.epoch * run.per_epoch + run.done, total=epochs * run.per_epoch)

        def finished(self, row: "Epoch") -> None:
            accuracy = "" if row.accuracy is None else f", accuracy {row.accuracy:.2%}"
            agreement = "" if row.agreement is None else f", agreement with the original {row.agreement:.2%}"
            out.note(f"epoch {row.epoch}: loss {row.loss:.4f}{accuracy}{agreement}, {row.seconds:.1f} s")

    return Teller()


def import_torch() -> None:
    """Import the trainer."""
    from predictors.errors import MissingBackendError

    try:
        import safetensors
        import torch  # noqa: F401 - only to have it loaded
    except ModuleNotFoundError as error:
        raise MissingBackendError(f"training needs {error.name}, which is not installed", install_line("train")) from error
    del safetensors


def _torchrun(gpus: int, out: Output) -> int:
    """Restart this command under torchrun, one process per GPU; a failing process prints its own error."""
    import_torch()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    words = [*sys.argv[1:]]
    start = words.index("train") + 1 if "train" in words else 0
    out.note(f"starting {gpus} processes")
    # Otherwise the launcher sets one thread per process and warns.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // gpus)))
    logging.disable(logging.CRITICAL)  # each of the launcher's loggers has its own level
    folder = tempfile.TemporaryDirectory(prefix="nn-stretch-")
    os.environ[SPEAKER_VARIABLE] = str(Path(folder.name, "failed"))
    try:
        main(["--standalone", f"--nproc-per-node={gpus}", "-m", "stretch.train", *words[start:]])
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


def _print(console: "Console", answer: "TrainAnswer", trusted: bool) -> None:
    metrics = answer.metrics
    ratios = ", ".join(f"{ratio:.3f}" for ratio in metrics["macs_ratio"])
    console.print(f"MACs over the original's: {ratios}")
    if answer.run is None:
        console.print(f"dry run: one step in {metrics['seconds']:.1f} s, loss {metrics['loss']:.4f}, {metrics['memory_mib']:.0f} MiB")
        return
    what, key = (
        ("accuracy", "accuracy") if metrics["agreement"] is None else ("agreement with the original on images held back", "agreement")
    )
    console.print(f"{what} {metrics[key]:.2%}, best {metrics[f'best_{key}']:.2%}, loss {metrics['loss']:.4f}")
    console.print(
        f"{metrics['epochs']} epoch{'s' * (metrics['epochs'] != 1)} in {metrics['seconds']:.1f} s on {metrics['device']}: "
        f"{metrics['images_per_second']:.0f} images/s, {metrics['memory_mib']:.0f} MiB"
    )
    if metrics.get("unreadable_images"):
        console.print(f"{metrics['unreadable_images']} images could not be read")
    # not wrapped, so that the command can be copied
    console.print(f"take it out with: stretch extract {answer.run}{' --trust-code' * trusted}", soft_wrap=True)
