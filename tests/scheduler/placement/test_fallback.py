import os

from scheduler.placement.fallback import fallback_placement
from scheduler.placement.place import Placement

GPU = Placement("gpu", "opencl", (), "opencl:gpu", "async", False, "the gpu of this machine", waits_on=0)


def test_fallback_takes_the_cores_that_it_had_or_the_last_one():
    found = fallback_placement(GPU, "cpu", "", {})
    assert found.cores[0] in os.sched_getaffinity(0)
    assert found.queue == f"cpu{found.cores[0]}"
    pocl = Placement("gpu", "opencl", (1,), "opencl:gpu", "async", True, "")
    assert fallback_placement(pocl, "cpu", "", {}).queue == "cpu1"
