"""The table that LiteRT's `benchmark_model` writes with ``--enable_op_profiling=true --profiling_output_csv_file=FILE``."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from predictors.errors import StretchError
from predictors.files import read_bytes

MAX_BYTES = 1 << 24

#: Heading of the block that lists operators in order of execution; other blocks sort or sum the same times.
ORDER = "Run Order"

#: Headings of the operators of measured runs, and of operators inside a delegate's operator, which are listed twice.
_REGULAR, _INSIDE = "Operator-wise Profiling Info for Regular Benchmark Runs", "Delegate internal"

_HEADER = ("node type", "avg_ms", "times called", "name")

_HINT = "benchmark_model writes it with --enable_op_profiling=true --profiling_output_csv_file=FILE"


@dataclass(frozen=True)
class ProfiledOperator:
    """An operator in a profile."""

    kind: str  # Type such as ``CONV_2D``, or a delegate's type.
    ms: float  # Mean time per run.
    name: str  # Tensor that it writes, with its number.


def read_op_profile(path: Path) -> list[ProfiledOperator]:
    """Return the operators of one network in order of execution, without those of the preparation."""
    content = read_bytes(path, "table of operators", MAX_BYTES, _HINT)
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise StretchError(f"{path} is not text", _HINT) from error
    blocks = _blocks(lines)
    if not blocks:
        raise StretchError(f"{path} has no block `{ORDER}` of operators", _HINT)
    operators = [operator for block in blocks for operator in _operators(path, lines, block)]
    if not operators:
        raise StretchError(f"{path} lists no operator under `{ORDER}`", _HINT)
    return operators


def network_ms(operators: list[ProfiledOperator]) -> float:
    """Return the time of the network, the sum of its operators."""
    return sum(operator.ms for operator in operators)


def _blocks(lines: list[str]) -> list[int]:
    """Return the first line numbers of the blocks of executed subgraphs.

    Preparation, such as allocating tensors, has its own blocks before them.
    """
    regular = next((number for number, line in enumerate(lines) if line.startswith(_REGULAR)), None)
    starts, in_delegate = [], False
    for number, line in enumerate(lines):
        if regular is not None and number <= regular:
            continue
        if line.rstrip().endswith(":"):
            in_delegate = line.startswith(_INSIDE)
        if line.startswith("=") and ORDER in line and not in_delegate:
            starts.append(number + 1)
    # Without a heading, the last block is the executed one.
    return starts if regular is not None else starts[-1:]


def _operators(path: Path, lines: list[str], start: int) -> list[ProfiledOperator]:
    header = [name.strip() for name in lines[start].split(",")] if start < len(lines) else []
    missing = [name for name in _HEADER if name not in header]
    if missing:
        raise StretchError(f"{path}, line {start + 1}: the column `{missing[0]}` is missing", _HINT)
    columns = {name: header.index(name) for name in _HEADER}
    operators: list[ProfiledOperator] = []
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        if not line.strip() or line.startswith("="):
            break
        # A delegate's kernels have commas in their type, which is the first column; in names the tool writes tabs for commas.
        values = [value.strip() for value in line.rsplit(",", len(header) - 1)]
        if len(values) != len(header):
            raise StretchError(f"{path}, line {number}: it has {len(values)} fields, the header {len(header)}", _HINT)
        ms = _number(path, number, "avg_ms", values[columns["avg_ms"]])
        call_count = _number(path, number, "times called", values[columns["times called"]])
        operators.append(ProfiledOperator(values[columns["node type"]], ms * max(call_count, 1.0), values[columns["name"]]))
    return operators


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise StretchError(f"{path}, line {line}: `{name}` is `{text}`, not a number", _HINT) from error
    if not isfinite(value) or value < 0:
        raise StretchError(f"{path}, line {line}: `{name}` is {text}, which no measurement gives", _HINT)
    return value
