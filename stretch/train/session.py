"""Run a recipe from start to end: train, log, checkpoint, and resume after an interruption."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from predictors.errors import StretchError
from stretch.train.distributed import World
from stretch.train.folder import BEST, LAST, Log, RunFolder, load_checkpoint, save_checkpoint
from stretch.train.images import ImageSet, ImageSource, ImageStream
from stretch.train.loop import Diverged, Epoch, Listener, Run
from stretch.train.prepare import TrainingJob, macs_ratios, prepare
from stretch.train.recipe import KeepConfig, Recipe
from stretch.train.step import unwrap
from stretch.train.supernet import Supernet
from stretch.transform.tensors import write_tensors


class TrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a training run."""

    run: Path | None  # Folder of the run; None after a dry run.
    checkpoint: Path | None  # File of the final weights; None after a dry run.
    #: ``accuracy`` and ``best_accuracy``, or without labels ``agreement`` and ``best_agreement``, ``loss``, ``epochs``, ``seconds``,
    #: ``images_per_second``, ``memory_mib`` and others.
    metrics: dict[str, Any]
    warnings: list[str]  # Warnings for the user.


def memory_mib(device: torch.device) -> float:
    """Return the peak memory of the GPU, or of this process, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class RunWriter:
    """Writes into a run's folder; used by the first process.

    Args:
        best: Highest accuracy so far, or agreement without labels; None before the first evaluation.
    """

    def __init__(self, folder: RunFolder, run: Run, keep: KeepConfig, identity: Mapping[str, str], best: float | None) -> None:
        self.folder, self.run, self.keep, self.identity, self.best = folder, run, keep, dict(identity), best
        self.log = Log(folder, keep.tensorboard)
        self.log.restart(run.history)
        self._steps = 0

    def stepped(self) -> None:
        """Count a step within an epoch, and write a checkpoint if one is due."""
        self._steps += 1
        if self.keep.steps and self._steps % self.keep.steps == 0:
            self.run.check()
            self.run.check_weights()
            self._checkpoint(self.run.done)

    def finished(self, row: Epoch) -> None:
        """Log an epoch, and write the best weights and a checkpoint if they are due."""
        self._steps += 1
        run = self.run
        speed, memory = len(run.train_set) / row.seconds, memory_mib(run.world.device)
        self.log.add(row, images_per_second=speed, memory_mib=memory, rate=float(run.step.rate))
        if row.score is not None and (self.best is None or row.score > self.best):
            self.best = row.score
            write_tensors(self.folder.path / BEST, kept_weights(run))
        if row.epoch % self.keep.every == 0 or row.epoch == run.config.epochs:
            self._checkpoint(0)

    def ended(self) -> None:
        """Write the last weights."""
        write_tensors(self.folder.path / LAST, kept_weights(self.run))

    def _checkpoint(self, done: int) -> None:
        save_checkpoint(self.folder.checkpoint(self.run.epoch, done), self.run, self.identity, self.best)
        self.folder.rotate(self.keep.last)


def kept_weights(run: Run) -> dict[str, torch.Tensor]:
    """Return the weights to use: the moving average if the run has one."""
    network: nn.Module = unwrap(run.model)
    with run.step.averaged():
        return {name: value.detach().clone() for name, value in network.state_dict().items()}


def train_recipe(
    recipe: Recipe,
    base: Path,
    out: Path,
    *,
    resume: bool = False,
    trust_code: bool = False,
    world: World | None = None,
    listener: Listener | None = None,
) -> TrainAnswer:
    """Train a recipe's networks."""
    world, listener, folder = world or World(), listener or Listener(), RunFolder(out)
    if folder.exists and not resume:
        raise StretchError(f"there is a run in {out} already", "go on with --resume, or choose another folder with --out")
    job = _prepare(recipe, base, world, trust_code=trust_code)
    run = make_run(job, job.images(), world)
    identity = job.identity
    best = _begin(job, run, folder, identity, listener, resume=resume)
    world.barrier()
    keeper = RunWriter(folder, run, recipe.keep, identity, best) if world.first else None
    try:
        metrics = _train(job, run, keeper, listener)
    except Diverged as error:
        newest = folder.newest()
        hint = f"{error.hint}; the last good checkpoint is {newest[0]}" if newest else error.hint
        raise Diverged(error.message, hint) from error
    return TrainAnswer(run=folder.path, checkpoint=folder.path / LAST, metrics=metrics, warnings=job.warnings)


def _prepare(recipe: Recipe, base: Path, world: World, *, trust_code: bool) -> TrainingJob:
    if recipe.train.deterministic:
        torch.use_deterministic_algorithms(True)
    if recipe.train.deterministic or world.device.type == "cuda":
        torch.backends.cudnn.benchmark = not recipe.train.deterministic
    job = prepare(recipe, base, trust_code=trust_code)
    if world.device.type == "cpu" and recipe.data.device == "auto":
        job.warnings.append("there is no GPU: training on the CPU")
    return job


