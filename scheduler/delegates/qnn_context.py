"""Int8 subgraphs compiled for the DSP of a named chip, in a process of their own: ``python -m scheduler.delegates.qnn_context``.

QNN's offline compiler keeps the chip it was first asked for as long as its
process lives, so each file is made by a fresh one; then the same file gives
the same code every time.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from predictors.errors import StretchError, UnknownNameError, first_line
from scheduler.delegates.base import Array
from scheduler.delegates.qnn_library import load_library, session_options

#: Longest time that one subgraph may take to compile and run once, s.
LIMIT = 900


@dataclass(frozen=True)
class Chip:
    """A chip as QNN counts it."""

    name: str  # What it is sold as.
    soc_model: int  # Its number in QNN.
    htp_arch: int  # Version of its Hexagon tensor processor.


#: Chips that code can be compiled for (Qualcomm's QNN documentation, list of SoCs).
CHIPS = {
    "sm8350": Chip("Snapdragon 888", 30, 68),
    "sm8450": Chip("Snapdragon 8 Gen 1", 36, 69),
    "sm8550": Chip("Snapdragon 8 Gen 2", 43, 73),
}


def find_chip(name: str) -> Chip:
    """The chip called `name`."""
    if name not in CHIPS:
        raise UnknownNameError.among("chip", name, list(CHIPS))
    return CHIPS[name]


def compile_context(model: Path, chip: str, out: Path, x: Array) -> Array:
    """Compile a subgraph for a chip and run the code once on the simulator of this machine.

    Args:
        model: Int8 ONNX file with its weights inside.
        chip: A key of `CHIPS`.
        out: ONNX file to write, whose one node holds the code (EPContext).
    """
    find_chip(chip)
    load_library()
    inputs_file, got = out.with_suffix(".in.npy"), out.with_suffix(".out.npy")
    np.save(inputs_file, x)
    command = [sys.executable, "-m", "scheduler.delegates.qnn_context", str(model), chip, str(out), str(inputs_file), str(got)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode or not got.is_file():
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise StretchError(f"QNN cannot compile {model.name} for {chip}: {reason}")
        outputs: Array = np.load(got, allow_pickle=False)
    except subprocess.TimeoutExpired as error:
        raise StretchError(f"QNN did not compile {model.name} for {chip} within {LIMIT} s") from error
    finally:
        inputs_file.unlink(missing_ok=True)
        got.unlink(missing_ok=True)
    return outputs


def open_context(file: Path, chip: str) -> Any:
    """An ONNX Runtime session of code that was compiled for a chip; nothing is left to the CPU."""
    return _session(file, find_chip(chip), {})


def _session(file: Path, chip: Chip, settings: dict[str, str]) -> Any:
    import onnxruntime

    provider = {"soc_model": str(chip.soc_model), "htp_arch": str(chip.htp_arch)}
    options = session_options(load_library(), {"session.disable_cpu_ep_fallback": "1", **settings}, provider)
    try:
        return onnxruntime.InferenceSession(str(file), options)
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        reason = first_line(error)
        raise StretchError(f"the QNN provider cannot load {file.name} for {chip.name}: {reason}") from error


def main() -> None:
    """Compile and run: MODEL CHIP OUT INPUT.npy OUTPUT.npy."""
    model, chip, out, inputs_file, got = sys.argv[1:]
    settings = {"ep.context_enable": "1", "ep.context_file_path": out, "ep.context_embed_mode": "1"}
    _session(Path(model), find_chip(chip), settings)
    session = open_context(Path(out), chip)
    (y,) = session.run(None, {session.get_inputs()[0].name: np.load(inputs_file, allow_pickle=False)})
    np.save(got, y)


if __name__ == "__main__":
    try:
        main()
    except StretchError as error:
        sys.exit(error.message)
