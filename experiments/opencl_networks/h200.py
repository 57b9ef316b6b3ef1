"""ResNet-50 on a GPU's OpenCL against PyTorch with cuDNN: `python -m experiments.opencl_networks.h200`.

Self-contained: it needs this repository, numpy, onnx, msgspec, pyopencl, and torch with CUDA for the comparison. Without torch
it checks against ONNX Runtime where that is installed, and measures OpenCL alone.
"""

import argparse
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.opencl_networks.resnet50 import save_resnet50
from experiments.records import About, Value, write_record
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.graph import KernelGraph, read_graph
from scheduler.delegates.opencl.schedule import Options

HERE = Path(__file__).parent
#: Runs behind a row of the kernels.
PROFILED = 10


class TorchGraph:
    """The same ONNX file run by PyTorch's functions, captured in a CUDA graph, so that launches cost nothing."""

    def __init__(self, graph: KernelGraph, batch_input: np.ndarray[Any, Any], half: bool, tf32: bool) -> None:
        import torch

        self._torch, self._graph = torch, graph
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._dtype = torch.float16 if half else torch.float32
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        form = torch.channels_last if half else torch.contiguous_format
        self._weights = {}
        for name, values in graph.constants.items():
            tensor = torch.from_numpy(np.array(values)).to(self._device, self._dtype)
            self._weights[name] = tensor.contiguous(memory_format=form) if tensor.ndim == 4 else tensor
        self._x = torch.from_numpy(batch_input).to(self._device, self._dtype).contiguous(memory_format=form)
        self._replay: Callable[[], None] = self._once
        with torch.inference_mode():
            for _ in range(5):
                self._once()
            if self._device == "cuda":
                torch.cuda.synchronize()
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    self._once()
                self._replay = captured.replay

    def _once(self) -> None:
        f = self._torch.nn.functional
        values: dict[str, Any] = {self._graph.inputs[0]: self._x, **self._weights}
        for node in self._graph.nodes:
            ins = [values[name] for name in node.inputs]
            match node.op:
                case "Conv":
                    pads, stride = node.attrs["pads"], tuple(node.attrs["strides"])
                    out = f.conv2d(*ins, stride=stride, padding=tuple(pads[:2]), groups=node.attrs.get("group", 1))
                case "Relu":
                    out = f.relu(ins[0])
                case "Add":
                    out = ins[0] + ins[1]
                case "MaxPool":
                    out = f.max_pool2d(
                        ins[0], tuple(node.attrs["kernel_shape"]), tuple(node.attrs["strides"]), tuple(node.attrs["pads"][:2])
                    )
                case "GlobalAveragePool":
                    out = ins[0].mean((2, 3), keepdim=True)
                case "Flatten":
                    out = ins[0].flatten(1)
                case "Gemm":
                    out = f.linear(*ins)
                case other:
                    raise SystemExit(f"this comparison does not know {other}")
            values[node.output] = out
        self._y = values[self._graph.outputs[0]]

    def run(self) -> float:
        """Seconds of one inference with the input on the device."""
        with self._torch.inference_mode():
            start = time.perf_counter()
            self._replay()
            if self._device == "cuda":
                self._torch.cuda.synchronize()
            return time.perf_counter() - start

    @property
    def output(self) -> np.ndarray[Any, Any]:
        """Result of the last run."""
        values: np.ndarray[Any, Any] = self._y.float().cpu().numpy()
        return values


class OpenCL:
    """One configuration of our delegate."""

    def __init__(self, model: Path, x: np.ndarray[Any, Any], half: bool, winograd: str = "auto") -> None:
        self.compiled = OpenCLDelegate(half=half, options=Options(winograd=winograd)).compile(model)
        self.output = np.zeros(next(iter(self.compiled.outputs.values())), np.float32)
        self._call = self.compiled.bind([x], [self.output])
        self._call.run()

    def run(self) -> float:
        """Seconds from the first kernel's start to the last one's end, the input being on the device."""
        self._call.run()
        spans = self._call.spans()
        return (spans[-1].ended - spans[0].started) / 1e9


