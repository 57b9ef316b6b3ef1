"""The four networks for measurements of OpenCL, as ONNX files with random weights, and ONNX Runtime on one core as a baseline."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.schedule import Options

#: Networks of the comparison; tile costs were fitted to their convolutions (`experiments.opencl_tuning.cost_model`).
NETWORKS = ("resnet50", "mobilenet_v2", "regnet_x_1_6gf", "efficientnet_b0")


def save_network(name: str, folder: Path) -> Path:
    """Write a network of `stretch list models` as one ONNX file, as `stretch branch` would."""
    from stretch.export.onnx import save_onnx, to_numpy, to_onnx
    from stretch.network.capture import capture
    from stretch.network.models.load import load_model

    loaded = load_model(name, weights="none")
    captured = capture(loaded.module, loaded.input_shape, name)
    path = folder / f"{name}.onnx"
    save_onnx(to_onnx(captured.graph, to_numpy(captured.weights)), path)
    return path


class Runner:
    """A compiled network or operator with its own buffers.

    Args:
        compiled: Compiled network of any delegate.
        seed: Seed of its input.
    """

    def __init__(self, compiled: Any, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.compiled = compiled
        self.inputs = [random.normal(size=shape).astype(np.float32) for shape in compiled.inputs.values()]
        self.outputs = [np.zeros(shape, np.float32) for shape in compiled.outputs.values()]
        self.call = compiled.bind(self.inputs, self.outputs)
        self.call.run()

    def ms(self) -> float:
        """Return the time of one run in ms, including copies from and to the caller's memory."""
        start = time.perf_counter_ns()
        self.call.run()
        return (time.perf_counter_ns() - start) / 1e6


def forget_own_tuning(core: int, empty: str) -> None:
    """Ignore schedules that were tuned on this machine, until the process ends; the driver keeps its compiled kernels.

    Args:
        core: Core of the device.
        empty: An empty folder.
    """
    open_device((core,))
    os.environ["XDG_CACHE_HOME"] = empty


def opencl(model: Path, core: int, **options: Any) -> Runner:
    """Return a network with our kernels and PoCL's thread on one core."""
    return Runner(OpenCLDelegate((core,), options=Options(**options)).compile(model))


def onnxruntime(model: Path) -> Runner:
    """Return a network on ONNX Runtime, with one thread on the caller's core."""
    return Runner(CpuDelegate(()).compile(model))


def difference(one: Runner, other: Runner) -> float:
    """Return the maximum difference of their outputs, relative to the largest element."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(one.outputs, other.outputs, strict=True))
