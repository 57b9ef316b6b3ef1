"""Runs a network on tinygrad's OpenCL backend, once for every line on stdin, and answers with the milliseconds.

Started by `against_tinygrad.py` with the interpreter of an environment that has tinygrad, which this project does not depend on.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pyopencl

# PoCL of pyopencl's wheel is found by that wheel's own loader alone: it is loaded before tinygrad asks for it.
pyopencl.get_platforms()
os.environ["OPENCL_PATH"] = str(next((Path(pyopencl.__file__).parent / ".libs").glob("libOpenCL*")))
os.environ["DEV"] = "CL"


def main(model: str, x_file: str, y_file: str) -> int:
    """Compile the network, then answer until stdin ends; at last write the output of the last run."""
    from tinygrad import Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(model)
    name = next(iter(runner.graph_inputs))
    x = np.load(x_file)

    @TinyJit
    def network(tensor: Tensor) -> Tensor:
        return next(iter(runner({name: tensor}).values())).realize()

    def run() -> np.ndarray:
        return network(Tensor(x).realize()).numpy()

    for _ in range(3):  # the first call compiles, the second is recorded, the third replays
        y = run()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        start = time.perf_counter_ns()
        y = run()
        sys.stdout.write(f"{(time.perf_counter_ns() - start) / 1e6}\n")
        sys.stdout.flush()
    np.save(y_file, y)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
