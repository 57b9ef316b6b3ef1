"""Verification of a benchmark record: recomputes its summaries and compares the hashes of its files."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from predictors.errors import StretchError
from predictors.files import read_bytes
from scheduler.measure.bench.answer import BenchAnswer, BenchContender, Summary, summarise, verdict
from scheduler.measure.bench.files import hash_again
from scheduler.progress import Progress, silent

#: A measurement is not larger than this, bytes.
_LARGEST = 256 << 20

#: Relative difference that other processors' arithmetic may make.
_SAME = 1e-9

_HINT = "give a file with what `stretch compare --measure` prints with --json"


class CheckedBench(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a measurement says what its times say."""

    file: str  # The measurement.
    ok: bool  # Whether nothing is wrong.
    problems: list[str]  # What is wrong, one sentence each.
    contenders: int  # How many were computed again.
    rounds: int  # How many times of theirs.


def read_bench(path: Path) -> BenchAnswer:
    """A measurement from a file that is not trusted."""
    data = read_bytes(path, "measurement", _LARGEST, _HINT)
    try:
        return msgspec.json.decode(data, type=BenchAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"{path} is no measurement: {(str(error).splitlines() or ['it cannot be read'])[0]}", _HINT) from error


def check_bench(path: Path, progress: Progress = silent) -> CheckedBench:
    """Compute a measurement's summaries again, and compare the hashes of its files.

    Args:
        path: What `stretch compare --measure` printed as JSON.
    """
    answer = read_bench(path)
    problems = [*_shape(answer)]
    if not problems:
        problems += [problem for contender in answer.contenders for problem in _summary(contender, answer)]
        if not problems and answer.verdict != verdict(answer.contenders):
            problems.append(f"its verdict is not what its times say: {verdict(answer.contenders)}")
        problems += _files(answer, progress)
    return CheckedBench(
        file=str(path),
        ok=not problems,
        problems=problems,
        contenders=len(answer.contenders),
        rounds=sum(len(times) for contender in answer.contenders for times in contender.ns),
    )


def _shape(answer: BenchAnswer) -> Iterator[str]:
    """What does not hold together, so that nothing can be computed."""
    if len({row.name for row in answer.contenders}) < len(answer.contenders):
        yield "two contenders have one name"
    if len({entry.name for entry in answer.files}) < len(answer.files):
        yield "two files have one name"
    for contender in answer.contenders:
        if [len(rounds) for rounds in contender.ns] != [answer.rounds] * answer.starts:
            yield f"{contender.name} has not {answer.rounds} rounds in each of {answer.starts} starts"
        if contender.file not in {file.name for file in answer.files}:
            yield f"{contender.name} runs {contender.file}, which is none of the files"


def _summary(contender: BenchContender, answer: BenchAnswer) -> Iterator[str]:
    again = summarise(contender.ns, answer.contenders[0].ns)
    for name in Summary.__struct_fields__:
        stated, recomputed = getattr(contender.summary, name), getattr(again, name)
        if not _alike(stated, recomputed):
            yield f"{name} of {contender.name} is stated as {_text(stated)}; its times give {_text(recomputed)}"
    macs = {file.name: file.macs for file in answer.files}
    first, own_macs = macs[answer.contenders[0].file], macs[contender.file]
    ratio = own_macs / first if own_macs and first else None
    if not _alike(contender.macs_ratio, ratio):
        yield f"macs_ratio of {contender.name} is stated as {_text(contender.macs_ratio)}; the files' give {_text(ratio)}"


def _files(answer: BenchAnswer, progress: Progress) -> Iterator[str]:
    for file in answer.files:
        progress(file.name)
        try:
            digest = hash_again(file.kind, Path(file.path))
        except StretchError as error:
            yield f"{file.name} cannot be compared: {error.message}"
            continue
        if digest != file.sha256:
            yield f"{file.name} is another file here: its SHA-256 is {digest[:16]}…, {file.sha256[:16]}… was timed"


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_SAME)


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
