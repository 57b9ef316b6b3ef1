"""Tuned parameters on disk, one file a device and driver."""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

SCHEMA = 1

#: Larger files are not ours.
MAX_BYTES = 64 << 20
MAX_ENTRIES = 200_000

_Text = Annotated[str, msgspec.Meta(max_length=500)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was found for one kernel and shape.

    Args:
        kind: ``schedule``: template parameters, ``workgroup``: a local size.
        kernel: Name of the kernel.
        source: Hash of the kernel's source, so that another version of it is tuned anew.
        shape: What it computes, in words.
        parameters: What to compile or launch it with.
        ms: Its time with them.
        default_ms: Its time without tuning.
    """

    kind: Literal["schedule", "workgroup"]
    kernel: _Text
    source: _Text
    shape: _Text
    parameters: Annotated[dict[_Text, _Number], msgspec.Meta(max_length=32)]
    ms: float
    default_ms: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is found by."""
        return self.kind, self.kernel, self.source, self.shape


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    device: str
    driver: str
    entries: Annotated[list[Entry], msgspec.Meta(max_length=MAX_ENTRIES)]


def tuning_folder() -> Path:
    """``$XDG_CACHE_HOME/nn-stretch/tuning``, below ``~/.cache`` by default."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nn-stretch" / "tuning"


class TuningCache:
    """The tuned parameters of one device.

    What cannot be read, or was made on another device or driver, is ignored
    with a warning: tuning again mends it.

    Args:
        device: Name of the device, with whatever else times depend on.
        driver: Its driver with the version.
        folder: Where the files are; `tuning_folder` if None.
    """

    def __init__(self, device: str, driver: str, folder: Path | None = None) -> None:
        self._device = device
        self._driver = driver
        name = hashlib.sha256(f"{device}\0{driver}".encode()).hexdigest()[:24]
        self.path = (folder or tuning_folder()) / f"{name}.json"
        self._entries = {entry.key: entry for entry in self._read()}

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def get(self, kind: Literal["schedule", "workgroup"], kernel: str, source: str, shape: str) -> Entry | None:
        """What was found for a kernel and shape, or None."""
        return self._entries.get((kind, kernel, source, shape))

    def entries(self, kind: Literal["schedule", "workgroup"]) -> list[Entry]:
        """All entries of one kind."""
        return [entry for entry in self._entries.values() if entry.kind == kind]

    def save(self, found: Iterable[Entry]) -> None:
        """Add entries, replacing those of the same key, and write the file whole or not at all.

        What another process has written in the meantime stays. Where the folder
        cannot be written, a warning is given and nothing is kept on disk.
        """
        new = {entry.key: entry for entry in found}
        self._entries = {entry.key: entry for entry in self._read()} | self._entries | new
        content = _File(SCHEMA, self._device, self._driver, sorted(self._entries.values(), key=lambda entry: entry.key))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(msgspec.json.format(msgspec.json.encode(content), indent=1))
                os.replace(partial, self.path)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
        except OSError as error:
            warnings.warn(f"the tuning cache {self.path} cannot be written: {error.strerror}", stacklevel=2)

    def _read(self) -> list[Entry]:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise msgspec.ValidationError("it is too large")
            content = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            warnings.warn(f"the tuning cache {self.path} is ignored, it cannot be read: {error}", stacklevel=3)
            return []
        if content.schema != SCHEMA:
            warnings.warn(f"the tuning cache {self.path} is ignored, it has schema {content.schema} and not {SCHEMA}", stacklevel=3)
            return []
        if (content.device, content.driver) != (self._device, self._driver):
            warnings.warn(f"the tuning cache {self.path} is ignored, it was made on {content.device} ({content.driver})", stacklevel=3)
            return []
        return content.entries
