"""Benchmark of model files on several runtimes: rounds of contenders in several starts, what the machine was like meanwhile, outputs compared, and a record that others can check.

The fields of the structs are the keys of the JSON of `stretch compare --measure`.
"""

import contextlib
import datetime
import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from predictors import system
from predictors.errors import StretchError, UsageError
from predictors.files import read_bytes
from predictors.structs import filled
from scheduler.cores import available_cores, pinned
from scheduler.delegates.base import Array
from scheduler.measure.steady import MOST_STARTS, Known, Steady, known, paired, play_round
from scheduler.progress import Progress, silent
from scheduler.runtime.sequential import TOLERANCES, relative
from scheduler.tools.bench import BenchRequest, MeasurementLength
from scheduler.tools.bench.subject import (
    RUNTIMES,
    UNNAMED,
    InputShapes,
    Ready,
    Subject,
    expected_of,
    hash_again,
    hash_of,
    open_subject,
    prepare,
    runtimes_for,
    used_cores,
    version_of,
)

#: Rounds of a warm-up window, and the largest relative difference between the medians of two windows.
WINDOW, DRIFT = 5, 0.05

#: Fewest starts if `MeasurementLength.width` ends the measurement.
LEAST_STARTS = 3


@dataclass
class RawTimes:
    """Raw results."""

    ns: dict[str, list[list[int]]]  # Times of each contender by start and round.
    warmup: list[int] = field(default_factory=list)  # Number of warm-up rounds of each start.
    steady: set[str] = field(default_factory=set)  # Contenders whose times were stable after the warm-up of every start.
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)  # Outputs of each contender in the first start.


def play(
    makers: Mapping[str, Callable[[], Ready]], effort: MeasurementLength, seed: int, step: Callable[[], None] | None = None
) -> RawTimes:
    """Time contenders in interleaved rounds.

    A round runs all contenders once in random order, so that disturbances and cache contents affect all of them alike.
    """
    rng = np.random.default_rng(seed)
    measured = RawTimes({name: [] for name in makers}, steady=set(makers))
    while not _enough(measured, effort):
        with contextlib.ExitStack() as stack:
            ready: dict[str, Ready] = {}
            for name, make in makers.items():
                ready[name] = make()
                stack.callback(ready[name].close)
            _one_start(ready, measured, effort, rng, step)
    return measured


def _one_start(
    ready: Mapping[str, Ready], measured: RawTimes, effort: MeasurementLength, rng: np.random.Generator, step: Callable[[], None] | None
) -> None:
    calls = {name: contender.time for name, contender in ready.items()}

    def rounds(count: int, times: dict[str, list[int]], after: Callable[[], None] | None = None) -> None:
        for _ in range(count):
            order = rng.permutation(len(calls))
            names = list(calls)
            for name, ns in play_round({names[i]: calls[names[i]] for i in order}, 0).items():
                # a coarse clock may return 0, which has no ratio
                times[name].append(max(1, ns))
            if after is not None:
                after()

    before: dict[str, list[int]] = {name: [] for name in calls}
    done = 0
    while done < effort.warmup and not all(holds(times) for times in before.values()):
        count = min(WINDOW, effort.warmup - done)
        rounds(count, before)
        done += count
    measured.steady -= {name for name, times in before.items() if not holds(times)}
    measured.warmup.append(done)
    counted: dict[str, list[int]] = {name: [] for name in calls}
    rounds(effort.rounds, counted, step)
    for name, times in counted.items():
        measured.ns[name].append(times)
    if not measured.outputs:
        measured.outputs = {name: contender.outputs() for name, contender in ready.items()}


def holds(times: Sequence[int]) -> bool:
    """Whether times are stable: the last two windows agree, and the last one has little spread."""
    if len(times) < 2 * WINDOW:
        return False
    before, last = float(np.median(times[-2 * WINDOW : -WINDOW])), Steady.of(times[-WINDOW:])
    return not last.unsteady and abs(last.ms / before - 1) <= DRIFT


def _enough(measured: RawTimes, effort: MeasurementLength) -> bool:
    done = len(measured.warmup)
    if done >= effort.starts or effort.width is None or done < min(LEAST_STARTS, effort.starts):
        return done >= effort.starts
    return all(known(starts).width <= effort.width for starts in measured.ns.values())


#: A machine with more busy processes a core than this before a measurement is not quiet.
BUSY = 0.3

#: Share of stolen CPU time (other guests on the host) above which there is a warning.
STOLEN = 0.01

#: Rise of temperature, °C, above which there is a warning.
WARMER = 10.0

