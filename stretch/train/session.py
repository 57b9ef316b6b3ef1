"""A recipe from start to end: train, log, checkpoint, go on after an interruption."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.train.checkpoint import load_checkpoint, save_checkpoint
from stretch.train.data import ImageSet
from stretch.train.distributed import World
from stretch.train.folder import BEST, LAST, Log, RunFolder
from stretch.train.loop import Diverged, Epoch, Run
from stretch.train.prepare import Prepared, macs_ratios, prepare
from stretch.train.recipe import Recipe
from stretch.train.sandwich import SandwichStep
from stretch.train.source import Source
from stretch.train.step import unwrapped
from stretch.train.stream import ImageStream
from stretch.train.supernet import Supernet

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """What a run came to.

    Args:
        run: Its folder; None after a dry run.
        checkpoint: Its final weights; None after a dry run.
        metrics: ``accuracy``, ``best_accuracy``, ``loss``, ``epochs``, ``seconds``,
            ``images_per_second``, ``memory_mib`` and more.
        warnings: What a person should know.
    """

    run: Path | None
    checkpoint: Path | None
    metrics: dict[str, Any]
    warnings: list[str]


def train_recipe(
    recipe: Recipe,
    base: Path,
    out: Path,
    *,
    resume: bool = False,
    dry_run: bool = False,
    trust_code: bool = False,
    world: World | None = None,
    on_epoch: Callable[[Epoch], None] = lambda row: None,
    on_step: Callable[[Run], None] = lambda run: None,
    say: Say = lambda what: None,
) -> Trained:
    """Train what a recipe says.

    Args:
        recipe: The recipe.
        base: What design files are relative to.
        out: Folder of the run.
        resume: Go on from the newest whole checkpoint there.
        dry_run: Build everything, train one step on synthetic images, write nothing.
        trust_code: Whether Python code that the recipe names as its model may be executed.
        world: This process among those of the run.
        on_epoch: Called after each epoch, in the first process.
        on_step: Called after each step, in the first process.
        say: Told what happens.

    Raises:
        StretchError: Or one of its kinds: data that is missing or does not fit, a loss that
            is no number (the last checkpoint is kept), a checkpoint of another run, a full disk.
    """
    world = world or World()
    if recipe.train.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    elif world.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    folder = RunFolder(out)
    if folder.exists and not resume and not dry_run:
        raise StretchError(f"there is a run in {out} already", "go on with --resume, or choose another folder with --out")
    ready = prepare(recipe, base, trust_code=trust_code)
    if world.device.type == "cpu" and recipe.data.device == "auto":
        ready.warnings.append("there is no GPU: training on the CPU")
    if dry_run:
        return _dry_run(ready, world)
    train_set, test_set = ready.images()
    run = make_run(ready, train_set, test_set, world)
    best = None
    identity = ready.identity
    if resume and (found := folder.newest()) is not None:
        state = load_checkpoint(found[0], run, identity)
        best = state.best
        say(f"going on after epoch {state.epoch}" + (f", step {state.done}" if state.done else ""))
    elif world.first:
        # A run that ended before its first checkpoint has nothing to lose, and may be another one now.
        if resume:
            say("there is no checkpoint yet: starting at the beginning")
        folder.start(recipe, ready.designs, {"weights": ready.weights_source, "processes": world.size} | identity)
    world.barrier()
    return _train(ready, run, folder, identity, best, on_epoch, on_step)


def make_run(ready: Prepared, train_set: Source, test_set: Source, world: World) -> Run:
    """The run of a prepared recipe, at its beginning."""
    recipe = ready.recipe
    network = ready.network(world.device, train_set)
    teacher = ready.teacher()
    if teacher is not None:
        teacher.to(world.device)
    make_step = None
    if isinstance(network, Supernet):
        assert recipe.supernet is not None
        sandwich = recipe.supernet
        if not sandwich.largest:
            network.active = network.pool[0]
        make_step = lambda prepared, device: SandwichStep(network, recipe.train, prepared, teacher, device, sandwich, world)  # noqa: E731
    return Run(
        network, train_set, test_set, recipe.train, teacher=teacher, world=world, evaluate_every=recipe.keep.evaluate, make_step=make_step
    )


def _train(
    ready: Prepared,
    run: Run,
    folder: RunFolder,
    identity: dict[str, str],
    best: float | None,
    on_epoch: Callable[[Epoch], None],
    on_step: Callable[[Run], None],
) -> Trained:
    keep, world = ready.recipe.keep, run.world
    log = Log(folder, keep.tensorboard) if world.first else None
    if log is not None:
        log.restart(run.history.epochs)
    start = time.perf_counter()
    images = len(run.train_set)
    steps = 0
    try:
        for row in run.steps():
            steps += 1
            if world.first:
                on_step(run)
            if row is None:
                if keep.steps and steps % keep.steps == 0 and world.first:
                    run.check()
                    run.check_weights()
                    save_checkpoint(folder.checkpoint(run.epoch, run.done), run, identity, best)
                    folder.rotate(keep.last)
                continue
            run.check_weights()
            if world.first:
                assert log is not None
                log.add(row, images_per_second=images / row.seconds, memory_mib=memory_mib(world.device), rate=float(run.step.rate))
                if row.accuracy is not None and (best is None or row.accuracy > best):
                    best = row.accuracy
                    folder.weights(BEST, kept_weights(run))
                if row.epoch % keep.every == 0 or row.epoch == run.config.epochs:
                    save_checkpoint(folder.checkpoint(run.epoch, 0), run, identity, best)
                    folder.rotate(keep.last)
                on_epoch(row)
    except Diverged as error:
        newest = folder.newest()
        hint = f"{error.hint}; the last good checkpoint is {newest[0]}" if newest else error.hint
        raise Diverged(error.message, hint) from error
    finally:
        if log is not None:
            log.close()
    if world.first:
        folder.weights(LAST, kept_weights(run))
    world.barrier()
    seconds = sum(row.seconds for row in run.history.epochs)
    metrics: dict[str, Any] = {
        "accuracy": run.history.accuracy,
        "best_accuracy": best,
        "loss": run.history.epochs[-1].loss,
        "epochs": run.epoch,
        "seconds": seconds,
        "wall_seconds": time.perf_counter() - start,
        "images_per_second": images * run.epoch / seconds if seconds else None,
        "memory_mib": memory_mib(world.device),
        "device": world.device.type,
        "processes": world.size,
        "macs_ratio": list(macs_ratios(ready)),
        "source": "measured",
    }
    if isinstance(run.train_set, ImageStream):
        metrics["unreadable_images"] = len(run.train_set.bad)
    return Trained(folder.path, folder.path / LAST, metrics, ready.warnings)


def kept_weights(run: Run) -> dict[str, torch.Tensor]:
    """The network's weights as they are to be used: the running mean, where the run keeps one."""
    network: nn.Module = unwrapped(run.model)
    if run.step.mean is None:
        return dict(network.state_dict())
    run.step.mean.swap()
    try:
        return {name: value.detach().clone() for name, value in network.state_dict().items()}
    finally:
        run.step.mean.swap()


def memory_mib(device: torch.device) -> float:
    """Most memory taken so far: of the GPU's, or of this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _dry_run(ready: Prepared, world: World) -> Trained:
    """One step on synthetic images."""
    import msgspec

    graph = ready.captured.graph
    classes = graph.by_name[graph.output].shape[1]
    batch = 2 * world.size
    small = msgspec.structs.replace(ready.recipe.train, batch=batch, epochs=1, accumulate=1, compile=False, graph=False)
    ready.recipe = msgspec.structs.replace(
        ready.recipe, train=small, start="inherit" if ready.recipe.start == "calibrate" else ready.recipe.start
    )
    start = time.perf_counter()
    images = torch.randint(0, 256, (batch, 3, ready.size, ready.size), dtype=torch.uint8)
    some = ImageSet.of(images, torch.arange(batch) % classes, classes)
    run = make_run(ready, some, some, world)
    next(run.steps())
    loss = float(run.losses[0])
    metrics = {
        "loss": loss,
        "seconds": time.perf_counter() - start,
        "memory_mib": memory_mib(world.device),
        "macs_ratio": list(macs_ratios(ready)),
        "designs": [asdict(design) for design in ready.designs],
        "dry_run": True,
    }
    return Trained(None, None, metrics, ready.warnings)
