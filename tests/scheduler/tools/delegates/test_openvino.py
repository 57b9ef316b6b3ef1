"""Runtimes of processor vendors: OpenVINO and Core ML."""

import sys

import numpy as np
import pytest

from predictors.fusion import fuse
from scheduler.delegates import get_delegate
from scheduler.delegates.base import UnableError
from scheduler.measure.steady import time_kernels, time_operators
from scheduler.tools.delegates.coreml import planned
from scheduler.tools.delegates.openvino import DeviceDelegate, OpenVinoDelegate
from stretch.profile.places import write_network
from stretch.profile.styles import draw
from tests.scheduler.delegates.graphs import save_node
from tests.scheduler.doubles import numbers

if problem := OpenVinoDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)


class OnCpu(DeviceDelegate):
    device = "CPU"
    makers = ""


def test_openvino_device_runs_asynchronous_requests_and_names_a_missing_device_or_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(OnCpu, "makers", str(tmp_path / "vendor*"))
    if sys.platform == "linux":
        assert "no CPU of Intel's" in OnCpu.unavailable()
    (tmp_path / "vendor0").write_text("0x8086\n")
    assert OnCpu.unavailable() is None
    missing = type("Missing", (OnCpu,), {"device": "NPU"}).unavailable()
    assert missing is None or "driver is missing" in missing
    x, output = numbers(), np.full((1, 3, 8, 8), np.nan, np.float32)
    save_node(tmp_path / "op.onnx", "Relu", x.shape)
    call = OnCpu.create(()).compile(tmp_path / "op.onnx").bind([x], [output])
    for _ in range(2):
        call.enqueue()
        call.wait()
        assert np.array_equal(output, np.maximum(x, 0))
        x -= 0.5


def test_operator_that_the_device_computes_wrongly_is_refused(tmp_path):
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1, "count_include_pad": 1}
    save_node(tmp_path / "op.onnx", "AveragePool", (1, 1, 5, 5), **attrs)
    with pytest.raises(UnableError, match="wrongly"):
        OnCpu.create(()).compile(tmp_path / "op.onnx")


def test_half_precision_on_a_cpu_is_bfloat16_and_close_to_the_float_network(tmp_path):
    delegate = get_delegate("openvino:half")
    if problem := delegate.unavailable():
        pytest.skip(problem)
    network, outputs = draw("residual", 3), []
    for name, precision in (("openvino:half", "fp16"), ("cpu", "fp32")):
        compiled = get_delegate(name).create((0,)).compile(write_network(network, tmp_path / f"{precision}.onnx", precision))
        outputs.append(np.zeros(next(iter(compiled.outputs.values())), np.float32))
        compiled.run([numbers(shape=network.input.shape)], outputs[-1:])
    difference = np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[1]).max()
    assert 1e-5 < difference < 0.1


@pytest.mark.parametrize("style", ["residual", "inverted", "branches"])
def test_fused_kernels_have_times_by_the_files_operator_names(tmp_path, style):
    network = draw(style, 1)
    file = write_network(network, tmp_path / "network.onnx")
    times, added = time_operators(OpenVinoDelegate.create((0,)), file, (0,), [op.name for op in network.ops])
    heavy = [kernel.ops for kernel in fuse(network, "onnxruntime") if kernel.cost.kind == "conv"]
    assert sum(ms is None for ms in time_kernels(times, heavy)) <= len(heavy) / 10
    assert added < 0.7 * (added + sum(times.values()))


#: Options of the Core ML provider with their values in ONNX Runtime's documentation; `SWITCHES` are 0 or 1.
DOCUMENTED = {"ModelFormat": ("MLProgram", "NeuralNetwork"), "MLComputeUnits": ("CPUOnly", "CPUAndNeuralEngine", "CPUAndGPU", "ALL")}
SWITCHES = ("RequireStaticInputShapes", "EnableOnSubgraphs", "ProfileComputePlan", "AllowLowPrecisionAccumulationOnGPU")

#: A compute plan in the provider's log: constants have no device.
PLAN = """2026-01-02 03:04:05.678 python[42:99] Operation: const, Device Usage: (null), Estimated Cost: 0.000000
2026-01-02 03:04:05.679 python[42:99] Operation: ios15.conv, Device Usage: <MLNeuralEngineComputeDevice: 0x1>, Estimated Cost: 0.6
2026-01-02 03:04:05.679 python[42:99] Operation: ios15.relu, Device Usage: <MLCPUComputeDevice: 0x2>, Estimated Cost: 0.2
"""


@pytest.mark.parametrize("name", ["coreml", "coreml:GPU", "coreml:NPU"])
def test_provider_gets_documented_options_and_a_cache_folder_per_content(tmp_path, name):
    kept = []
    for slope in (0.1, 0.2):
        save_node(tmp_path / "op.onnx", "LeakyRelu", (1, 3, 8, 8), alpha=slope)
        options = get_delegate(name).options(tmp_path / "op.onnx")
        kept.append(options.pop("ModelCacheDirectory"))
        assert all(value in DOCUMENTED.get(option, ("0", "1")) for option, value in options.items())
        assert options.keys() <= {*DOCUMENTED, *SWITCHES}
    assert kept[0] != kept[1]
    if sys.platform != "darwin":
        with pytest.raises(UnableError, match="Core ML is on macOS alone"):
            get_delegate(name).create(()).compile(tmp_path / "op.onnx")


def test_compute_plan_gives_the_placement_of_each_operator():
    assert [(place.op, place.reason) for place in planned(PLAN)] == [
        ("conv", "Core ML prefers the Neural Engine, 75.0 % of the cost it expects"),
        ("relu", "Core ML prefers the CPU, 25.0 % of the cost it expects"),
    ]
