import os
import sys

import numpy as np
import pytest

from scheduler.delegates.base import UnableError
from scheduler.delegates.openvino import DeviceDelegate, OpenVinoDelegate
from scheduler.runtime.session import Session
from tests.scheduler.delegates.cases import Case, floats

if problem := OpenVinoDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)


@pytest.mark.torch
def test_bands_and_paths_on_it_beside_onnx_runtime_are_the_original(tmp_path):
    pytest.importorskip("torch")
    from tests.stretch.exact_bundles import images, made, near, original

    x = images(1)[0]
    with Session(made(tmp_path / "exact"), {"gpu": f"openvino{sorted(os.sched_getaffinity(0))[-1]}"}) as session:
        assert {p.delegate for p in session.placements.values()} == {"cpu", "openvino"}
        assert near(session(x), original(x))
        assert near(session.submit(x).result(60), original(x))


def test_device_beside_the_cpu_runs_requests_of_its_own_and_names_what_is_missing(tmp_path):
    class OnCpu(DeviceDelegate):
        device = "CPU"
        makers = str(tmp_path / "vendor*")

    if sys.platform == "linux":
        assert "no CPU of Intel's" in OnCpu.unavailable()
    (tmp_path / "vendor0").write_text("0x8086\n")
    assert OnCpu.unavailable() is None
    missing = type("Missing", (OnCpu,), {"device": "NPU"}).unavailable()
    assert missing is None or "driver is missing" in missing
    case = Case("Relu", [floats((1, 3, 8, 8), 0)])
    case.save(tmp_path / "op.onnx")
    output = np.full((1, 3, 8, 8), np.nan, np.float32)
    call = OnCpu.create(()).compile(tmp_path / "op.onnx").bind(case.inputs, [output])
    for _ in range(2):
        call.enqueue()
        call.wait()
        assert np.array_equal(output, np.maximum(case.inputs[0], 0))
        case.inputs[0] -= 0.5


def test_operator_that_the_device_computes_wrongly_may_run_elsewhere(tmp_path):
    class OnCpu(DeviceDelegate):
        device = "CPU"
        makers = ""

    attrs = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1, "count_include_pad": 1}
    Case("AveragePool", [floats((1, 1, 5, 5), 0)], attrs).save(tmp_path / "op.onnx")
    with pytest.raises(UnableError, match="wrongly"):
        OnCpu.create(()).compile(tmp_path / "op.onnx")