def _begin(job: TrainingJob, run: Run, folder: RunFolder, identity: dict[str, str], listener: Listener, *, resume: bool) -> float | None:
    """Resume from the newest checkpoint, or start the folder; return the highest accuracy or agreement so far."""
    if resume and (newest := folder.newest()) is not None:
        state = load_checkpoint(newest[0], run, identity)
        listener.note(f"going on after epoch {state.epoch}" + (f", step {state.done}" if state.done else ""))
        return state.best
    if run.world.first:
        # A run that ended before its first checkpoint may be replaced, also by a different one.
        if resume:
            listener.note("there is no checkpoint yet: starting at the beginning")
        folder.start(job.recipe, job.captured, job.designs, {"weights": job.weights_source, "processes": run.world.size} | identity)
    return None


def make_run(job: TrainingJob, images: tuple[ImageSource, ImageSource], world: World) -> Run:
    """Return the run of a prepared recipe, at its beginning."""
    recipe, network, teacher = job.recipe, job.network(world.device, images[0]), job.teacher()
    if isinstance(network, Supernet) and recipe.supernet is not None and not recipe.supernet.largest:
        network.active = network.pool[0]
    labelled = recipe.data.labels != "none"
    return Run(network, images, recipe.train, teacher=teacher, world=world, sandwich=recipe.supernet, labelled=labelled)


def _train(job: TrainingJob, run: Run, keeper: RunWriter | None, listener: Listener) -> dict[str, Any]:
    """Train to the end and return the metrics; the first process has a keeper."""
    start = time.perf_counter()
    try:
        for row in run.steps(job.recipe.keep.evaluate):
            if row is not None:
                run.check_weights()
            if keeper is None:
                continue
            listener.stepped(run)
            if row is None:
                keeper.stepped()
            else:
                keeper.finished(row)
                listener.finished(row)
    finally:
        if keeper is not None:
            keeper.log.close()
    if keeper is not None:
        keeper.ended()
    run.world.barrier()
    return _metrics(job, run, keeper.best if keeper is not None else None, time.perf_counter() - start)


def _metrics(job: TrainingJob, run: Run, best: float | None, wall_seconds: float) -> dict[str, Any]:
    """Return the metrics of a run."""
    seconds = sum(row.seconds for row in run.history)
    score, labelled = next(row.score for row in reversed(run.history) if row.score is not None), run.reference is None
    metrics: dict[str, Any] = {
        "accuracy": score if labelled else None,
        "best_accuracy": best if labelled else None,
        "agreement": None if labelled else score,
        "best_agreement": None if labelled else best,
        "loss": run.history[-1].loss,
        "epochs": run.epoch,
        "seconds": seconds,
        "wall_seconds": wall_seconds,
        "images_per_second": len(run.train_set) * run.epoch / seconds if seconds else None,
        "memory_mib": memory_mib(run.world.device),
        "device": run.world.device.type,
        "processes": run.world.size,
        "macs_ratio": list(macs_ratios(job)),
        "source": "measured",
    }
    if isinstance(run.train_set, ImageStream):
        metrics["unreadable_images"] = len(run.train_set.bad)
    return metrics


def try_recipe(recipe: Recipe, base: Path, world: World, *, trust_code: bool = False) -> TrainAnswer:
    """Build everything that a recipe needs and train one step on synthetic images; write no files."""
    job = _prepare(recipe, base, world, trust_code=trust_code)
    graph = job.captured.graph
    classes = graph.by_name[graph.output].shape[1]
    batch = 2 * world.size
    small = msgspec.structs.replace(job.recipe.train, batch=batch, epochs=1, accumulate=1, compile=False, graph=False)
    job.recipe = msgspec.structs.replace(job.recipe, train=small, start="inherit" if job.recipe.start == "calibrate" else job.recipe.start)
    start = time.perf_counter()
    images = torch.randint(0, 256, (batch, *graph.input.shape[1:]), dtype=torch.uint8)
    image_set = ImageSet.of(images, torch.arange(batch) % classes, classes)
    run = make_run(job, (image_set, image_set), world)
    next(run.steps())
    loss = float(run.losses[0])
    metrics = {
        "loss": loss,
        "seconds": time.perf_counter() - start,
        "memory_mib": memory_mib(world.device),
        "macs_ratio": list(macs_ratios(job)),
        "designs": [asdict(design) for design in job.designs],
        "dry_run": True,
    }
    return TrainAnswer(run=None, checkpoint=None, metrics=metrics, warnings=job.warnings)