def oracle(graph: KernelGraph, model: Path, x: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]] | None:
    """What the outputs are compared with: PyTorch in float32 without TF32, else ONNX Runtime, else nothing."""
    if importlib.util.find_spec("torch"):
        torch_graph = TorchGraph(graph, x, half=False, tf32=False)
        torch_graph.run()
        return "PyTorch fp32", torch_graph.output
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        return "ONNX Runtime", session.run(None, {"x": x})[0]
    return None


def measure(batch: int, size: int, rounds: int) -> tuple[list[dict[str, Value]], list[dict[str, Value]], list[str]]:
    """Times of all contestants taking turns, the kernels' times of OpenCL fp32, and notes."""
    with tempfile.TemporaryDirectory() as folder:
        model = save_resnet50(Path(folder) / "resnet50.onnx", batch, size)
        graph = read_graph(model)
        x = np.random.default_rng(1).normal(size=(batch, 3, size, size)).astype(np.float32)
        known = oracle(graph, model, x)
        contestants: dict[str, Any] = {
            "OpenCL fp32": OpenCL(model, x, half=False),
            "OpenCL fp32, no Winograd": OpenCL(model, x, half=False, winograd="off"),
            "OpenCL fp16 storage": OpenCL(model, x, half=True),
        }
        if importlib.util.find_spec("torch"):
            contestants["PyTorch fp32"] = TorchGraph(graph, x, half=False, tf32=False)
            contestants["PyTorch TF32"] = TorchGraph(graph, x, half=False, tf32=True)
            contestants["PyTorch fp16, channels last"] = TorchGraph(graph, x, half=True, tf32=True)
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, one in contestants.items():
                times[name].append(one.run() * 1000)
        first = statistics.median(times["OpenCL fp32"])
        rows: list[dict[str, Value]] = []
        for name, one in contestants.items():
            median = statistics.median(times[name])
            error = same = None
            if known is not None:
                error = float(np.abs(one.output - known[1]).max() / np.abs(known[1]).max())
                same = bool((one.output.argmax(1) == known[1].argmax(1)).all())
            rows.append(
                {
                    "contestant": name,
                    "median_ms": round(median, 3),
                    "p90_ms": round(statistics.quantiles(times[name], n=10)[-1], 3),
                    "speed_relative_to_OpenCL_fp32": round(first / median, 3),
                    "max_error": error,
                    "same_class": same,
                }
            )
        compiled = contestants["OpenCL fp32"].compiled
        kernels: list[dict[str, Value]] = []
        for item in sorted(compiled.profile(PROFILED), key=lambda k: -k.ms):
            gflops = round(2 * item.launch.macs / item.ms / 1e6, 1) if item.launch.macs else None
            tile = {key: int(value) for key, value in item.launch.defines if key in ("VW", "VC")}
            kernels.append(
                {
                    "node": item.launch.node,
                    "kernel": item.launch.kernel,
                    "shape": item.launch.shape,
                    "ms": round(item.ms, 4),
                    "gflops": gflops,
                    "work_items": math.prod(item.launch.grid),
                    "vw": tile.get("VW"),
                    "vc": tile.get("VC"),
                }
            )
    device = open_device(())
    against = known[0] if known else "nothing"
    return rows, kernels, [f"OpenCL device {device.name} ({device.driver}); batch {batch}, {size}×{size}; outputs compared with {against}"]


def main(words: list[str] | None = None) -> int:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_networks.h200", description=__doc__)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    rows, kernels, notes = measure(options.batch, options.size, options.rounds)
    command = f"python -m experiments.opencl_networks.h200 --batch {options.batch} --rounds {options.rounds}"
    versions = {name: module_version(name) for name in ("pyopencl", "torch", "onnxruntime", "numpy") if importlib.util.find_spec(name)}
    write_record(
        options.out,
        {"times": rows, "kernels": kernels},
        source="measured",
        command=command,
        runs=options.rounds,
        interleaved=True,
        about={"kernels": About(runs=PROFILED, interleaved=False)},
        load=load,
        notes=notes,
        versions=versions,
    )
    for row in rows:
        sys.stdout.write(f"{row}\n")
    for row in kernels[:15]:
        sys.stdout.write(f"{row}\n")
    return 0


def module_version(name: str) -> str:
    """Version of an installed package."""
    from importlib.metadata import version

    return version(name)


if __name__ == "__main__":
    sys.exit(main())
