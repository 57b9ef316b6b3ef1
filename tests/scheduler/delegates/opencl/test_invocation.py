import time

import numpy as np
import pyopencl as cl
import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl import OpenCLDelegate
from tests.scheduler.delegates.opencl import networks


@pytest.fixture
def call(tmp_path):
    compiled = OpenCLDelegate().build(networks.residual_block(tmp_path / "m.onnx"))
    x, y = networks.numbers(1, 16, 9, 9), np.zeros((1, 16, 9, 9), np.float32)
    return compiled.bind([x], [y])


def test_commands_pass_their_stages_in_order(call):
    call.run()
    spans = call.commands()
    assert len(spans) > len(call.spans()) > 0
    for span in spans:
        assert span.queued <= span.submitted <= span.started <= span.ended
    assert all(a.ended <= b.started for a, b in zip(call.spans(), call.spans()[1:], strict=False))


def test_time_outside_kernels_is_the_run_without_them(call):
    call.run()
    spans = call.commands()
    assert 0 <= call.communication_ms() <= (spans[-1].ended - spans[0].queued) / 1e6


def test_run_lies_between_enqueue_and_wait_on_the_hosts_clock(call):
    start = time.perf_counter_ns()
    call.enqueue()
    call.wait()
    end = time.perf_counter_ns()
    began, ended = call.times()
    assert start <= began < ended <= end + 1_000_000


def test_results_follow_the_callers_arrays(tmp_path):
    compiled = OpenCLDelegate().build(networks.residual_block(tmp_path / "m.onnx"))
    x, y = networks.numbers(1, 16, 9, 9), np.zeros((1, 16, 9, 9), np.float32)
    call = compiled.bind([x], [y])
    call.run()
    first = y.copy()
    x *= -2
    call.run()
    assert not np.array_equal(y, first)
    x /= -2
    call.run()
    assert np.array_equal(y, first)


def test_device_that_refuses_is_an_error_with_a_way_out(call, monkeypatch):
    def lost(*arguments):
        raise cl.RuntimeError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", lost)
    with pytest.raises(StretchError, match="failed: clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE") as caught:
        call.enqueue()
    assert "--map gpu=cpu" in caught.value.hint