_Words = Annotated[str, msgspec.Meta(max_length=300)]
_Core = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """A machine before and after a measurement; None, or nothing, for what it does not tell."""

    processor: _Words  # Its name.
    system: _Words  # Operating system and architecture.
    cores: list[_Core]  # That were used.
    process_cores: list[_Core]  # That this process may use.
    governors: dict[_Words, _Words]  # What sets the frequency of each core that was used, by its number.
    mhz_before: dict[_Words, float]  # Frequency of each.
    mhz_after: dict[_Words, float]  # The same afterwards.
    celsius_before: dict[_Words, float]  # Temperature of each thermal zone, by its type.
    celsius_after: dict[_Words, float]  # The same afterwards.
    load_before: float | None  # Mean number of busy processes in the minute before.
    load_after: float | None  # In the last minute.
    stolen: float | None  # Share of the cores' time that the host gave to others.
    busy: float | None  # Utilisation of the cores by all processes.

    @property
    def warnings(self) -> list[str]:
        """What of it makes times doubtful, one sentence each."""
        messages = []
        if self.load_before is not None and self.load_before > BUSY * len(self.process_cores):
            messages.append(
                f"{self.load_before:.1f} processes were busy in the minute before: on a machine that works for others times vary"
            )
        slow = sorted({name for name in self.governors.values() if name != "performance"})
        if slow:
            messages.append(f"the cores' frequency is set by `{', '.join(slow)}`, not `performance`: it depends on what ran before")
        if self.stolen is not None and self.stolen > STOLEN:
            messages.append(f"the host gave {self.stolen:.1%} of the cores' time to others")
        hotter = max((after - self.celsius_before.get(zone, after) for zone, after in self.celsius_after.items()), default=0.0)
        if hotter > WARMER:
            messages.append(f"the machine warmed up by {hotter:.0f} °C: later rounds may be slower")
        return messages


@dataclass(frozen=True)
class MachineReading:
    """A machine at one moment, as `Conditions` has it; `ticks` are its cores' in all, idle and stolen."""

    mhz: dict[str, float]
    celsius: dict[str, float]
    load: float | None
    ticks: tuple[int, int, int] | None


def look(cores: Sequence[int], root: Path = Path("/")) -> MachineReading:
    """The machine as it is now (`root`: where ``sys`` and ``proc`` are)."""
    mhz = {}
    for core in cores:
        with suppress(OSError, ValueError):
            mhz[str(core)] = int(_frequency(root, core, "scaling_cur_freq")) / 1000
    celsius: dict[str, float] = {}
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        with suppress(OSError, ValueError):
            name, degrees = (zone / "type").read_text().strip()[:100], int((zone / "temp").read_text()) / 1000
            # several zones of one type: the hottest says when a chip throttles
            celsius[name] = max(degrees, celsius.get(name, degrees))
    load = system.load_average()
    return MachineReading(mhz, celsius, None if load is None else round(load, 2), _ticks(cores, root))


def governors(cores: Sequence[int], root: Path = Path("/")) -> dict[str, str]:
    """What sets the frequency of each core, by its number; empty where the system does not tell."""
    by_core = {}
    for core in cores:
        with suppress(OSError):
            by_core[str(core)] = _frequency(root, core, "scaling_governor")[:100]
    return by_core


def conditions(
    before: MachineReading, after: MachineReading, *, processor: str, system: str, cores: Sequence[int], process_cores: Sequence[int]
) -> Conditions:
    """What two looks at a machine say together."""
    stolen = busy = None
    if before.ticks is not None and after.ticks is not None:
        passed, idle, lost = (then - now for now, then in zip(before.ticks, after.ticks, strict=True))
        if passed > 0:
            stolen, busy = round(max(0, lost) / passed, 4), round(max(0, passed - idle - lost) / passed, 4)
    return Conditions(
        processor=processor[:300],
        system=system[:300],
        cores=list(cores),
        process_cores=list(process_cores),
        governors=governors(cores),
        mhz_before=before.mhz,
        mhz_after=after.mhz,
        celsius_before=before.celsius,
        celsius_after=after.celsius,
        load_before=before.load,
        load_after=after.load,
        stolen=stolen,
        busy=busy,
    )


def _frequency(root: Path, core: int, name: str) -> str:
    return (root / f"sys/devices/system/cpu/cpu{core}/cpufreq/{name}").read_text().strip()


def _ticks(cores: Sequence[int], root: Path) -> tuple[int, int, int] | None:
    """Ticks of the cores in all, idle and stolen (proc(5): user nice system idle iowait irq softirq steal)."""
    wanted = {f"cpu{core}" for core in cores}
    sums, available = [0, 0, 0], False
    try:
        for line in (root / "proc/stat").read_text().splitlines():
            name, *words = line.split()
            if name in wanted and len(words) >= 8:
                ticks = [int(word) for word in words[:8]]
                sums = [sums[0] + sum(ticks), sums[1] + ticks[3] + ticks[4], sums[2] + ticks[7]]
                available = True
    except (OSError, ValueError):
        return None
    return (sums[0], sums[1], sums[2]) if available else None


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
        elif error > TOLERANCES["fp32"]:
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
