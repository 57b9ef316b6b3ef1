"""LiteRT's `benchmark_model`: its command line for one signature, and its output.

Facts: its README and `benchmark_tflite_model.cc` at https://github.com/google-ai-edge/LiteRT.
"""

import re
from dataclasses import dataclass
from typing import Literal

from predictors.errors import StretchError

#: What a signature can be measured on.
Target = Literal["cpu", "gpu", "npu"]

_TIMES = re.compile(r"^.*\bcount=(\d+)\b.*\bavg=([-+.\deE]+)(?:\s+std=([-+.\deE]+))?.*$", re.M)
_MEAN = re.compile(r"Inference \(avg\):\s*([-+.\deE]+)")
_WHOLE = re.compile(r"the model graph will be completely executed by the delegate")
_PARTLY = re.compile(r"the model graph will be partially executed by the delegate w/ (\d+) delegate kernels")
_NOT = re.compile(r"the model graph will not be executed by the delegate")

#: Longest time that is believed, μs.
_MAX_US = 1e10


@dataclass(frozen=True)
class Request:
    """One call."""

    program: str  # Where `benchmark_model` is on the phone.
    graph: str  # Where the TFLite file is.
    signature: str  # Which signature to run.
    target: Target  # Processor.
    threads: int  # Of the CPU.
    runs: int  # Measured runs, at least 1.
    warmup: int  # Runs before them.
    mask: int = 0  # Cores to run on, as a mask of `taskset`; 0 for any.
    libraries: str = ""  # Folder of LiteRT's libraries for an NPU, on the phone.

    def command(self, profile: str | None = None) -> list[str]:
        """The words of the command.

        Args:
            profile: Where to write the times of operators; None to measure without looking at them, which takes time.
        """
        words = ["taskset", f"{self.mask:x}"] if self.mask else []
        words += [
            self.program,
            f"--graph={self.graph}",
            f"--signature_to_run_for={self.signature}",
            f"--num_threads={self.threads}",
            f"--num_runs={self.runs}",
            f"--warmup_runs={self.warmup}",
            # It would go on for a second, and for half of one before, however many runs were asked for.
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
class Spoken:
    """What a call said."""

    ms: float  # Mean time of a run.
    std_ms: float | None  # Standard deviation; None if not printed.
    elsewhere: str | None  # Why the time is not the target's; None if all operators ran there.


def read_spoken(text: str, target: Target) -> Spoken:
    """Times and placement from what `benchmark_model` printed, on stdout and stderr."""
    # The warm-up's line comes before that of the measured runs.
    counted = list(_TIMES.finditer(text))
    mean = _MEAN.search(text)
    try:
        us = float(mean[1]) if mean else float(counted[-1][2])
        std = float(counted[-1][3]) if counted and counted[-1][3] else None
    except (IndexError, ValueError) as error:
        raise StretchError(f"benchmark_model told no time: {_last(text)}") from error
    if not 0 < us < _MAX_US or (std is not None and not 0 <= std < _MAX_US):
        raise StretchError(f"benchmark_model tells {us:g} μs, which no measurement gives")
    return Spoken(us / 1e3, None if std is None else std / 1e3, None if target == "cpu" else _elsewhere(text))


def _elsewhere(text: str) -> str | None:
    if _WHOLE.search(text):
        return None
    if partly := _PARTLY.search(text):
        return f"only parts of it ran there, in {partly[1]} pieces"
    if _NOT.search(text):
        return "nothing of it ran there"
    return "benchmark_model does not say that all of it ran there"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
