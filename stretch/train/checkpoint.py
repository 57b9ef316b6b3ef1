"""Checkpoints of runs, written atomically: tensors in safetensors, the rest as JSON in its header."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from predictors.errors import StretchError
from stretch.train.loop import Epoch, Run
from stretch.train.sandwich import SandwichStep
from stretch.train.step import unwrapped
from stretch.transform.tensors import load_optimizer, optimizer_tensors, under, write_tensors

CHECKPOINT_VERSION = 1


class CheckpointState(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """State of a checkpoint beside its tensors."""

    version: int  # Of this format.
    identity: dict[str, str]  # Fingerprints of the run: ``recipe``, ``design``, ``model``.
    epoch: int  # Completed epochs.
    done: int  # Completed steps of the current epoch.
    history: list[dict[str, float | int | None]]  # Rows of the log.
    best: float | None = None  # Highest accuracy, or agreement without labels, so far, or None.
    scaler: dict[str, float] = {}  # State of the fp16 loss scale.
    processes: int = 1  # Number of processes of the run.


def save_checkpoint(path: Path, run: Run, identity: Mapping[str, str], best: float | None) -> None:
    """Write everything a run needs to resume exactly."""
    step = run.step
    tensors = {f"model.{k}": v for k, v in unwrapped(run.model).state_dict().items()}
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
        history=[asdict(row) for row in run.history.epochs],
        best=best,
        scaler={k: float(v) for k, v in step.scaler.state_dict().items()} if step.scaler else {},
        processes=run.world.size,
    )
    write_tensors(path, tensors, {"state": msgspec.json.encode(state).decode()})


def read_state(path: Path) -> CheckpointState:
    """Read the header of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            state = msgspec.json.decode((file.metadata() or {})["state"], type=CheckpointState)
    except (OSError, SafetensorError, KeyError, msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is no whole checkpoint: {str(error).splitlines()[0]}", "resume from an older one") from error
    if state.version > CHECKPOINT_VERSION:
        raise StretchError(
            f"{path} has checkpoint version {state.version}, this nn-stretch reads up to {CHECKPOINT_VERSION}", "upgrade nn-stretch"
        )
    return state


def load_checkpoint(path: Path, run: Run, identity: Mapping[str, str]) -> CheckpointState:
    """Restore a run from a checkpoint."""
    state = read_state(path)
    for what, expected in identity.items():
        if state.identity.get(what) != expected:
            raise StretchError(f"{path} belongs to another {what}", f"resume with the {what} it was made with, or start a new run folder")
    if state.processes != run.world.size:
        raise StretchError(f"{path} is of a run with {state.processes} processes, this one has {run.world.size}", "start as many processes")
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    step = run.step
    try:
        unwrapped(run.model).load_state_dict(under(tensors, "model."))
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
    run.history.epochs = [Epoch(**row) for row in state.history]  # type: ignore[arg-type]
    if isinstance(step, SandwichStep):
        step.count = run.epoch * run.per_epoch + run.done
    return state
