"""What one core can do at most, measured: multiply-adds through OpenCL and in other libraries' matrix products, and reads from each cache."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyopencl as cl
from onnx import TensorProto, helper, numpy_helper

from experiments.opencl_networks.heterogeneous import openvino_run
from experiments.opencl_networks.networks import onnxruntime
from experiments.records import Value
from scheduler.delegates.opencl.device import OpenDevice

SOURCE = Path(__file__).with_name("peaks.cl")

#: Vectors of 8 floats, twelve sums, two operations each.
FLOP_A_STEP = 2 * 8 * 12
STEPS = 2_000_000
#: Bytes that are read again and again, and the memory they then come from on a processor of 32 KiB, 1 MiB and 32 MiB of cache.
SIZES = {"first cache": 16 << 10, "second cache": 512 << 10, "third cache": 8 << 20, "memory": 256 << 20}
READ_BYTES = 1 << 30
#: Side of the square matrices whose product is timed.
MATRIX = 1024
EVENTS = ("cycles", "instructions", "cache-references", "cache-misses")


#: Runs of which the best counts.
KERNEL_RUNS, PRODUCT_RUNS = 5, 10


class Peaks:
    """Runs the kernels of `peaks.cl` by one work-item on one core.

    Args:
        device: Of that core.
    """

    def __init__(self, device: OpenDevice) -> None:
        self._device = device
        self._program = cl.Program(device.context, SOURCE.read_text()).build(["-cl-mad-enable"])
        self._out = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 64)

    def gflop_per_s(self) -> float:
        """Rate of multiply-adds whose operands stay in registers."""
        ms = self._ms("multiply_add", self._out, np.float32(0.999), np.float32(0.001), np.int32(STEPS))
        return FLOP_A_STEP * STEPS / ms / 1e6

    def gbyte_per_s(self, size: int) -> float:
        """Rate of reading a buffer of `size` bytes again and again."""
        buffer = cl.Buffer(
            self._device.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.ones(size // 4, np.float32)
        )
        repeats = READ_BYTES // size
        return size * repeats / self._ms("read", buffer, self._out, np.int32(size // 32), np.int32(repeats)) / 1e6

    def _ms(self, name: str, *arguments: object) -> float:
        kernel = cl.Kernel(self._program, name)
        kernel.set_args(*arguments)
        times = []
        for _ in range(KERNEL_RUNS):
            event = cl.enqueue_nd_range_kernel(self._device.queue, kernel, (1,), (1,))
            event.wait()
            times.append((event.profile.end - event.profile.start) / 1e6)
        return min(times)


def save_product(path: Path) -> Path:
    """A product of an input with a constant matrix as an ONNX model."""
    weight = np.random.default_rng(0).normal(size=(MATRIX, MATRIX)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [value("x", TensorProto.FLOAT, (MATRIX, MATRIX))],
        [value("y", TensorProto.FLOAT, (MATRIX, MATRIX))],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def product_gflop_per_s(call: Callable[[], object]) -> float:
    """Rate of a product of two square matrices, the best of ten."""
    best = float("inf")
    for _ in range(PRODUCT_RUNS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return 2 * MATRIX**3 / best / 1e9


def peaks(device: OpenDevice, folder: Path) -> list[dict[str, Value]]:
    """A row a measurement; the process is pinned to the device's core."""
    measured = Peaks(device)
    model = save_product(folder / "product.onnx")
    x = np.random.default_rng(1).normal(size=(MATRIX, MATRIX)).astype(np.float32)
    rates = {
        "multiply-adds in registers, OpenCL": measured.gflop_per_s(),
        f"product of {MATRIX}² matrices, ONNX Runtime": product_gflop_per_s(onnxruntime(model).call.run),
        f"product of {MATRIX}² matrices, OpenVINO": product_gflop_per_s(openvino_run(model, x, 1)),
    }
    rows: list[dict[str, Value]] = [{"measurement": name, "GFLOP_per_s": round(rate, 1), "GB_per_s": None} for name, rate in rates.items()]
    for name, size in SIZES.items():
        rows.append(
            {"measurement": f"reads from the {name}, OpenCL", "GFLOP_per_s": None, "GB_per_s": round(measured.gbyte_per_s(size), 1)}
        )
    return rows


def counters() -> list[dict[str, Value]]:
    """What `perf stat` says of each hardware counter."""
    command = ["perf", "stat", "-x,", "-e", ",".join(EVENTS), "true"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        return [{"event": name, "perf_stat": str(error)} for name in EVENTS]
    result = {fields[2]: fields[0] for line in lines if len(fields := line.split(",")) > 2}
    return [{"event": name, "perf_stat": result.get(name, "no answer")} for name in EVENTS]
