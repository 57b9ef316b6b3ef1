"""Tuning: the choice of the fastest candidate despite noise, and tuned parameters on disk, in one file per device and driver."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from predictors.errors import StretchError
from predictors.files import cache_folder, write_whole

T = TypeVar("T")

#: Number of interleaved measurements of each candidate, of which the minimum counts.
REPEATS = 3
#: Multiple of the best time above which a candidate is not measured again.
DROP_RATIO = 1.5
#: Share of the default's time below which a candidate must be, so that noise does not replace the default.
BETTER = 0.97


def quickest(
    candidates: Sequence[T],
    measure: Callable[[T | None], float | None],
    out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[T | None, float, float]:
    """Measure candidates against the default in turns, and return the fastest; never one that is slower than the default.

    Paper 002 times each candidate once and takes the first of the fastest. On a
    shared machine, two single times of one candidate can differ by half; this is
    why candidates take turns and need a margin.

    Args:
        measure: Returns the ms of a candidate, or of the default for None; returns None if the device refuses the candidate.

    Returns:
        The fastest candidate, None if none is faster than the default; its shortest time, or the default's; and the default's, ms.
    """
    trials = [partial(measure, candidate) for candidate in (None, *candidates)]
    times = race(trials, REPEATS, DROP_RATIO, out_of_time=out_of_time)
    if 0 not in times:
        raise StretchError("the kernel does not run with its default work-group")
    default = times.pop(0)
    best = min(times, key=lambda i: (times[i], i), default=None)
    if best is None or times[best] > BETTER * default:
        return None, default, default
    return candidates[best - 1], times[best], default


def race(
    trials: Sequence[Callable[[], float | None]],
    rounds: int,
    drop_ratio: float,
    trial_rounds: int = 1,
    out_of_time: Callable[[], bool] = lambda: False,
) -> dict[int, float]:
    """Return the shortest time of each candidate, measured in turns, so that a disturbance affects all of them.

    Args:
        trials: Each returns its time in ms, or None if the device refuses it. The first is the one that
            the others would replace: it is measured in every round; if it is refused, no candidate is measured.
    """
    times: dict[int, float] = {}
    for turn in range(rounds):
        best = float("inf")
        for i, measure in enumerate(trials):
            if i and out_of_time():
                break
            if i and turn >= trial_rounds and times.get(i, float("inf")) > drop_ratio * best:
                continue
            ms = measure()
            if ms is not None:
                times[i] = min(ms, times.get(i, ms))
            if i == 0:
                if 0 not in times:
                    return {}
                best = min(times.values())
    return times


SCHEMA = 1

#: Maximum size of a file, bytes.
MAX_BYTES = 64 << 20
MAX_ENTRIES = 200_000

_Text = Annotated[str, msgspec.Meta(max_length=500)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of tuning one kernel for one shape."""

    kind: Literal["schedule", "workgroup"]  # ``schedule``: template parameters, ``workgroup``: a local size.
    kernel: _Text  # Name of the kernel.
    source: _Text  # Hash of the kernel's source, so that a changed kernel is tuned again.
    shape: _Text  # Shapes of the kernel, in words.
    parameters: Annotated[dict[_Text, _Number], msgspec.Meta(max_length=32)]  # Parameters for compiling or launching the kernel.
    ms: float  # Time of the kernel with the parameters.
    default_ms: float  # Time of the kernel without tuning.

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Key of the entry."""
        return self.kind, self.kernel, self.source, self.shape


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    device: str
    driver: str
    entries: Annotated[list[Entry], msgspec.Meta(max_length=MAX_ENTRIES)]


class _Schema(msgspec.Struct):
    """Fields of a file of any version."""

    schema: int


def tuning_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/nn-stretch/tuning``, by default in ``~/.cache``."""
    return cache_folder("tuning")


class TuningCache:
    """The tuned parameters of one device.

    Unreadable files, and files of another device or driver, are ignored
    with a warning: tuning rewrites the file.

    Args:
        folder: Folder of the files; `tuning_folder` if None.
    """

    def __init__(self, device: str, driver: str, folder: Path | None = None) -> None:
        self._device = device
        self._driver = driver
        name = hashlib.sha256(f"{device}\0{driver}".encode()).hexdigest()[:24]
        self.path = (folder or tuning_folder()) / f"{name}.json"
        self._entries = {entry.key: entry for entry in self._read()}

    def entries(self, kind: Literal["schedule", "workgroup"]) -> list[Entry]:
        """Return all entries of one kind."""
        return [entry for entry in self._entries.values() if entry.kind == kind]

    def save(self, entries: Iterable[Entry]) -> None:
        """Add entries, replacing entries with the same key, and write the file in one step.

        Entries that another process has written since are kept. If the folder
        cannot be written, a warning is issued and nothing is stored on disk.
        """
        new = {entry.key: entry for entry in entries}
        self._entries = {entry.key: entry for entry in self._read()} | self._entries | new
        try:
            write_entries(self.path, self._device, self._driver, self._entries.values())
        except (OSError, StretchError) as error:
            warnings.warn(f"the tuning cache {self.path} cannot be written: {error}", stacklevel=2)

    def _read(self) -> list[Entry]:
        return read_entries(self.path, self._device, self._driver)


def read_entries(path: Path, device: str, driver: str) -> list[Entry]:
    """Return a file's entries; empty if it is missing, or, with a warning, if it is damaged or for another schema, device or driver."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise msgspec.ValidationError("it is too large")
        content = path.read_bytes()
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA:
            raise msgspec.ValidationError(f"it has schema {schema} and not {SCHEMA}")
        parsed = msgspec.json.decode(content, type=_File)
        if (parsed.device, parsed.driver) != (device, driver):
            raise msgspec.ValidationError(f"it was made on {parsed.device} ({parsed.driver})")
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        warnings.warn(f"the tuning cache {path} is ignored because it cannot be used: {error}", stacklevel=4)
        return []
    return parsed.entries


def write_entries(path: Path, device: str, driver: str, entries: Iterable[Entry]) -> None:
    """Write a file of entries in one step."""
    content = _File(SCHEMA, device, driver, sorted(entries, key=lambda entry: entry.key))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=1), "tuning cache")


#: Driver in shipped files, which apply to every driver of their kind of device.
ANY_DRIVER = "any"

FOLDER = Path(__file__).with_name("tables")


def shipped_path(kind: str) -> Path:
    """Return the path of the shipped file for a kind of device, whether or not it exists."""
    return FOLDER / f"{kind.replace(' ', '-')}.json"


def shipped_entries(kind: str) -> list[Entry]:
    """Return the shipped tuning for a kind of device; empty for most."""
    return read_entries(shipped_path(kind), kind, ANY_DRIVER)
