"""Benchmark of model files on several runtimes: interleaved timing, comparison of outputs, and conditions of the machine."""

import datetime
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from predictors.errors import StretchError, UsageError
from predictors.structs import filled
from scheduler.cores import available_cores, pinned
from scheduler.delegates.base import Array
from scheduler.runtime.distance import TOLERANCE
from scheduler.runtime.sequential import relative
from scheduler.tools.bench import BenchRequest
from scheduler.tools.bench.answer import BenchAnswer, BenchContender, BenchFile, summarise, verdict
from scheduler.tools.bench.rounds import RawTimes, conditions, look, play
from scheduler.tools.bench.runtimes import RUNTIMES, Ready, expected_of, prepare, runtimes_for, used_cores, version_of
from scheduler.tools.bench.subject import UNNAMED, InputShapes, Subject, hash_of, open_subject

#: Files of one measurement.
MAX_FILES = 64


@dataclass(frozen=True)
class _Contender:
    name: str
    file: str
    subject: Subject
    runtime: str


def compare(request: BenchRequest, step: Callable[[], None] | None = None) -> BenchAnswer:
    """Time files in interleaved rounds."""
    warnings: list[str] = []
    cores, there = available_cores()[: request.cores], len(available_cores())
    if request.cores is not None and not 1 <= request.cores <= there:
        raise UsageError(f"{request.cores} cores are requested, this process may use {there}", f"give 1 to {there}")
    names = _names(request.what)
    began, start = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"), perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
        stack.enter_context(pinned(cores))
        subjects = {name: open_subject(word, request.inputs, request.seed, folder) for name, word in zip(names, request.what, strict=True)}
        _check_input_names(request.inputs, subjects)
        contenders = _contenders(subjects, request.runtimes, cores, warnings.append)
        makers: dict[str, Callable[[], Ready]] = {
            contender.name: functools.partial(prepare, contender.subject, contender.runtime, cores) for contender in contenders
        }
        before = look(cores)
        measured = play(makers, request.effort, request.seed, step)
        after = look(cores)
        errors = _errors(contenders, measured, cores, warnings.append)
    here = conditions(before, after, processor=request.processor, system=request.system, cores=cores, process_cores=available_cores())
    warnings += here.warnings
    warnings += [f"the times of {contender.name} never became stable" for contender in contenders if contender.name not in measured.steady]
    rows = [
        _row(contender, contenders[0], measured, errors[contender.name], len(used_cores(contender.runtime, cores)))
        for contender in contenders
    ]
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


def _names(what: Sequence[str]) -> list[str]:
    """Unique names: file names, paths where file names are equal, numbers where paths are equal."""
    if not 0 < len(what) <= MAX_FILES:
        raise UsageError(f"{len(what)} files are given; 1 to {MAX_FILES} can be timed", "give an .onnx file, a .tflite file or a bundle")
    short = [Path(word).name or word for word in what]
    paths = [Path(word) for word in what]
    clear = [
        one if len({p for p, other in zip(paths, short, strict=True) if other == one}) == 1 else str(p)
        for one, p in zip(short, paths, strict=True)
    ]
    names: list[str] = []
    for i, name in enumerate(clear):
        again = clear[:i].count(name) + 1
        names.append(name if again == 1 else f"{name} ({again})")
    return names


def _check_input_names(shapes: InputShapes, subjects: Mapping[str, Subject]) -> None:
    known = {name for subject in subjects.values() for name in subject.inputs}
    strange = sorted(set(shapes) - known - {UNNAMED})
    if strange:
        raise UsageError(f"no file has an input `{strange[0]}`", f"inputs: {', '.join(sorted(known))[:500]}")
    files = [subject for subject in subjects.values() if subject.kind != "bundle"]
    if shapes and not files:
        raise UsageError("--input does not apply to bundles, whose inputs have fixed sizes", "leave it out")
    if UNNAMED in shapes and not any(tuple(shapes[UNNAMED]) in {x.shape for x in subject.inputs.values()} for subject in files):
        raise UsageError("--input names no input, and the files have several", "write NAME=1x3x224x224")


