"""Exchanges with a queue, measured while it is idle and while it works."""

from pathlib import Path

import numpy as np
import pytest

from scheduler.delegates import get_delegate
from scheduler.measure.steady import LinkTimes, Reads, time_reads
from stretch.profiling.files import write_network
from stretch.profiling.run import _computing, _handed


def test_the_interval_holds_both_states_and_what_the_link_states():
    link = LinkTimes(1.0, 1.0, 1.0)
    low = Reads(1_000_000, 1_000_000, (2.7,) * 5, (10.5,) * 5, 20.0, 0.0)
    assert low.spread(link) == pytest.approx((0.9, 3.5))
    # where both are dearer than stated, what is stated is still its end
    assert Reads(1_000_000, 1_000_000, (4.5,) * 5, (6.0,) * 5, 20.0, 0.0).spread(link) == pytest.approx((1.0, 2.0))


@pytest.mark.opencl
@pytest.mark.torch
def test_a_device_is_measured_in_both_states(tmp_path: Path):
    delegate = get_delegate("opencl").create_untuned(())
    invocations = []
    for graph in (_handed(16, 32, 1), _computing()):
        compiled = delegate.compile(write_network(graph, tmp_path / f"{graph.name}.onnx"))
        tensors = [[np.zeros(shape, np.float32) for shape in ends.values()] for ends in (compiled.inputs, compiled.outputs)]
        invocations.append(compiled.bind(*tensors))
    reads = time_reads(*invocations, (65536, 64), 0.0, turns=3)
    assert (len(reads.idle_ms), len(reads.working_ms)) == (3, 3)
    assert all(ms >= 0 for ms in (*reads.idle_ms, *reads.working_ms))
    assert reads.kernel_ms > 0
    assert 0 <= reads.feeding <= 1
