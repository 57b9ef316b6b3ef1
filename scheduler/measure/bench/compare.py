"""The whole measurement: files on their runtimes, timed in turns, their outputs compared, the machine noted."""

import datetime
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from predictors.errors import StretchError, UsageError
from scheduler.cores import available_cores, pinned
from scheduler.delegates.base import Array
from scheduler.measure.bench.answer import BenchAnswer, BenchContender, BenchFile, summarise, verdict
from scheduler.measure.bench.conditions import conditions, look
from scheduler.measure.bench.files import open_subject
from scheduler.measure.bench.rounds import Effort, Measured, play
from scheduler.measure.bench.runtimes import RUNTIMES, Ready, expected_of, prepare, runtimes_for, used_cores, version_of
from scheduler.measure.bench.subject import UNNAMED, Asked, Subject, hash_of
from scheduler.runtime.distance import TOLERANCE
from scheduler.runtime.sequential import relative

#: Files of one measurement.
MAX_FILES = 64


@dataclass(frozen=True)
class Request:
    """What is to be timed."""

    what: Sequence[str]  # Files and folders, as they were named.
    runtimes: Sequence[str] = ()  # Of `RUNTIMES`; empty for each that is installed.
    cores: int | None = None  # How many cores everything may use; None for all of this process.
    inputs: Asked = field(default_factory=dict)  # Shapes of inputs, by name or under `UNNAMED`.
    effort: Effort = field(default_factory=Effort)  # How long.
    seed: int = 0  # Of inputs and orders.
    processor: str = "unknown"  # Name of the processor, for the record.
    system: str = "unknown"  # Operating system and architecture.
    versions: Mapping[str, str] = field(default_factory=dict)  # Of packages that matter.


@dataclass(frozen=True)
class _Contender:
    name: str
    file: str
    subject: Subject
    runtime: str


def compare(request: Request, warn: Callable[[str], None], step: Callable[[], None] | None = None) -> BenchAnswer:
    """Time files in turns.

    Args:
        warn: Called with each sentence that must be known before the numbers.
        step: Called after each round.

    Raises:
        UsageError: If something of the request makes no sense, or an input's size is open.
        StretchError: If a file cannot be read or run.
        MissingBackendError: If a library is missing.
    """
    warnings: list[str] = []

    def tell(sentence: str) -> None:
        warnings.append(sentence)
        warn(sentence)

    cores = _cores(request.cores)
    names = _names(request.what)
    began, start = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"), perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
        stack.enter_context(pinned(cores))
        subjects = {name: open_subject(word, request.inputs, request.seed, folder) for name, word in zip(names, request.what, strict=True)}
        _all_asked(request.inputs, subjects)
        contenders = _contenders(subjects, request.runtimes, cores, tell)
        makers: dict[str, Callable[[], Ready]] = {
            each.name: functools.partial(prepare, each.subject, each.runtime, cores) for each in contenders
        }
        before = look(cores)
        measured = play(makers, request.effort, request.seed, step)
        after = look(cores)
        errors = _errors(contenders, measured, cores, tell)
    here = conditions(before, after, processor=request.processor, system=request.system, cores=cores, process_cores=available_cores())
    for each in (
        *here.warnings,
        *(f"the times of {each.name} never held still" for each in contenders if each.name not in measured.steady),
    ):
        tell(each)
    rows = [_row(each, contenders[0], measured, errors[each.name], len(used_cores(each.runtime, cores))) for each in contenders]
    return BenchAnswer(
        verdict=verdict(rows),
        date=began,
        seconds=round(perf_counter() - start, 3),
        seed=request.seed,
        starts=len(measured.warmup),
        rounds=request.effort.rounds,
        warmup=measured.warmup,
        files=[_file(name, subject) for name, subject in subjects.items()],
        contenders=rows,
        conditions=here,
        versions=dict(request.versions),
        warnings=warnings,
    )


def _cores(asked: int | None) -> tuple[int, ...]:
    there = available_cores()
    if asked is not None and not 1 <= asked <= len(there):
        raise UsageError(f"{asked} cores were asked for, this process may use {len(there)}", f"ask for 1 to {len(there)}")
    return there[:asked]


def _names(what: Sequence[str]) -> list[str]:
    """A name for each file: its own; where two are alike their paths; one that is there again is numbered."""
    if not 0 < len(what) <= MAX_FILES:
        raise UsageError(f"{len(what)} files were named; 1 to {MAX_FILES} can be timed", "name an .onnx file, a .tflite file or a bundle")
    short = [Path(word).name or word for word in what]
    paths = [Path(word) for word in what]
    clear = [
        one if len({p for p, other in zip(paths, short, strict=True) if other == one}) == 1 else str(p)
        for one, p in zip(short, paths, strict=True)
    ]
    found: list[str] = []
    for i, name in enumerate(clear):
        again = clear[:i].count(name) + 1
        found.append(name if again == 1 else f"{name} ({again})")
    return found


