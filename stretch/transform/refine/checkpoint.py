"""Checkpoint of a refinement: one file of tensors, with the progress in its header."""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from predictors.errors import StretchError
from stretch.transform.tensors import write_tensors

FILE, VERSION = "refinement.safetensors", 1

#: Seconds between two checkpoints, the maximum loss by an interruption.
EVERY_S = 30.0

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Progress of a refinement."""

    version: int  # Of this format.
    identity: dict[str, str]  # Fingerprints of what is refined, on what and how, by what they are of.
    phase: _Count  # Number of the current phase.
    steps: _Count  # Completed steps.
    seconds: _Amount  # Wall time that they took.
    looks: _Count  # How often the network was judged.
    least: _Amount  # Error of the best state so far.


class Checkpoint:
    """A folder with the state of one refinement.

    Args:
        folder: Made when something is written; ours alone.
        every_s: Seconds between two writings; `EVERY_S` if None.
    """

    def __init__(self, folder: Path, every_s: float | None = None) -> None:
        self.file = folder / FILE
        self._every, self._last = EVERY_S if every_s is None else every_s, time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._last >= self._every

    def write(self, done: Done, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the previous checkpoint.

        Raises:
            StretchError: If the disk is full or the folder cannot be written.
        """
        write_tensors(self.file, tensors, {"state": msgspec.json.encode(done).decode()})
        self._last = time.monotonic()

    def read(self, identity: Mapping[str, str]) -> tuple[Done, dict[str, torch.Tensor]] | None:
        """Read the last checkpoint, or None.

        Args:
            identity: Fingerprints of the refinement that is to go on.

        Raises:
            StretchError: If it is damaged, or of another refinement.
        """
        if not self.file.exists():
            return None
        with self.believed(), safe_open(self.file, framework="pt") as file:
            done = msgspec.json.decode((file.metadata() or {})["state"], type=Done)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
        if done.version != VERSION:
            raise StretchError(f"{self.file} has version {done.version}, this nn-stretch goes on from {VERSION}", self._anew)
        for what, expected in identity.items():
            if done.identity.get(what) != expected:
                raise StretchError(f"{self.file} is of a refinement with other {what}", f"go on with the {what} of before, or {self._anew}")
        return done, tensors

    @contextlib.contextmanager
    def believed(self) -> Iterator[None]:
        """Attribute errors in this block to the checkpoint's file.

        Raises:
            StretchError: If it is not what it should be.
        """
        try:
            yield
        # errors of torch, safetensors and msgspec for tensors and text that do not fit
        except (OSError, SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise StretchError(f"{self.file} is no whole checkpoint: {(str(error).splitlines() or [''])[0]}", self._anew) from error

    def remove(self) -> None:
        """Remove it, and its folder if empty."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
            self.file.parent.rmdir()

    @property
    def _anew(self) -> str:
        return f"remove {self.file} to begin anew"


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
