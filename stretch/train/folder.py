"""The folder of a run: recipe, log and checkpoints, written atomically; tensors are safetensors files, with other data in their headers."""

import contextlib
import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError

from predictors.errors import MissingBackendError, StretchError, install_line
from predictors.files import new_folder, write_whole
from predictors.graph import OpGraph
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import BranchDesign, design_to_toml
from stretch.stages.reopen import restore
from stretch.train.loop import Epoch, Run
from stretch.train.recipe import Recipe, load_recipe, recipe_to_toml
from stretch.train.sandwich import SandwichStep
from stretch.train.step import unwrap
from stretch.transform.tensors import load_optimizer, optimizer_tensors, read_state, read_tensors, under, write_checkpoint, write_tensors

CHECKPOINT_VERSION = 1


class CheckpointState(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """State of a checkpoint in addition to its tensors."""

    version: int  # Version of this format.
    identity: dict[str, str]  # Fingerprints of the run: ``recipe``, ``design``, ``model``.
    epoch: int  # Number of completed epochs.
    done: int  # Number of completed steps of the current epoch.
    history: list[Epoch]  # Rows of the log.
    best: float | None = None  # Highest accuracy so far, or agreement without labels; None before the first evaluation.
    scaler: dict[str, float] = {}  # State of the fp16 loss scaler.
    processes: int = 1  # Number of processes of the run.


def save_checkpoint(path: Path, run: Run, identity: Mapping[str, str], best: float | None) -> None:
    """Write all data that a run needs to resume exactly."""
    step = run.step
    tensors = {f"model.{k}": v for k, v in unwrap(run.model).state_dict().items()}
    tensors |= optimizer_tensors(step.optimizer, step.parameters)
    if step.mean is not None:
        tensors |= {f"mean.{k}": v for k, v in step.mean.state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    tensors["random.own"] = step.generator.get_state()
    if step.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(step.device)
    tensors["losses"] = run.losses
    state = CheckpointState(
        version=CHECKPOINT_VERSION,
        identity=dict(identity),
        epoch=run.epoch,
        done=run.done,
        history=run.history,
        best=best,
        scaler={k: float(v) for k, v in step.scaler.state_dict().items()} if step.scaler else {},
        processes=run.world.size,
    )
    write_checkpoint(path, state, tensors)


def checkpoint_state(path: Path) -> CheckpointState:
    """Read the header of a checkpoint."""
    state = read_state(path, CheckpointState, "resume from an older one")
    if state.version > CHECKPOINT_VERSION:
        raise StretchError(
            f"{path} has checkpoint version {state.version}, this nn-stretch reads up to {CHECKPOINT_VERSION}", "upgrade nn-stretch"
        )
    return state


def load_checkpoint(path: Path, run: Run, identity: Mapping[str, str]) -> CheckpointState:
    """Restore a run from a checkpoint."""
    state = checkpoint_state(path)
    for problem, expected in identity.items():
        if state.identity.get(problem) != expected:
            raise StretchError(
                f"{path} belongs to another {problem}", f"resume with the {problem} it was made with, or start a new run folder"
            )
    if state.processes != run.world.size:
        raise StretchError(f"{path} is of a run with {state.processes} processes, this one has {run.world.size}", "start as many processes")
    tensors, _ = read_tensors(path)
    step = run.step
    try:
        unwrap(run.model).load_state_dict(under(tensors, "model."))
    except RuntimeError as error:
        raise StretchError(f"{path} does not fit this network: {str(error).splitlines()[0]}", "start a new run folder") from error
    load_optimizer(step.optimizer, step.parameters, tensors)
    with torch.no_grad():
        if step.mean is not None:
            for name, value in under(tensors, "mean.").items():
                step.mean.state[name].copy_(value)
        run.losses.copy_(tensors["losses"])
    if step.scaler is not None and state.scaler:
        step.scaler.load_state_dict(dict(state.scaler) | {k: int(state.scaler[k]) for k in ("growth_interval", "_growth_tracker")})
    torch.set_rng_state(tensors["random.cpu"])
    step.generator.set_state(tensors["random.own"])
    if step.device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], step.device)
    run.epoch, run.done = state.epoch, state.done
    run.history = state.history
    if isinstance(step, SandwichStep):
        step.count = run.epoch * run.per_epoch + run.done
    return state


RECIPE, FACTS, LOG, BEST, LAST = "recipe.toml", "run.json", "log.csv", "best.safetensors", "last.safetensors"

#: The network at the start of the run: its weights, with its operator graph in the header.
ORIGINAL = "original.safetensors"


#: Hint for errors when writing a run.
WRITABLE = "choose a writable folder with --out"