def _all_asked(asked: Asked, subjects: Mapping[str, Subject]) -> None:
    known = {name for subject in subjects.values() for name in subject.inputs}
    strange = sorted(set(asked) - known - {UNNAMED})
    if strange:
        raise UsageError(f"no file has an input `{strange[0]}`", f"inputs: {', '.join(sorted(known))[:500]}")
    files = [subject for subject in subjects.values() if subject.kind != "bundle"]
    if asked and not files:
        raise UsageError("a bundle's input has one size, --input gives another", "leave it out")
    if UNNAMED in asked and not any(tuple(asked[UNNAMED]) in {x.shape for x in subject.inputs.values()} for subject in files):
        raise UsageError("--input has a size for no input: each file has several", "write NAME=1x3x224x224")


def _contenders(
    subjects: Mapping[str, Subject], asked: Sequence[str], cores: tuple[int, ...], tell: Callable[[str], None]
) -> list[_Contender]:
    """Files on runtimes that can run them; one that was not asked for by name is left out where it cannot."""
    found = []
    for name, subject in subjects.items():
        runtimes = runtimes_for(subject.kind, asked)
        if not runtimes:
            fitting = [runtime for runtime, (kind, _, _) in RUNTIMES.items() if kind == subject.kind]
            why = f"none of {', '.join(asked)} runs" if asked else "nothing that is installed runs"
            raise StretchError(f"{why} {subject.path}", f"runtimes of such files: {', '.join(fitting)}")
        able, reasons = [], []
        for runtime in runtimes:
            try:
                prepare(subject, runtime, cores).close()
            except StretchError as error:
                if asked or len(runtimes) == 1:
                    raise
                reasons.append(error)
                tell(f"{name} is not timed on {runtime}: {error.message}")
                continue
            able.append(_Contender(f"{name}, {runtime}", name, subject, runtime))
        if not able:
            raise reasons[0]
        found += able
    for runtime in asked:
        if not any(each.runtime == runtime for each in found):
            raise UsageError(f"none of the files runs on {runtime}", f"it takes .{RUNTIMES[runtime][0]} files")
    return found


def _errors(
    contenders: Sequence[_Contender], measured: Measured, cores: tuple[int, ...], tell: Callable[[str], None]
) -> dict[str, tuple[float | None, str | None]]:
    """How far each contender's outputs are from those of another that computes the same, and who that is."""
    firsts: dict[str, _Contender] = {}
    found: dict[str, tuple[float | None, str | None]] = {}
    for each in contenders:
        got = measured.outputs[each.name]
        if each.subject.kind == "bundle":
            against, expected = "its own whole model on ONNX Runtime", expected_of(each.subject, cores)
        elif (first := firsts.setdefault(each.subject.sha256, each)) is each:
            found[each.name] = (None, None)
            if not all(np.isfinite(np.asarray(array, float)).all() for array in got.values()):
                tell(f"{each.name} gives NaN or infinity for normal numbers")
            continue
        else:
            against, expected = first.name, measured.outputs[first.name]
        error = largest_error(got, expected)
        if error is None:
            tell(f"the outputs of {each.name} and of {against} cannot be compared: another shape, or no numbers")
        elif error > TOLERANCE["fp32"]:
            tell(
                f"the outputs of {each.name} differ from those of {against} by {error:.1e}: it may be faster because it computes something else"
            )
        found[each.name] = (error, against)
    return found


def largest_error(got: Mapping[str, Array], expected: Mapping[str, Array]) -> float | None:
    """Largest difference, relative to the largest element of its tensor; None where it is no number, or shapes differ."""
    if got.keys() != expected.keys() or any(got[name].shape != array.shape for name, array in expected.items()):
        return None
    with np.errstate(all="ignore"):
        errors = [relative(np.asarray(got[name], float), np.asarray(array, float)) for name, array in expected.items() if array.size]
    worst = max(errors, default=0.0)
    return worst if all(map(math.isfinite, errors)) else None


def _file(name: str, subject: Subject) -> BenchFile:
    return BenchFile(
        name=name,
        path=subject.path,
        kind=subject.kind,
        sha256=subject.sha256,
        bytes=subject.bytes,
        macs=subject.macs,
        inputs={each: f"{array.dtype.name} {'x'.join(map(str, array.shape))}" for each, array in subject.inputs.items()},
        input_sha256=hash_of(subject.inputs),
    )


def _row(each: _Contender, first: _Contender, measured: Measured, error: tuple[float | None, str | None], threads: int) -> BenchContender:
    own, other = each.subject.macs, first.subject.macs
    return BenchContender(
        name=each.name,
        file=each.file,
        runtime=each.runtime,
        runtime_version=version_of(each.runtime),
        threads=threads,
        steady=each.name in measured.steady,
        summary=summarise(measured.ns[each.name], measured.ns[first.name]),
        macs_ratio=own / other if own and other else None,
        max_error=error[0],
        compared_with=error[1],
        ns=measured.ns[each.name],
    )
