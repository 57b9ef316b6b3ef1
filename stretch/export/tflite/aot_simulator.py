"""Runs code compiled by LiteRT's tool on the simulator of Qualcomm's DSP: ``python -m stretch.export.tflite.aot_simulator``.

LiteRT has no dispatcher for a Qualcomm DSP on x86-64. Its code is a QNN
context that ONNX Runtime's QNN provider can load, which runs it here. The
simulator keeps its first chip for the lifetime of its process,
so each chip has a separate process.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.delegates.qnn_context import LIMIT, open_context
from scheduler.delegates.qnn_library import load_library
from stretch.export.tflite.aot_compiler import Code

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One run of compiled code."""

    code: Code
    x: Array  # Its input, images with channels last.
    shape: tuple[int, ...]  # Shape of its output, images with channels last.


def simulate(cases: Mapping[str, Case], chip: str) -> dict[str, Array]:
    """Outputs of compiled code, each run once."""
    load_library()
    with tempfile.TemporaryDirectory(prefix="nn-stretch-aot.") as folder:
        for number, case in enumerate(cases.values()):
            _wrap(case, Path(folder) / f"{number}.onnx")
            np.save(Path(folder) / f"{number}.in.npy", case.x)
        command = [sys.executable, "-m", "stretch.export.tflite.aot_simulator", folder, chip]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            raise StretchError(f"the simulator did not run the code for {chip} within {LIMIT} s") from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise StretchError(f"the simulator does not run LiteRT's code for {chip}: {reason}", "use --format qnn instead")
        return {name: np.load(Path(folder) / f"{number}.out.npy", allow_pickle=False) for number, name in enumerate(cases)}


def _wrap(case: Case, out: Path) -> None:
    """Write an ONNX file whose only node is the code."""
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        name=case.code.entry,
        domain="com.microsoft",
        main_context=1,
        embed_mode=1,
        ep_cache_context=case.code.content,
        source="QNNExecutionProvider",
        partition_name=case.code.entry,
    )
    graph = helper.make_graph(
        [node],
        "aot",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, case.shape)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), str(out))


def main() -> None:
    """Run every ``N.onnx`` of a folder: FOLDER CHIP."""
    folder, chip = sys.argv[1:]
    for file in sorted(Path(folder).glob("*.onnx")):
        session = open_context(file, chip)
        (y,) = session.run(None, {"x": np.load(file.with_suffix(".in.npy"), allow_pickle=False)})
        np.save(file.with_suffix(".out.npy"), y)


if __name__ == "__main__":
    try:
        main()
    except StretchError as error:
        sys.exit(error.message)
