"""Files of published designs: a row a design, and what was measured of it."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from experiments.networks import MODELS
from experiments.published_designs.tables import ORIGINALS, StageTable
from predictors.errors import StretchError, UnknownNameError
from predictors.joins import JoinKind

#: Columns that are about the design as a whole.
OWN = ("design", "model", "device", "join", "host", "network rewrites", "ms", "macs", "source")
#: Columns of each processor, behind its name.
EACH = ("depths", "widths", "strides", "group widths", "multipliers", "rewrites", "ms")
#: What a list of numbers is written like: `3 4 6 3`, `3, 4, 6, 3` or `[3, 4, 6, 3]`.
NUMBER = re.compile(r"\d+(?:\.\d+)?")
LIST = re.compile(r"\[?\s*(?:\d+(?:\.\d+)?\s*[,;]?\s*)*\]?")
#: Names of the paper beside those that load the networks here.
NAMES = {words.lower(): model for model, words in MODELS.items()} | {model.lower(): model for model in ORIGINALS}


@dataclass(frozen=True)
class PublishedDesign:
    """A row of a file."""

    name: str  # Unique in its file.
    model: str  # Name that loads the network.
    device: str  # Id of the phone's profile.
    branches: dict[str, StageTable]  # A table for each processor; empty for the network as it is.
    join: JoinKind | None  # How branches meet; None for the release's way.
    #: Processor of the stem, the head and stages that no branch has; None for the first of the branches that is a CPU, or the first.
    host: str | None
    changes: tuple[str, ...]  # Rewrites of the whole network, such as ``squeeze_excite=none``.
    rewrites: dict[str, tuple[str, ...]]  # Rewrites of branches, by processor.
    ms: float | None  # Measured latency; None where none is published.
    alone: dict[str, float]  # Measured latency of the network as it is on single processors, by processor.
    macs: float | None  # Published multiply-accumulates, 10⁹; None where none are.
    source: str  # Where all of this is from.

    @property
    def processors(self) -> tuple[str, ...]:
        """Processors of its branches."""
        return tuple(self.branches)


def read_designs(path: Path) -> list[PublishedDesign]:
    """The designs of a file.

    Args:
        path: A table with the columns of `OWN`, of which ``design`` and ``model`` must be there, and
            those of `EACH` behind the names of processors, as ``gpu depths``.

    Raises:
        StretchError: If it cannot be read, or a row makes no sense; names the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            processors = _processors(path, columns)
            designs = [_design(f"line {reader.line_num} of {path}", row, processors) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StretchError(f"cannot read the designs of {path}: {error}") from error
    names = [design.name for design in designs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not designs:
        raise StretchError(
            f"{path} has the design `{twice}` twice" if twice is not None else f"{path} has no design", "give each row its own `design`"
        )
    return designs


def _processors(path: Path, columns: list[str]) -> list[str]:
    """Processors that the columns name.

    Raises:
        StretchError: If a column is none that is known, or one that must be there is not.
    """
    processors: dict[str, None] = {}
    for column in columns:
        if column in OWN:
            continue
        # `group widths` ends like `widths`: the longest name that fits
        what = max((item for item in EACH if column.endswith(f" {item}")), key=len, default="")
        if not what:
            raise StretchError(
                f"{path} has the unknown column `{column}`", f"columns are {', '.join(OWN)}, and `PROCESSOR {' | '.join(EACH)}`"
            )
        processors[column.removesuffix(f" {what}")] = None
    missing = {"design", "model"} - set(columns)
    if missing:
        raise StretchError(f"{path} has no column `{min(missing)}`", f"columns are {', '.join(OWN)}, and `PROCESSOR {' | '.join(EACH)}`")
    return list(processors)


def _design(where: str, row: dict[str, str | None], processors: list[str]) -> PublishedDesign:
    cells = {column: (text or "").strip() for column, text in row.items() if isinstance(column, str)}
    if len(row) != len(cells) or None in row.values():
        raise StretchError(f"{where} has more or fewer cells than the file has columns", "put cells with commas in quotes")
    model = NAMES.get(cells["model"].lower())
    if model is None:
        raise UnknownNameError.among(f"model in {where}:", cells["model"], [*MODELS.values(), *ORIGINALS])
    branches, rewrites, alone = {}, {}, {}
    for processor in processors:
        design = {item: cells.get(f"{processor} {item}", "") for item in EACH}
        if design["depths"] or design["widths"]:
            try:
                branches[processor] = StageTable(
                    *(tuple(map(int, _numbers(where, design[item]))) for item in EACH[:4]), _numbers(where, design["multipliers"])
                )
            except StretchError as error:
                raise StretchError(f"{where}, `{processor}`: {error.message}", error.hint) from error
        usual = ORIGINALS[model].rewrites.get(processor.partition("[")[0], ())
        rewrites[processor] = _words(design["rewrites"], usual)
        if design["ms"]:
            alone[processor] = _number(where, design["ms"])
    return PublishedDesign(
        cells["design"] or where,
        model,
        cells.get("device") or "mi9",
        branches,
        cells.get("join") or None,
        cells.get("host") or None,
        _words(cells.get("network rewrites", ""), ORIGINALS[model].changes),
        rewrites,
        _number(where, cells["ms"]) if cells.get("ms") else None,
        alone,
        _number(where, cells["macs"]) if cells.get("macs") else None,
        cells.get("source", ""),
    )


def _words(text: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Words of a cell; what is usual where it is empty, nothing for ``none``."""
    return () if text == "none" else tuple(text.split()) or usual


def _numbers(where: str, text: str) -> tuple[float, ...]:
    """A list of numbers.

    Raises:
        StretchError: If it is none.
    """
    if not LIST.fullmatch(text):
        raise StretchError(f"{where} has `{text}` where numbers should be", "write a number for each stage, as `3 4 6 3`")
    return tuple(map(float, NUMBER.findall(text)))


def _number(where: str, text: str) -> float:
    """A number above zero.

    Raises:
        StretchError: If it is none.
    """
    if not NUMBER.fullmatch(text) or float(text) <= 0:
        raise StretchError(f"{where} has `{text}` where a number above zero should be")
    return float(text)
