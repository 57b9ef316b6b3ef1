import pytest

from stretch.profiling.crossing import measure_crossing
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
