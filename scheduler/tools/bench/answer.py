"""The answer of `stretch compare --measure`, whose fields are the keys of its JSON, and the check of one that was written down."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from predictors.errors import StretchError
from predictors.files import read_bytes
from scheduler.measure.turns import MOST_STARTS, Known, known, paired
from scheduler.progress import Progress, silent
from scheduler.tools.bench.rounds import Conditions
from scheduler.tools.bench.subject import hash_again

_Text = Annotated[str, msgspec.Meta(max_length=5000)]
_Sha = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Real = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
#: A day is the longest inference that is believed.
_Ns = Annotated[int, msgspec.Meta(gt=0, le=86_400_000_000_000)]
_Rounds = Annotated[list[_Ns], msgspec.Meta(min_length=1, max_length=100_000)]


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """What was timed."""

    name: _Text  # By which contenders call it.
    path: _Text  # As it was named.
    kind: Literal["onnx", "tflite", "bundle"]  # ``onnx``, ``tflite`` or ``bundle``.
    sha256: _Sha  # Of its bytes, with weights that lie beside it; of a bundle its manifest's, which has the hashes of its files.
    bytes: _Count  # Of all that.
    macs: _Count | None  # Multiply-accumulates of an inference; null where they cannot be counted.
    inputs: Annotated[dict[_Text, _Text], msgspec.Meta(max_length=64)]  # Type and shape of each input, by name.
    input_sha256: _Sha  # Of the numbers that it was given, as `scheduler.tools.bench.subject.hash_of` has it.


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the times of a contender come to; all of it can be computed again from them."""

    median_ms: _Real  # Of all rounds.
    p90_ms: _Real  # Their 90th percentile.
    low_ms: _Real | None  # Lower end of the median's 95 % interval; null where there are too few rounds for one.
    high_ms: _Real | None  # Upper end.
    repeat_low_ms: _Real | None  # Where the median of another such measurement is expected in 95 % of all cases.
    repeat_high_ms: _Real | None  # Upper end of that.
    ratio: _Real  # Time over the first contender's, median of the rounds: above 1 it is slower.
    ratio_low: _Real | None  # Lower end of the 95 % interval of that.
    ratio_high: _Real | None  # Upper end.


class BenchContender(msgspec.Struct, frozen=True, kw_only=True):
    """One file on one runtime."""

    name: _Text  # Unique among the contenders.
    file: _Text  # Name of what it runs.
    runtime: _Text  # What runs it.
    runtime_version: _Text  # Its version.
    threads: Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]  # That it may use.
    steady: bool  # Whether its times held in every start when the rounds began.
    summary: Summary  # What its times come to.
    macs_ratio: _Real | None  # Its multiply-accumulates over the first contender's; null where either is unknown.
    #: Largest difference of its outputs from those of `compared_with`, relative to the largest element; null where there is nothing to
    #: compare with, or the two differ in shape or hold what is no number.
    max_error: Annotated[float, msgspec.Meta(ge=0, le=1e300)] | None
    compared_with: _Text | None  # What computes the same file: the first runtime of it, or of a bundle its own whole model.
    ns: Annotated[list[_Rounds], msgspec.Meta(min_length=1, max_length=MOST_STARTS)]  # Nanoseconds of each round, by starts.


class BenchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement."""

    source: Literal["measured"] = "measured"  # How the numbers came about.
    verdict: _Text  # Who is fastest, in one sentence.
    date: _Text  # When it began, in UTC.
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # How long it took.
    seed: _Count  # Of the inputs and of the order in each round.
    starts: Annotated[int, msgspec.Meta(ge=1, le=MOST_STARTS)]  # How often all contenders were made anew.
    rounds: Annotated[int, msgspec.Meta(ge=1, le=100_000)]  # Rounds of each start.
    warmup: Annotated[list[_Count], msgspec.Meta(min_length=1, max_length=MOST_STARTS)]  # Rounds of each start before those.
    files: Annotated[list[BenchFile], msgspec.Meta(min_length=1, max_length=256)]  # What was timed.
    #: Files on runtimes; ratios are over the first.
    contenders: Annotated[list[BenchContender], msgspec.Meta(min_length=1, max_length=1024)]
    conditions: Conditions  # What the machine was like.
    versions: Annotated[dict[_Text, _Text], msgspec.Meta(max_length=256)]  # Of packages that matter.
    warnings: Annotated[list[_Text], msgspec.Meta(max_length=4096)]  # What must be known before the numbers.


def summarise(ns: Sequence[Sequence[int]], first: Sequence[Sequence[int]]) -> Summary:
    """What the times of a contender come to."""
    times = known([[n / 1e6 for n in start] for start in ns])
    ratio = known(paired(ns, first))
    p90_ms = float(np.percentile(np.concatenate([np.asarray(start, float) for start in ns]), 90)) / 1e6
    values = (times.value, p90_ms, times.low, times.high, times.repeat_low, times.repeat_high, ratio.value, ratio.low, ratio.high)
    fields: dict[str, Any] = dict(zip(Summary.__struct_fields__, values, strict=True))
    return Summary(**fields)


def verdict(contenders: Sequence[BenchContender]) -> str:
    """Who is fastest, if the intervals say it."""
    best = min(contenders, key=lambda contender: contender.summary.median_ms)
    said = f"{best.name} takes {best.summary.median_ms:.3g} ms"
    if len(contenders) == 1:
        return f"{said}; nothing was compared with it"
    against: list[tuple[BenchContender, Known]] = [
        (contender, known(paired(contender.ns, best.ns))) for contender in contenders if contender is not best
    ]
    even = [rival.name for rival, ratio in against if ratio.side <= 0]
    if even:
        return f"no clear winner: {said}, but the rounds cannot tell it from {', '.join(even)}"
    second, ratio = min(against, key=lambda pair: pair[1].value)
    return f"{said}, the least: {second.name}, the next, takes {ratio.value:.2f} times as long ({ratio.low:.2f} to {ratio.high:.2f})"


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
    """Compute a measurement's summaries again, and compare the hashes of its files."""
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
