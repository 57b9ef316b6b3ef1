"""Networks on our kernels and on tinygrad's, both through PoCL on the same core: `python -m experiments.opencl_networks.against_tinygrad`."""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from experiments.opencl_networks.networks import forget_own_tuning, onnxruntime, opencl, save_network
from experiments.opencl_networks.run import p90
from experiments.records import Value, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores, pinned

HERE = Path(__file__).parent
NETWORKS = ("resnet50", "mobilenet_v2")


class Tinygrad:
    """A network on tinygrad in a process of its own, on the core that this process is pinned to.

    Args:
        python: Interpreter of an environment with tinygrad, numpy and pyopencl[pocl].
        model: ONNX file.
        x: Its input.
    """

    def __init__(self, python: str, model: Path, x: np.ndarray) -> None:
        self._files = [model.with_name(f"{model.stem}.{end}.npy") for end in ("x", "y")]
        np.save(self._files[0], x)
        command = [python, str(HERE / "tinygrad_worker.py"), str(model), *map(str, self._files)]
        environment = os.environ | {"POCL_MAX_PTHREAD_COUNT": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        while (line := self._answer()) != "ready":
            sys.stderr.write(f"tinygrad: {line}\n")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def ms(self) -> float:
        """Milliseconds of one run, from the caller's memory and back."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer())

    def output(self) -> np.ndarray:
        """The result of the last run; there is no further one."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        return np.load(self._files[1])

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StretchError(f"tinygrad ended with status {self._process.wait()}")
        return line.strip()


def measure(python: str, core: int, rounds: int) -> list[dict[str, Value]]:
    """A row a network."""
    rows: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            model = save_network(name, Path(folder))
            ours, known = opencl(model, core), onnxruntime(model)
            with contextlib.closing(Tinygrad(python, model, ours.inputs[0])) as tinygrad:
                calls = {"OpenCL": ours.ms, "tinygrad": tinygrad.ms, "ONNX Runtime": known.ms}
                times: dict[str, list[float]] = {call: [] for call in calls}
                for _ in range(rounds):
                    for item, call in calls.items():
                        times[item].append(call())
                theirs = tinygrad.output()
            medians = {item: statistics.median(spent) for item, spent in times.items()}
            rows.append(
                {
                    "network": name,
                    "OpenCL_ms": round(medians["OpenCL"], 2),
                    "tinygrad_ms": round(medians["tinygrad"], 1),
                    "tinygrad_p90_ms": round(p90(times["tinygrad"]), 1),
                    "ONNX_Runtime_ms": round(medians["ONNX Runtime"], 2),
                    "speed_over_tinygrad": round(medians["tinygrad"] / medians["OpenCL"], 1),
                    "tinygrad_over_ONNX_Runtime": round(medians["ONNX Runtime"] / medians["tinygrad"], 3),
                    "difference": float(np.abs(theirs - known.outputs[0]).max() / np.abs(known.outputs[0]).max()),
                }
            )
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/tinygrad.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_networks.against_tinygrad", description=__doc__)
    parser.add_argument("python", help="interpreter of an environment with tinygrad, numpy and pyopencl[pocl]")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "tinygrad.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    version = subprocess.run(
        [options.python, "-c", "import importlib.metadata as m; print(m.version('tinygrad'))"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as empty, pinned((options.core,)):
        forget_own_tuning(options.core, empty)
        rows = measure(options.python, options.core, options.rounds)
    write_record(
        options.out,
        {"networks": rows},
        source="measured",
        command="python -m experiments.opencl_networks.against_tinygrad PYTHON",
        runs=options.rounds,
        interleaved=True,
        load=load,
        notes=[
            f"tinygrad {version}, DEV=CL, recorded by TinyJit, without its search (BEAM=0); all through PoCL or one thread on the same core, fp32, batch 1, taking turns; medians."
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
