"""Time EfficientNet-B5 at 456 on each runtime of a machine, one after the other: `python -m experiments.real_processors.alone`."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torchvision

from experiments.records import Row, write_record
from scheduler.cores import available_cores
from scheduler.delegates import get_delegate

HERE = Path(__file__).parent
MEASURED, ALONE = (HERE / "results" / f"{name}.json" for name in ("measured", "alone"))
#: Delegates of the CPU, and that of the GPU.
CPU, GPU = ("cpu", "openvino", "openvino:half"), "opencl"
WARMUPS, RUNS = 5, 15


def timed(delegate: str, model: Path, cores: tuple[int, ...]) -> float:
    """Median time of an inference, ms."""
    compiled = get_delegate(delegate).create(cores).compile(model)
    ends = [[np.zeros(shape, np.float32) for shape in tensors.values()] for tensors in (compiled.inputs, compiled.outputs)]
    call, times = compiled.bind(*ends), []
    for _ in range(WARMUPS + RUNS):
        start = time.perf_counter()
        call.run()
        times.append((time.perf_counter() - start) * 1e3)
    return median(times[WARMUPS:])


def ideal(first: float, second: float) -> float:
    """Speed-up over the faster of two processors, if both worked all the time and exchanges took none."""
    return round(1 + min(first, second) / max(first, second), 2)


def ideals(times: dict[str, float]) -> list[Row]:
    """The ideal of each network that was measured on both processors."""
    singles = {row["network, input, processor"]: row["measured ms"] for row in json.loads(MEASURED.read_text())["tables"]["singles"]}
    pairs = {
        name.removesuffix(", gpu"): (ms, singles[name.replace(", gpu", ", cpu")]) for name, ms in singles.items() if name.endswith("gpu")
    }
    pairs["efficientnet_b5, 456"] = times[GPU], min(times[name] for name in CPU)
    return [
        {"network, input": name, "gpu ms": round(gpu, 2), "cpu ms": round(cpu, 2), "ideal speed-up": ideal(gpu, cpu)}
        for name, (gpu, cpu) in sorted(pairs.items())
    ]


def main() -> int:
    """Export the network, time it, and write the record."""
    argparse.ArgumentParser(prog="python -m experiments.real_processors.alone", description=__doc__).parse_args()
    load, cores = os.getloadavg()[0], available_cores()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "b5.onnx"
        network = torchvision.models.efficientnet_b5().eval()
        torch.onnx.export(network, (torch.zeros(1, 3, 456, 456),), str(model), dynamo=False)
        times = {name: timed(name, model, () if name == GPU else cores[: len(cores) - 1]) for name in (*CPU, GPU)}
    write(times, load=load)
    return 0


def write(times: dict[str, float], **facts: object) -> None:
    """Write the record of some times, ms."""
    write_record(
        ALONE,
        {"runtimes": [{"runtime": name, "ms": round(ms, 2)} for name, ms in times.items()], "ideals": ideals(times)},
        source="measured",
        command="python -m experiments.real_processors.alone",
        runs=RUNS,
        interleaved=False,
        notes=[
            "EfficientNet-B5, input 1×3×456×456, random weights; the CPU on all cores but one; openvino:half computes in bfloat16.",
            "ideals: the faster CPU runtime measured for the network counts; other networks from `measured.json`, with ONNX Runtime.",
        ],
        **facts,  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    sys.exit(main())
