"""The C++ runner on a phone: all branches at once, its outputs compared with those of the whole model here."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from predictors.files import read_bytes
from scheduler.bundle.load import Bundle
from scheduler.formats.npy import read_npy
from scheduler.runtime.record import replay
from scheduler.runtime.sequential import Sequential, max_error
from stretch.phone.adb import Phone
from stretch.phone.answer import RunnerRow

#: Names on the phone.
GRAPH, PROGRAM, RESULTS = "model.tflite", "runner", "results"

_MAX_TIMES = 1 << 24


class _Times(msgspec.Struct):
    """What is read of the runner's ``times.json``."""

    sha256: str
    median_ms: float
    runs: int
    on_cpu: list[str]


def run_side_by_side(
    bundle: Bundle, phone: Phone, runner: Path, libraries: Sequence[str], x: NDArray[Any], options: Sequence[str], trace: Path | None
) -> RunnerRow:
    """Run the runner in the phone's folder, where the TFLite file is already, and judge what it leaves."""
    program = phone.push(runner, PROGRAM, program=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        np.save(scratch / "input.npy", np.ascontiguousarray(x, np.float32))
        input_path = phone.push(scratch / "input.npy", "input.npy")
        words = [program, f"{phone.folder}/{GRAPH}", "--input", input_path, "--out", f"{phone.folder}/{RESULTS}", *options]
        words += _accelerators(bundle, libraries, phone.folder)
        ended = phone.attempt(["env", f"LD_LIBRARY_PATH={phone.folder}", *words], "run the branches on the phone")
        if ended.code != 0:
            raise StretchError(f"the runner failed on the phone: {ended.reason}")
        for name in ("times.json", "trace.json", "record.jsonl", "output_0.npy"):
            phone.pull(f"{RESULTS}/{name}", scratch / name)
        times = _times(bundle, scratch / "times.json")
        replay(scratch / "record.jsonl")
        output = read_npy(scratch / "output_0.npy", "output")
        expected = Sequential(bundle.file(bundle.manifest.whole)).run(x)
        if output.shape != expected.shape:
            raise StretchError(f"the runner's output has the shape {output.shape}, and the model's is {expected.shape}")
        if trace is not None:
            _keep(scratch / "trace.json", trace)
        return RunnerRow(
            median_ms=times.median_ms,
            runs=times.runs,
            on_cpu=times.on_cpu,
            max_error=max_error(output, expected),
            trace=None if trace is None else str(trace),
        )


def _accelerators(bundle: Bundle, libraries: Sequence[str], folder: str) -> list[str]:
    """What the libraries let processors of the plan run on; the CPU computes for all others."""
    of = {sub.processor for sub in bundle.manifest.subgraphs}
    gpu = any("Accelerator" in name for name in libraries)
    npu = any("Dispatch" in name for name in libraries)
    chosen = [f"{name}={'gpu' if name == 'gpu' else 'npu'}" for name in sorted(of - {"cpu"}) if (gpu if name == "gpu" else npu)]
    return [f"--accelerator={','.join(chosen)}", *([f"--dispatch-folder={folder}"] if npu else [])] if chosen else []


def _times(bundle: Bundle, path: Path) -> _Times:
    try:
        times = msgspec.json.decode(read_bytes(path, "times of the runner", _MAX_TIMES), type=_Times)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"the runner's times cannot be read: {error}", "build it anew with `stretch runner`") from error
    if times.sha256 != bundle.manifest.files[str(bundle.manifest.tflite)].sha256:
        raise StretchError("the runner's times are of another file than this bundle's", "build it anew with `stretch runner`")
    if not 0 < times.median_ms < 1e9 or times.runs < 1:
        raise StretchError(f"the runner tells {times.median_ms:g} ms of {times.runs} inferences, which no measurement gives")
    return times


def _keep(source: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    except OSError as error:
        raise StretchError(f"cannot write {target}: {error.strerror}", "choose another file with --trace") from error
    finally:
        partial.unlink(missing_ok=True)