class RunFolder:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / RECIPE).is_file()

    def start(self, recipe: Recipe, original: Captured, designs: list[BranchDesign], facts: dict[str, Any]) -> None:
        """Write recipe, network, designs and facts of the run, replacing a run without a checkpoint."""
        try:
            if self.path.exists() and not self.exists and (not self.path.is_dir() or any(self.path.iterdir())):
                raise StretchError(f"cannot train into {self.path}: it holds something else", "choose a new folder with --out")
            for stale in (*self.designs(), self.path / LOG):
                stale.unlink(missing_ok=True)
            with contextlib.nullcontext(self.path) if self.exists else new_folder(self.path, "run") as folder:
                (folder / "designs").mkdir(exist_ok=True)
                for number, design in enumerate(designs):
                    write_whole(folder / "designs" / f"{number:03d}.toml", design_to_toml(design).encode(), "run", WRITABLE)
                write_tensors(folder / ORIGINAL, original.tensors, {"graph": original.graph.to_json().decode()})
                write_whole(folder / FACTS, json.dumps(facts, indent=1).encode(), "run", WRITABLE)
                write_whole(folder / RECIPE, recipe_to_toml(recipe).encode(), "run", WRITABLE)
        except OSError as error:
            raise StretchError(f"cannot train into {self.path}: {error.strerror}", WRITABLE) from error

    def recipe(self) -> Recipe:
        """Return the recipe of the run, with every value written out."""
        if not self.exists:
            raise StretchError(f"there is no run in {self.path}", "give the folder that `stretch train` wrote")
        return load_recipe(self.path / RECIPE)

    def designs(self) -> list[Path]:
        """Return the design files in order: the run's design, or its pool."""
        return sorted((self.path / "designs").glob("*.toml"))

    def original(self) -> Captured:
        """Return the network at the start of the run, restored from its graph and weights."""
        try:
            tensors, metadata = read_tensors(self.path / ORIGINAL)
            graph = OpGraph.from_json(metadata["graph"])
            # in the graph's order, which is also the order of a supernet's shared vector
            weights = {
                op.name: {key: tensors[f"{op.name}.{key}"].reshape(shape) for key, shape in graph.op_weights(op).items()}
                for op in graph.ops
            }
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise StretchError(f"{self.path / ORIGINAL} cannot be read: {error}", "start the run again") from error
        return restore(graph, {name: tensors for name, tensors in weights.items() if tensors})

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the best weights so far."""
        if not (self.path / BEST).is_file():
            raise StretchError(
                f"the run in {self.path} has no weights yet", "wait for its first epoch, or go on with `stretch train --resume`"
            )
        return read_tensors(self.path / BEST)[0]

    def checkpoints(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"))

    def checkpoint(self, epoch: int, done: int) -> Path:
        """Return the path of the checkpoint after this many epochs and steps; names sort by age."""
        return self.path / "checkpoints" / f"step-{epoch:05d}-{done:07d}.safetensors"

    def newest(self) -> tuple[Path, CheckpointState] | None:
        """Return the newest complete checkpoint; None if there is none."""
        for path in reversed(self.checkpoints()):
            try:
                return path, checkpoint_state(path)
            except StretchError:
                continue
        return None

    def rotate(self, keep: int) -> None:
        """Remove all but the newest checkpoints."""
        for path in self.checkpoints()[:-keep]:
            path.unlink(missing_ok=True)


class Log:
    """Rows of a run as CSV and, if requested, as TensorBoard events."""

    COLUMNS = ("epoch", "loss", "accuracy", "seconds", "images_per_second", "memory_mib", "rate", "agreement")

    def __init__(self, folder: RunFolder, tensorboard: bool) -> None:
        self.path = folder.path / LOG
        self._events = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ModuleNotFoundError as error:
                raise MissingBackendError(
                    "TensorBoard is not installed", f"{install_line('train')}, or --set keep.tensorboard=false"
                ) from error
            with _file_in_errors(folder.path):
                self._events = SummaryWriter(str(folder.path / "tensorboard"))

    def restart(self, rows: list[Epoch]) -> None:
        """Keep only the rows of epochs that a resumed run has completed."""
        if not self.path.is_file():
            return
        epochs = {row.epoch for row in rows}
        with self.path.open(newline="") as file:
            kept = [row for row in csv.reader(file) if row and (row[0] == "epoch" or (row[0].isdigit() and int(row[0]) in epochs))]
        partial = self.path.with_suffix(".part")
        with partial.open("w", newline="") as file:
            csv.writer(file).writerows(kept)
        partial.replace(self.path)

    def add(self, row: Epoch, **more: float) -> None:
        """Write the row of one epoch."""
        values = {"epoch": row.epoch, "loss": row.loss, "accuracy": row.accuracy, "seconds": row.seconds, "agreement": row.agreement} | more
        new = not self.path.exists()
        with _file_in_errors(self.path):
            with self.path.open("a", newline="") as file:
                writer = csv.writer(file)
                if new:
                    writer.writerow(self.COLUMNS)
                writer.writerow(["" if values.get(c) is None else values[c] for c in self.COLUMNS])
            if self._events is not None:
                for name, value in values.items():
                    if name != "epoch" and value is not None:
                        self._events.add_scalar(name, value, row.epoch)

    def close(self) -> None:
        """Write pending events, and close the files."""
        if self._events is not None:
            with _file_in_errors(self.path):
                self._events.close()


@contextlib.contextmanager
def _file_in_errors(path: Path) -> Iterator[None]:
    """Add the file's name to a write error."""
    try:
        yield
    except OSError as error:
        raise StretchError(
            f"cannot write {path}: {error.strerror}", "free some space, then go on with --resume: the last checkpoint is whole"
        ) from error
