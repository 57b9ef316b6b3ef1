"""Tuning: the choice of the fastest candidate despite noise, and tuned parameters on disk, in a file for each device and driver."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from predictors.errors import StretchError
from predictors.files import cache_folder, write_whole

T = TypeVar("T")

#: Number of interleaved measurements of each candidate; the minimum counts.
REPEATS = 3
#: Factor on the best time above which a candidate is not measured again.
DROP_RATIO = 1.5
#: Share of the default's time that a candidate must stay below, so that noise replaces no choice.
BETTER = 0.97


@dataclass(frozen=True)
class Quickest(Generic[T]):
    """The quickest candidate."""

    best: T | None  # Which; None if the default is not beaten.
    best_ms: float  # Its least time, or the default's.
    default_ms: float  # The default's least time.


def quickest(
    candidates: Sequence[T],
    measure: Callable[[T | None], float | None],
    out_of_time: Callable[[], bool] = lambda: False,
) -> Quickest[T]:
    """Measure candidates against the default in turns and take the quickest; never one that is slower than the default.

    Paper 002 times each candidate once and takes the first of the quickest. On
    a machine that others share, two single times of one and the same candidate
    differ by half; hence the turns, and the margin.

    Args:
        measure: Milliseconds of a candidate, of the default if given None; None if the device refuses the candidate.
    """
    trials = [partial(measure, candidate) for candidate in (None, *candidates)]
    times = race(trials, REPEATS, DROP_RATIO, out_of_time=out_of_time)
    if 0 not in times:
        raise StretchError("the kernel does not run with its default work-group")
    default = times.pop(0)
    best = min(times, key=lambda i: (times[i], i), default=None)
    if best is None or times[best] > BETTER * default:
        return Quickest(None, default, default)
    return Quickest(candidates[best - 1], times[best], default)


def race(
    trials: Sequence[Callable[[], float | None]],
    rounds: int,
    drop_ratio: float,
    trial_rounds: int = 1,
    out_of_time: Callable[[], bool] = lambda: False,
) -> dict[int, float]:
    """Return the least time of each candidate, measured alternately, so that a disturbance affects them all.

    Args:
        trials: Each gives its time in milliseconds, None if the device refuses it. The first is what the
            others would replace: it is measured in every round; if it is refused, no candidate is measured.
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
    source: _Text  # Hash of the kernel's source, so that another version of it is tuned again.
    shape: _Text  # Its shapes, in words.
    parameters: Annotated[dict[_Text, _Number], msgspec.Meta(max_length=32)]  # Parameters for compiling or launching it.
    ms: float  # Its time with them.
    default_ms: float  # Its time without tuning.

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return the key of the entry."""
        return self.kind, self.kernel, self.source, self.shape


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    device: str
    driver: str
    entries: Annotated[list[Entry], msgspec.Meta(max_length=MAX_ENTRIES)]


class _Schema(msgspec.Struct):
    """Fields that a file of any version has."""

    schema: int


def tuning_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/nn-stretch/tuning``, below ``~/.cache`` by default."""
    return cache_folder("tuning")


class TuningCache:
    """The tuned parameters of one device.

    Unreadable files, and those of another device or driver, are ignored
    with a warning: tuning again rewrites it.

    Args:
        folder: Where the files are; `tuning_folder` if None.
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
        """Add entries, replacing those of the same key, and write the file whole or not at all.

        Entries that another process has written since stay. Where the folder
        cannot be written, a warning is given and nothing is kept on disk.
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
    """Return the entries of a file; none where it is missing, and none with a warning where it is damaged, too new or of another device or driver."""
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
    """Write a file of entries whole or not at all."""
    content = _File(SCHEMA, device, driver, sorted(entries, key=lambda entry: entry.key))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=1), "tuning cache")


#: Driver in shipped files, which are for every driver of the kind of device.
ANY_DRIVER = "any"

FOLDER = Path(__file__).with_name("tables")


def shipped_path(kind: str) -> Path:
    """Return the file of a kind of device, whether there is one or not."""
    return FOLDER / f"{kind.replace(' ', '-')}.json"


def shipped_entries(kind: str) -> list[Entry]:
    """Return the shipped tuning for a kind of device; empty for most."""
    return read_entries(shipped_path(kind), kind, ANY_DRIVER)
