"""Measure a bundle on a phone: every signature on every processor, then all branches at the same time."""

import contextlib
import hashlib
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.devices import DeviceProfile, load_device
from predictors.errors import MissingBackendError, StretchError, UsageError
from predictors.files import read_bytes, write_whole
from predictors.fusion import Kernel, fuse
from predictors.graph import OpGraph
from predictors.measurements.litert import ProfiledOperator, read_op_profile
from predictors.measurements.tables import KernelLatency, Latency
from scheduler.bundle.load import Bundle
from scheduler.bundle.tflite_file import MAX_BYTES, bundle_tflite, parse_tflite
from scheduler.formats.npy import read_npy
from scheduler.runtime.record import replay
from scheduler.runtime.sequential import Sequential, max_error
from stretch.export.tflite import read_source
from stretch.profile.writing import MeasurementTable, external_source
from stretch.tools.phone import PhoneRequest


class SignatureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A signature on a processor of the phone."""

    signature: str  # Name of the signature.
    processor: str  # Processor with its core set, as in the profile.
    precision: str  # Precision in which the processor computed.
    ms: float | None  # Mean time of a run in ms; None if the signature did not run there as a whole.
    std_ms: float | None  # Standard deviation in ms; None if unknown.
    kernels: int  # Number of its kernels with a measured time.
    reason: str | None  # Reason for a missing time; None if there is a time.


class RunnerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the C++ runner on the phone, with its branches running in parallel."""

    median_ms: float  # Median time of an inference in ms.
    runs: int  # Number of inferences.
    max_error: float  # Maximum difference of its outputs from the whole fp32 model's on this machine, relative to the largest output.
    on_cpu: list[str]  # Steps with operators that stayed on the CPU although an accelerator was to run them.
    trace: str | None  # File of the timeline; None if not requested.


class PhoneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements on a phone."""

    serial: str  # Serial number of the phone.
    phone: str  # Name of the phone, as in the measurements.
    system: str  # Operating system of the phone.
    model: str  # Name of the bundle's model.
    device: str  # Profile for which the bundle was planned.
    profile: str  # Profile that the times are recorded for.
    measurements: str | None  # Folder of the times; None without times.
    signatures: list[SignatureRow]  # Each signature on each processor.
    runner: RunnerRow | None  # None if it did not run.
    source: str = "measured"  # Origin of the figures.
    tested: bool = False  # Whether these measurements were ever tried on a real phone.
    warnings: list[str]  # Warnings for the user.


#: Folder in which Android lets the shell's user run programs.
ROOT = "/data/local/tmp"

#: Timeout in seconds for queries; copies and runs of programs have the caller's timeout.
ASKING_S = 30.0

_SERIAL = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:-]*")

#: Message of `adb` itself, before its exit code, for a device that is no longer connected.
_GONE = re.compile(r"^(?:adb: )?error: (?:device '.*' not found|no devices/emulators found|device offline|closed|protocol fault.*)", re.M)

_STATES = {
    "unauthorized": ("does not trust this computer yet", "unlock it and accept the question about USB debugging"),
    "offline": ("is offline", "plug it in again, then look at `adb devices`"),
    "no permissions": ("may not be opened by this user", "see the udev rules that Android's developer pages describe"),
    "recovery": ("is in recovery mode", "start it as usual"),
    "bootloader": ("is in its bootloader", "start it as usual"),
}


#: Result of a call of `adb`: its exit code, or that of the command on the device, and its output.
CallResult = subprocess.CompletedProcess[str]


def reason_of(ended: CallResult) -> str:
    """Return the last meaningful line of output, without `adb`'s name before it."""
    for text in (ended.stderr, ended.stdout):
        if lines := [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("*")]:
            return re.sub(r"^(adb: )?(error: )?", "", lines[-1])
    return f"exit code {ended.returncode}"


