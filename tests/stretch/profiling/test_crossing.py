import threading

import pytest

from stretch.profiling.run import Handing, measure_crossing
from stretch.profiling.places import find_places


@pytest.mark.torch
@pytest.mark.opencl
@pytest.mark.slow
def test_a_link_and_its_contention_are_measured_here():
    host, *_, other = find_places(["cpu", "gpu"])
    found = measure_crossing(host, other)
    assert found.link.fixed_ms >= 0
    assert found.link.to_gbs > 0
    assert found.link.back_gbs > 0
    assert min(*found.contention, *found.contention_memory) >= 1
    assert "opencl" in found.runtime


def test_work_that_is_handed_over_runs_on_a_thread_of_its_own_and_its_errors_arrive():
    seen = []
    handing = Handing((), ())
    beside = handing.handing(lambda: seen.append(threading.current_thread()))()
    assert beside > 0
    assert seen != [threading.current_thread()]

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        handing.handing(fail)()
    handing.close()
    assert not seen[0].is_alive()
