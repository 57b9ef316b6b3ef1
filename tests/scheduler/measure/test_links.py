"""Exchanges with a queue, measured while it is idle and while it works."""

import numpy as np
import pytest

from scheduler.delegates import get_delegate
from scheduler.measure.steady import LinkTimes, Reads, time_reads
from stretch.profiling.files import write_network
from stretch.profiling.run import _computing, _handed


def test_what_a_link_states_is_an_end_where_both_states_are_dearer():
    assert Reads(10**6, 10**6, (4.5,) * 5, (6.0,) * 5, 20.0, 0.0).spread(LinkTimes(1.0, 1.0, 1.0)) == pytest.approx((1.0, 2.0))


@pytest.mark.opencl
@pytest.mark.torch
def test_a_device_is_measured_in_both_states(tmp_path):
    delegate, invocations = get_delegate("opencl").create_untuned(()), []
    for graph in (_handed(16, 32, 1), _computing()):
        compiled = delegate.compile(write_network(graph, tmp_path / f"{graph.name}.onnx"))
        invocations.append(
            compiled.bind(*([np.zeros(shape, np.float32) for shape in ends.values()] for ends in (compiled.inputs, compiled.outputs)))
        )
    reads = time_reads(*invocations, (65536, 64), 0.0, turns=3)
    assert (len(reads.idle_ms), len(reads.working_ms)) == (3, 3)
    assert min(*reads.idle_ms, *reads.working_ms) >= 0
    assert reads.kernel_ms > 0
    assert 0 <= reads.feeding <= 1