@dataclass
class Phone:
    """A device that runs commands."""

    program: str  # Path of `adb`.
    serial: str  # Serial number of the device.
    limit: float  # Timeout of a command in seconds.
    #: Folder on the device, created and removed by `workspace`.
    folder: str = field(default_factory=lambda: f"{ROOT}/nn-stretch-{secrets.token_hex(6)}")

    def property(self, name: str) -> str:
        """Return a property of the device, such as ``ro.product.model``; empty if it is missing."""
        return self.shell(["getprop", name], limit=ASKING_S).strip()

    def push(self, path: Path, name: str, *, program: bool = False) -> str:
        """Copy a file into the device's folder, and return its path on the device."""
        if not path.is_file():
            raise StretchError(f"there is no file {path} to copy to the phone")
        target = f"{self.folder}/{name}"
        self._adb(["push", str(path.resolve()), target], f"copy {path} to the phone")
        if program:
            self.shell(["chmod", "755", target], limit=ASKING_S)
        return target

    def pull(self, name: str, path: Path) -> None:
        """Copy a file from the device's folder to this machine, completely or not at all."""
        partial = path.with_name(f".{path.name}.partial")
        try:
            self._adb(["pull", f"{self.folder}/{name}", str(partial.absolute())], f"copy {name} from the phone")
            try:
                partial.replace(path)
            except OSError as error:
                raise StretchError(f"adb says that it copied {name} from the phone, but it is not here: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)

    def shell(self, command: Sequence[str], *, limit: float | None = None) -> str:
        """Run a command on the device and return its output (`limit`: timeout in seconds; the phone's if None)."""
        return self._adb(["shell", shlex.join(command)], f"run {command[0]} on the phone", limit).stdout

    def attempt(self, command: Sequence[str], activity: str) -> CallResult:
        """Run a command that may fail on the device; `activity` names it in messages."""
        return self._adb(["shell", shlex.join(command)], activity, checked=False)

    def _adb(self, words: Sequence[str], activity: str, limit: float | None = None, *, checked: bool = True) -> CallResult:
        return call(self.program, ["-s", self.serial, *words], activity, limit or self.limit, checked=checked)

    def remove_folder(self) -> bool:
        """Remove the folder; return whether that was possible."""
        try:
            self.shell(["rm", "-rf", self.folder], limit=ASKING_S)
        except StretchError:
            return False
        return True


def find_phone(serial: str | None, limit: float) -> Phone:
    """Return the device with this serial number, or the only connected one."""
    if serial is not None and not _SERIAL.fullmatch(serial):
        raise UsageError(f"`{serial}` is no serial of a device", "`adb devices` lists them")
    program = shutil.which("adb")
    if program is None:
        raise MissingBackendError("there is no program `adb`, which phones are reached by", "install Android's platform tools")
    states = _devices(call(program, ["devices"], "list devices", ASKING_S).stdout)
    if not states:
        raise StretchError("adb sees no device", "plug a phone in, with USB debugging switched on")
    if serial is None and len(states) > 1:
        raise UsageError(f"adb sees {len(states)} devices: {', '.join(states)}", "choose one with --serial")
    chosen = serial or next(iter(states))
    if chosen not in states:
        raise StretchError(f"adb sees no device `{chosen}`", f"it sees {', '.join(states)}")
    state = states[chosen]
    if state != "device":
        problem, hint = next(
            (explanation for prefix, explanation in _STATES.items() if state.startswith(prefix)),
            (f"is in the state `{state}`", "look at `adb devices`"),
        )
        raise StretchError(f"the device `{chosen}` {problem}", hint)
    return Phone(program, chosen, limit)


@contextlib.contextmanager
def workspace(phone: Phone) -> Iterator[Phone]:
    """Create a temporary folder on the device, which is always removed at the end of the block."""
    phone.shell(["mkdir", phone.folder], limit=ASKING_S)
    try:
        yield phone
    except StretchError as error:
        if not phone.remove_folder():
            error.hint = f"{error.hint}; " if error.hint else ""
            error.hint += f"{phone.folder} may still be on the phone: remove it once it is there again"
        raise
    except BaseException:
        phone.remove_folder()
        raise
    if not phone.remove_folder():
        raise StretchError(f"cannot remove {phone.folder} from the phone", "remove it once the phone is there again")


def call(program: str, words: Sequence[str], activity: str, limit: float, *, checked: bool = True) -> CallResult:
    """Run `adb` (`limit`: timeout in seconds)."""
    try:
        ended = subprocess.run(
            [program, *words], timeout=limit, capture_output=True, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace", check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StretchError(
            f"cannot {activity}: adb did not end within {limit:g} s", "look at the phone, or allow more with --time-limit"
        ) from error
    except OSError as error:
        raise StretchError(f"cannot run {program}: {error.strerror}") from error
    if ended.returncode == 0:
        return ended
    if _GONE.search(ended.stderr):
        raise StretchError(f"cannot {activity}: the device is gone ({reason_of(ended)})", "plug it in again and repeat the command")
    if "No space left on device" in ended.stderr + ended.stdout:
        raise StretchError(f"cannot {activity}: there is no space left there", f"free some space below {ROOT}")
    if checked:
        raise StretchError(f"cannot {activity}: {reason_of(ended)}")
    return ended


def _devices(text: str) -> dict[str, str]:
    """Return the state by serial number from the output of `adb devices`."""
    states = {}
    for line in text.partition("List of devices attached")[2].splitlines():
        serial, _, state = line.partition("\t")
        if serial.strip() and state.strip():
            states[serial.strip()] = state.strip()
    return states


#: Names of the files on the phone.
GRAPH, PROGRAM, RUNNER, RESULTS, PROFILE = "model.tflite", "benchmark_model", "runner", "results", "profile.csv"

_MAX_TIMES = 1 << 24


class _Times(msgspec.Struct):
    """Fields of the runner's ``times.json``."""

    sha256: str
    median_ms: float
    runs: int
    on_cpu: list[str]


def run_side_by_side(
    bundle: Bundle, phone: Phone, runner: Path, libraries: Sequence[str], x: NDArray[Any], options: Sequence[str], trace: Path | None
) -> RunnerRow:
    """Run the runner in the phone's folder, which already has the TFLite file, and check its results."""
    program = phone.push(runner, RUNNER, program=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        np.save(scratch / "input.npy", np.ascontiguousarray(x, np.float32))
        input_path = phone.push(scratch / "input.npy", "input.npy")
        words = [program, f"{phone.folder}/{GRAPH}", "--input", input_path, "--out", f"{phone.folder}/{RESULTS}", *options]
        words += _accelerators(bundle, libraries, phone.folder)
        ended = phone.attempt(["env", f"LD_LIBRARY_PATH={phone.folder}", *words], "run the branches on the phone")
        if ended.returncode != 0:
            raise StretchError(f"the runner failed on the phone: {reason_of(ended)}")
        for name in ("times.json", "trace.json", "record.jsonl", "output_0.npy"):
            phone.pull(f"{RESULTS}/{name}", scratch / name)
        times = _times(bundle, scratch / "times.json")
        replay(scratch / "record.jsonl")
        output = read_npy(scratch / "output_0.npy", "output")
        expected = Sequential(bundle.file(bundle.manifest.whole)).run(x)
        assert not isinstance(expected, Mapping)
        if output.shape != expected.shape:
            raise StretchError(f"the runner's output has the shape {output.shape}, and the model's is {expected.shape}")
        if trace is not None:
            write_whole(trace, (scratch / "trace.json").read_bytes(), "trace", "choose another file with --trace")
        return RunnerRow(
            median_ms=times.median_ms,
            runs=times.runs,
            max_error=max_error(output, expected),
            on_cpu=times.on_cpu,
            trace=None if trace is None else str(trace),
        )


def _accelerators(bundle: Bundle, libraries: Sequence[str], folder: str) -> list[str]:
    """Return the arguments for the plan's processors that the libraries support; the CPU computes for all others."""
    of = {sub.processor for sub in bundle.manifest.subgraphs}
    gpu = any("Accelerator" in name for name in libraries)
    npu = any("Dispatch" in name for name in libraries)
    chosen = [f"{name}={'gpu' if name == 'gpu' else 'npu'}" for name in sorted(of - {"cpu"}) if (gpu if name == "gpu" else npu)]
    return [f"--accelerator={','.join(chosen)}", *([f"--dispatch-folder={folder}"] if npu else [])] if chosen else []


def _times(bundle: Bundle, path: Path) -> _Times:
    try:
        times = msgspec.json.decode(read_bytes(path, "times of the runner", _MAX_TIMES), type=_Times)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"the runner's times cannot be read: {error}", "build it again with `stretch export --as cpp`") from error
    if times.sha256 != bundle.manifest.files[str(bundle.manifest.tflite)].sha256:
        raise StretchError("the runner's times are of another file than this bundle's", "build it again with `stretch export --as cpp`")
    if not 0 < times.median_ms < 1e9 or times.runs < 1:
        raise StretchError(f"the runner reports {times.median_ms:g} ms for {times.runs} inferences, which no measurement gives")
    return times


# LiteRT's `benchmark_model`: its command line for one signature, and its output.
#
# Source: its README and `benchmark_tflite_model.cc` at https://github.com/google-ai-edge/LiteRT.

#: Hardware on which a signature can be measured.
Target = Literal["cpu", "gpu", "npu"]

_TIMES = re.compile(r"^.*\bcount=(\d+)\b.*\bavg=([-+.\deE]+)(?:\s+std=([-+.\deE]+))?.*$", re.M)
_MEAN = re.compile(r"Inference \(avg\):\s*([-+.\deE]+)")
_FULLY_DELEGATED = re.compile(r"the model graph will be completely executed by the delegate")
_PARTLY = re.compile(r"the model graph will be partially executed by the delegate w/ (\d+) delegate kernels")
_NOT_DELEGATED = re.compile(r"the model graph will not be executed by the delegate")

#: Maximum time of a run, μs.
_MAX_US = 1e10


@dataclass(frozen=True)
class AdbCall:
    """One run of `benchmark_model` on the phone."""

    program: str  # Path of `benchmark_model` on the phone.
    graph: str  # Path of the TFLite file on the phone.
    signature: str  # Name of the signature to run.
    target: Target  # Hardware to run on.
    threads: int  # Number of CPU threads.
    runs: int  # Number of measured runs, at least 1.
    warmup: int  # Number of warm-up runs.
    mask: int = 0  # Cores to run on, as a mask of `taskset`; 0 for any.
    libraries: str = ""  # Folder of LiteRT's libraries for an NPU, on the phone.

    def command(self, profile: str | None = None) -> list[str]:
        """Return the words of the command.

        Args:
            profile: File for the times of operators; None to measure without them, because recording takes time.
        """
        words = ["taskset", f"{self.mask:x}"] if self.mask else []
        words += [
            self.program,
            f"--graph={self.graph}",
            f"--signature_to_run_for={self.signature}",
            f"--num_threads={self.threads}",
            f"--num_runs={self.runs}",
            f"--warmup_runs={self.warmup}",
            # By default it warms up for half a second and measures for a second, whatever number of runs is requested.
            "--min_secs=0",
            "--warmup_min_secs=0",
        ]
        if self.target == "cpu":
            words.append("--use_xnnpack=true")
        elif self.target == "gpu":
            words.append("--use_gpu=true")
        else:
            words += ["--use_npu=true", f"--dispatch_library_path={self.libraries}", f"--compiler_plugin_library_path={self.libraries}"]
        if profile is not None:
            words += ["--enable_op_profiling=true", "--op_profiling_output_mode=csv", f"--op_profiling_output_file={profile}"]
        return words


@dataclass(frozen=True)
class BenchmarkOutput:
    """Parsed output of one `benchmark_model` call."""

    ms: float  # Mean time of a run in ms.
    std_ms: float | None  # Standard deviation in ms; None if not printed.
    elsewhere: str | None  # Why the time is not the target's; None if all operators ran there.


def parse_benchmark_output(text: str, target: Target) -> BenchmarkOutput:
    """Parse the times and the placement from `benchmark_model`'s output on stdout and stderr."""
    # The line of the warm-up precedes the line of the measured runs.
    counted = list(_TIMES.finditer(text))
    mean = _MEAN.search(text)
    try:
        us = float(mean[1]) if mean else float(counted[-1][2])
        std = float(counted[-1][3]) if counted and counted[-1][3] else None
    except (IndexError, ValueError) as error:
        last = (text.strip().splitlines() or ["it printed nothing"])[-1].strip()
        raise StretchError(f"benchmark_model reported no time: {last}") from error
    if not 0 < us < _MAX_US or (std is not None and not 0 <= std < _MAX_US):
        raise StretchError(f"benchmark_model reports {us:g} μs, which no measurement gives")
    return BenchmarkOutput(us / 1e3, None if std is None else std / 1e3, None if target == "cpu" else _reason_elsewhere(text))


def _reason_elsewhere(text: str) -> str | None:
    if _FULLY_DELEGATED.search(text):
        return None
    if partly := _PARTLY.search(text):
        return f"only parts of it ran there, in {partly[1]} pieces"
    return "no part of it ran there" if _NOT_DELEGATED.search(text) else "benchmark_model does not say that all of it ran there"


#: Precision in which a processor computes, by the precision of the file. Half-precision weights are widened on the CPU; a
#: GPU computes reals in half precision; int8 is for the CPU and for NPUs.
COMPUTES: dict[Target, dict[str, str]] = {
    "cpu": {"fp32": "fp32", "fp16": "fp32", "int8": "int8"},
    "gpu": {"fp32": "fp16", "fp16": "fp16"},
    "npu": {"int8": "int8"},
}

_CORES = re.compile(r"\d+")


@dataclass(frozen=True)
class PhoneProcessor:
    """A processor of the phone, named as in the profile to be fitted."""

    target: Target  # Target of `benchmark_model`.
    family: str  # Name in the profile.
    core_set: str  # Core set, such as ``3med``.
    threads: int = 1  # Number of CPU threads; 1 for other processors.

    @property
    def name(self) -> str:
        """Name in profiles."""
        return f"{self.family}[{self.core_set}]"


@dataclass(frozen=True)
class SignatureWork:
    """A signature on a processor."""

    signature: str  # Name of the signature.
    segment: str  # Name of its segment in the design.
    network: str  # Name of the signature in the measurements.
    precision: str  # Precision in which the processor computes.
    place: PhoneProcessor  # Processor that runs it.


def phone_processors(profile: DeviceProfile, core_set: str | None, npu: bool) -> list[PhoneProcessor]:
    """Return the processors of a profile to measure (`core_set`: core set of its CPU; the default one if None)."""
    measured_places: list[PhoneProcessor] = []
    for family, processor in profile.processors.items():
        target: Target = "cpu" if family == "cpu" else "gpu" if family == "gpu" else "npu"
        chosen = processor.default_core_set
        if target == "cpu" and core_set is not None:
            if core_set not in processor.core_sets:
                raise UsageError(f"the cpu of `{profile.id}` has no core set `{core_set}`", f"it has {', '.join(processor.core_sets)}")
            chosen = core_set
        threads = sum(map(int, _CORES.findall(chosen))) or 1 if target == "cpu" else 1
        if target != "npu" or npu:
            measured_places.append(PhoneProcessor(target, family, chosen, threads))
    return measured_places


def signature_tasks(bundle: Bundle, processors: Sequence[PhoneProcessor]) -> list[SignatureWork]:
    """Return every signature of a subgraph on every processor that supports its precision.

    Joins are left out, because the profile has their time as that of a link.
    """
    model = bundle.manifest.model.name
    signature_works = [
        SignatureWork(sub.name, sub.segment, f"{model}:{sub.name}", COMPUTES[place.target][sub.precision], place)
        for sub in bundle.manifest.subgraphs
        for place in processors
        if sub.precision in COMPUTES[place.target]
    ]
    if not signature_works:
        raise StretchError(f"{bundle.path} has no subgraph that can be measured on {', '.join(place.name for place in processors)}")
    return signature_works


def graph_of(bundle: Bundle, work: SignatureWork) -> OpGraph:
    """Return the operator graph of a signature, as in the measurements."""
    file = next(sub.file for sub in bundle.manifest.subgraphs if sub.name == work.signature)
    return replace(read_source(bundle.file(file)).graph, name=work.network)


def mask_of(cores: str | None) -> int:
    """Return the mask of cores such as ``0,4-6``; 0 for none."""
    mask = 0
    for part in (cores or "").split(",") if cores is not None else ():
        first, dash, last = part.strip().partition("-")
        numbers = (first, last if dash else first)
        if not all(number.isdecimal() and number.isascii() and int(number) < 64 for number in numbers) or int(numbers[0]) > int(numbers[1]):
            raise UsageError(f"`{cores}` names no cores", "write them as 4-6 or 0,7")
        for core in range(int(numbers[0]), int(numbers[1]) + 1):
            mask |= 1 << core
    return mask


# Matching of an operator profile's lines to kernels: by the tensor's name, or by order if a delegate prints no names.
#
# A delegate names its kernels itself, such as ``Convolution (NHWC, F32)
# IGEMM`` (XNNPACK) or ``convolution_2d 3 -> add 5`` (GPU), in the order of the
# file's operators. Lines and kernels are paired only if both have the same
# sequence of kinds, so that no kernel gets the time of another one.

#: Names of the tensors that an operator of the runtime itself writes, and its number.
_KERNEL_NAME = re.compile(r"\[(.*)\]:\d+")

#: Parts of the names of kernels that multiply, in this order, because a depthwise convolution may also be called a convolution.
_KERNEL_KINDS = (
    ("depthwise", re.compile(r"depthwise|dwconv", re.I)),
    ("linear", re.compile(r"fully.?connected", re.I)),
    ("conv", re.compile(r"conv(olution)?(_2d| |\()|conv2d", re.I)),
)

#: Kinds of kernels that multiply, and their kinds in `_KERNEL_KINDS`.
_KINDS = {"conv": "conv", "conv1x1": "conv", "grouped": "conv", "depthwise": "depthwise", "linear": "linear"}


def pair(operators: Sequence[ProfiledOperator], kernels: Sequence[Kernel], order: Sequence[str]) -> list[tuple[Kernel, float]]:
    """Return the kernels with their times in ms; ambiguous ones are left out."""
    if all(_KERNEL_NAME.fullmatch(operator.name) for operator in operators):
        return _by_name(operators, kernels)
    place = {name: number for number, name in enumerate(order)}
    ordered = sorted(kernels, key=lambda kernel: min((place[name] for name in kernel.ops if name in place), default=len(place)))
    multiplying = [kernel for kernel in ordered if kernel.cost.kind in _KINDS]
    kinds = ((next((kind for kind, words in _KERNEL_KINDS if words.search(operator.kind)), None), operator) for operator in operators)
    lines = [(kind, operator) for kind, operator in kinds if kind is not None]
    # a convolution of one pixel is a matrix product, so that it may have either kind
    interchangeable = {"conv", "linear"}
    same = len(multiplying) == len(lines) and all(
        (expected := _KINDS[kernel.cost.kind]) == kind or (kernel.cost.pixels == 1 and {expected, kind} == interchangeable)
        for kernel, (kind, _) in zip(multiplying, lines, strict=True)
    )
    return [(kernel, line.ms) for kernel, (_, line) in zip(multiplying, lines, strict=True)] if same else []


def _by_name(operators: Sequence[ProfiledOperator], kernels: Sequence[Kernel]) -> list[tuple[Kernel, float]]:
    owner = {name: number for number, kernel in enumerate(kernels) for name in kernel.ops}
    times: dict[int, float] = {}
    for operator in operators:
        match = _KERNEL_NAME.fullmatch(operator.name)
        # An operator that first pads or transposes a tensor has this tensor's name.
        name = match[1].partition(".")[0] if match and match[1] not in owner else match[1] if match else ""
        if name in owner:
            times[owner[name]] = times.get(owner[name], 0.0) + operator.ms
    return [(kernels[number], ms) for number, ms in sorted(times.items()) if ms > 0]


@dataclass(frozen=True)
class PhoneTable:
    """Measurements to which those of a phone are added."""

    table: MeasurementTable  # Measurements of the folder.
    device: str  # Name of the phone in them.
    runtime: str  # Name of the measuring program.

    def where(self, work: SignatureWork) -> tuple[str, str, str, str, str, str]:
        """Return the key of a signature on a processor of this phone."""
        return self.device, work.network, work.place.family, work.place.core_set, work.precision, self.runtime

    def add(self, bundle: Bundle, work: SignatureWork, spoken: BenchmarkOutput, kernels: list[tuple[Kernel, float]]) -> None:
        """Add a signature, and write the table to disk."""
        graph, key = graph_of(bundle, work), self.where(work)
        stored = self.table.graphs.get(graph.name)
        if stored is not None and stored.to_json() != graph.to_json():
            raise StretchError(
                f"{self.table.folder} has another network called `{graph.name}`", "choose another folder with --measurements"
            )
        rows = [KernelLatency(*key, kernel.name, "", **kernel.cost._asdict(), ms=ms) for kernel, ms in kernels]
        # when a fit is judged, a signature is left out together with the other branches of its segment
        family = f"{bundle.manifest.model.name}:{work.segment}"
        self.table.add(graph, family, Latency(*key, spoken.ms, spoken.std_ms), rows)
        self.table.save()


def open_table(folder: Path, device: str, benchmark: Path, works: list[SignatureWork]) -> PhoneTable:
    """Open the measurements in a folder, or start new ones; refuse measurements that it already has."""
    digest = hashlib.sha256(read_bytes(benchmark, "program", MAX_BYTES)).hexdigest()[:12]
    opened = PhoneTable(MeasurementTable.open(folder, external_source(device), resume=True), device, f"benchmark_model {digest}")
    measured = {(row.device, row.network, row.processor, row.core_set, row.precision, row.runtime) for row in opened.table.latencies}
    for work in works:
        if opened.where(work) in measured:
            raise StretchError(
                f"{folder} has a time of {work.network} on {work.place.name} already", "choose another folder with --measurements"
            )
    return opened


def measured_row(
    bundle: Bundle, content: bytes, phone: Phone, asked: AdbCall, table: PhoneTable, backend: str, work: SignatureWork
) -> SignatureRow:
    """Measure a signature and store its time: once alone, and once with the times of its operators, whose recording takes time.

    Kernels follow the fusion rules of `backend`; `content` is the bundle's TFLite file.
    """
    asked = replace(asked, signature=work.signature, target=work.place.target, threads=work.place.threads)
    activity = f"measure {work.signature} on {work.place.name}"
    kernels: list[tuple[Kernel, float]] = []
    ended, spoken = phone.attempt(asked.command(), activity), None
    if ended.returncode == 0:
        spoken = parse_benchmark_output(ended.stderr + ended.stdout, work.place.target)
    reason = f"benchmark_model failed: {reason_of(ended)}" if spoken is None else spoken.elsewhere
    if spoken is not None and reason is None:
        if phone.attempt(asked.command(f"{phone.folder}/{PROFILE}"), activity).returncode == 0:
            kernels = _kernels(bundle, content, phone, backend, work)
        table.add(bundle, work, spoken, kernels)
    benchmark = spoken if reason is None else None
    return SignatureRow(
        signature=work.signature,
        processor=work.place.name,
        precision=work.precision,
        ms=None if benchmark is None else benchmark.ms,
        std_ms=None if benchmark is None else benchmark.std_ms,
        kernels=len(kernels),
        reason=reason,
    )


def _kernels(bundle: Bundle, content: bytes, phone: Phone, backend: str, work: SignatureWork) -> list[tuple[Kernel, float]]:
    with tempfile.TemporaryDirectory() as folder:
        phone.pull(PROFILE, Path(folder, PROFILE))
        try:
            operators = read_op_profile(Path(folder, PROFILE))
        except StretchError:
            return []  # some delegates report no operator
    order = [name for name, _ in parse_tflite(content, bundle.path / str(bundle.manifest.tflite)).operators(work.signature)]
    return pair(operators, fuse(graph_of(bundle, work), backend), order)


#: Maximum length of a phone's name in tables.
MAX_NAME = 100

#: Function that is called with the name of the next step.
Step = Callable[[str], object]


def measure(bundle: Bundle, request: PhoneRequest, x: NDArray[Any], step: Step = lambda doing: None) -> PhoneAnswer:
    """Measure a bundle on a phone.

    Measurements before a failure are kept; all files on the phone are removed.
    """
    if request.benchmark is None and request.runner is None:
        raise UsageError("--adb needs something to run on the phone", "give --benchmark-model FILE, --runner FILE or both")
    if request.runner is not None and len(bundle.manifest.inputs) + len(bundle.manifest.outputs) > 2:
        raise UsageError("--runner runs networks of one input and one output", "leave it out, and give --benchmark-model FILE")
    content, _ = bundle_tflite(bundle)
    mask = mask_of(request.cores)
    libraries = _files(request)
    npu = any("Dispatch" in path.name for path in libraries)
    profile_name = request.profile or bundle.manifest.device
    profile = load_device(profile_name)
    processors = phone_processors(profile, request.core_set, npu)
    tasks = signature_tasks(bundle, processors) if request.benchmark else []
    phone = find_phone(request.serial, request.limit)
    # the phone's name in tables
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", phone.property("ro.product.model")).strip("-._")[:MAX_NAME] or "phone"
    version = phone.property("ro.build.version.release")
    table = None if request.benchmark is None else open_table(request.measurements, name, request.benchmark, tasks)
    rows: list[SignatureRow] = []
    with tempfile.TemporaryDirectory() as folder, workspace(phone):
        scratch = Path(folder)
        (scratch / GRAPH).write_bytes(content)
        step("copying")
        graph = phone.push(scratch / GRAPH, GRAPH)
        for path in libraries:
            phone.push(path, path.name)
        if request.benchmark is not None and table is not None:
            program = phone.push(request.benchmark, PROGRAM, program=True)
            asked = AdbCall(program, graph, "", "cpu", 1, request.runs, request.warmup, mask, phone.folder)
            for work in tasks:
                step(f"{work.signature} on {work.place.name}")
                rows.append(measured_row(bundle, content, phone, asked, table, profile.processors[work.place.family].backend, work))
        runner_row = None
        if request.runner is not None:
            step("all branches")
            threads = next((place.threads for place in processors if place.target == "cpu"), 1)
            options = [f"--repeat={request.runs}", f"--warmup={request.warmup}", f"--time-limit={request.limit:g}"]
            if any(sub.processor == "cpu" for sub in bundle.manifest.subgraphs):
                cores = "+".join(str(core) for core in range(64) if mask >> core & 1)
                options += [f"--threads=cpu={threads}", *([f"--cores=cpu={cores}"] if cores else [])]
            runner_row = run_side_by_side(bundle, phone, request.runner, [path.name for path in libraries], x, options, request.trace)
    on_cpu = runner_row.on_cpu if runner_row is not None else []
    warning = f"operators of {', '.join(on_cpu)} stayed on the CPU, so the times are not those of the accelerators"
    return PhoneAnswer(
        serial=phone.serial,
        phone=name,
        system=f"Android {version or 'of unknown version'}",
        model=bundle.manifest.model.name,
        device=bundle.manifest.device,
        profile=profile_name,
        measurements=str(request.measurements) if any(row.ms is not None for row in rows) else None,
        signatures=rows,
        runner=runner_row,
        warnings=[warning] if on_cpu else [],
    )


def _files(request: PhoneRequest) -> list[Path]:
    """Return the files to copy, which are checked before the phone is searched for."""
    for problem, path in (("--benchmark-model", request.benchmark), ("--runner", request.runner)):
        if path is not None and not path.is_file():
            raise StretchError(f"{problem}: there is no file {path}")
    if request.libraries is None:
        return []
    libraries = sorted(request.libraries.glob("*.so")) if request.libraries.is_dir() else []
    if not libraries:
        raise StretchError(f"--libraries: {request.libraries} is no folder with libraries (*.so)")
    return libraries