def _contenders(
    subjects: Mapping[str, Subject], names: Sequence[str], cores: tuple[int, ...], tell: Callable[[str], None]
) -> list[_Contender]:
    """Pairs of files and runtimes; a runtime that fails is an error only if it was requested by name."""
    contenders = []
    for name, subject in subjects.items():
        runtimes = runtimes_for(subject.kind, names)
        if not runtimes:
            fitting = [runtime for runtime, (kind, _, _) in RUNTIMES.items() if kind == subject.kind]
            why = f"none of {', '.join(names)} runs" if names else "no installed runtime runs"
            raise StretchError(f"{why} {subject.path}", f"runtimes of such files: {', '.join(fitting)}")
        able, reasons = [], []
        for runtime in runtimes:
            try:
                prepare(subject, runtime, cores).close()
            except StretchError as error:
                if names or len(runtimes) == 1:
                    raise
                reasons.append(error)
                tell(f"{name} is not timed on {runtime}: {error.message}")
                continue
            able.append(_Contender(f"{name}, {runtime}", name, subject, runtime))
        if not able:
            raise reasons[0]
        contenders += able
    for runtime in names:
        if not any(contender.runtime == runtime for contender in contenders):
            raise UsageError(f"none of the files runs on {runtime}", f"it takes .{RUNTIMES[runtime][0]} files")
    return contenders


def _errors(
    contenders: Sequence[_Contender], measured: RawTimes, cores: tuple[int, ...], tell: Callable[[str], None]
) -> dict[str, tuple[float | None, str | None]]:
    """Largest error of each contender's outputs, with the name of the reference that it is compared with."""
    firsts: dict[str, _Contender] = {}
    errors: dict[str, tuple[float | None, str | None]] = {}
    for contender in contenders:
        got = measured.outputs[contender.name]
        if contender.subject.kind == "bundle":
            against, expected = "its own whole model on ONNX Runtime", expected_of(contender.subject, cores)
        elif (first := firsts.setdefault(contender.subject.sha256, contender)) is contender:
            errors[contender.name] = (None, None)
            if not all(np.isfinite(np.asarray(array, float)).all() for array in got.values()):
                tell(f"{contender.name} outputs NaN or infinity for normally distributed inputs")
            continue
        else:
            against, expected = first.name, measured.outputs[first.name]
        error = largest_error(got, expected)
        if error is None:
            tell(f"the outputs of {contender.name} and of {against} cannot be compared: shapes differ, or values are not finite")
        elif error > TOLERANCE["fp32"]:
            tell(
                f"the outputs of {contender.name} differ from those of {against} by {error:.1e}: it may be faster because it computes a different function"
            )
        errors[contender.name] = (error, against)
    return errors


def largest_error(got: Mapping[str, Array], expected: Mapping[str, Array]) -> float | None:
    """Largest difference, relative to the largest element of its tensor; None if it is not finite or shapes differ."""
    if got.keys() != expected.keys() or any(got[name].shape != array.shape for name, array in expected.items()):
        return None
    with np.errstate(all="ignore"):
        errors = [relative(np.asarray(got[name], float), np.asarray(array, float)) for name, array in expected.items() if array.size]
    worst = max(errors, default=0.0)
    return worst if all(map(math.isfinite, errors)) else None


def _file(name: str, subject: Subject) -> BenchFile:
    return filled(
        BenchFile,
        subject,
        name=name,
        inputs={input_name: f"{array.dtype.name} {'x'.join(map(str, array.shape))}" for input_name, array in subject.inputs.items()},
        input_sha256=hash_of(subject.inputs),
    )


def _row(
    contender: _Contender, first: _Contender, measured: RawTimes, error: tuple[float | None, str | None], threads: int
) -> BenchContender:
    macs, other = contender.subject.macs, first.subject.macs
    return filled(
        BenchContender,
        contender,
        runtime_version=version_of(contender.runtime),
        threads=threads,
        steady=contender.name in measured.steady,
        summary=summarise(measured.ns[contender.name], measured.ns[first.name]),
        macs_ratio=macs / other if macs and other else None,
        max_error=error[0],
        compared_with=error[1],
        ns=measured.ns[contender.name],
    )
