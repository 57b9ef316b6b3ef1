"""Safetensors files, written atomically, and the state of optimisers as tensors."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from predictors.errors import StretchError

#: Errors of a full disk, an exceeded quota or a file size limit.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Prefix of the names of an optimiser's tensors.
_OPTIMIZER = "optimizer."


State = TypeVar("State", bound=msgspec.Struct)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file under a temporary name, then rename it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(_without_shared_memory(tensors), partial, metadata=dict(metadata or {}))
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in _FULL or any(f"os error {code}" in str(error) for code in _FULL)
        reason = "the disk is full" if full else str(error).splitlines()[0]
        hint = "free some space, then go on: the last checkpoint is whole" if full else "choose a folder that can be written"
        raise StretchError(f"cannot write {path}: {reason}", hint) from error
    finally:
        with contextlib.suppress(OSError):  # an error here would hide the original one
            partial.unlink(missing_ok=True)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - the file is no mapping


def write_checkpoint(path: Path, state: msgspec.Struct, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors, with a state in the file's header."""
    write_tensors(path, tensors, {"state": msgspec.json.encode(state).decode()})


def read_state(path: Path, kind: type[State], hint: str) -> State:
    """Read the state of a checkpoint."""
    with errors_as_damaged(path, hint), safe_open(path, framework="pt") as file:
        return msgspec.json.decode((file.metadata() or {})["state"], type=kind)


@contextlib.contextmanager
def errors_as_damaged(path: Path, hint: str) -> Iterator[None]:
    """Attribute errors in this block to a checkpoint.

    Raises:
        StretchError: If the checkpoint is damaged, or of another kind.
    """
    try:
        yield
    # errors of torch, safetensors and msgspec for tensors and text that do not fit
    except (OSError, SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise StretchError(f"{path} is no whole checkpoint: {(str(error).splitlines() or [''])[0]}", hint) from error


def _without_shared_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous copies where tensors share memory, as the format requires: bands of rows share weights, other tensors are views."""
    copies: dict[str, torch.Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.detach().cpu().contiguous()
        shared = contiguous.data_ptr() in addresses or contiguous.untyped_storage().nbytes() > contiguous.nbytes
        copies[name] = contiguous.clone() if shared else contiguous
        addresses.add(contiguous.data_ptr())
    return copies


def evenly_spread(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return at most `count` rows of a tensor, spread evenly."""
    if len(rows) <= count:
        return rows
    return rows[torch.arange(count, device=rows.device) * len(rows) // count]


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with a prefix, without that prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of an optimiser as named tensors."""
    return {
        f"{_OPTIMIZER}{index}.{key}": value
        for index, parameter in enumerate(parameters)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def load_optimizer(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Restore an optimiser's state from `optimizer_tensors`."""
    states: dict[int, dict[str, Any]] = {}
    for name, value in under(tensors, _OPTIMIZER).items():
        number, _, key = name.partition(".")
        parameter = parameters[int(number)]
        # The memory layout of the parameter preserves the order of sums.
        like = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value, device=parameter.device)
        states.setdefault(int(number), {})[key] = like.copy_(value)
    for index, state in states.items():
        optimizer.state[parameters[index]].update(state)
