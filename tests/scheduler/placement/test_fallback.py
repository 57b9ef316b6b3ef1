import os

from scheduler.placement.fallback import fallback_placement
from scheduler.placement.place import Placement

GPU = Placement("gpu", "opencl", (), "opencl:gpu", "async", False, "the gpu of this machine", waits_on=0)


def test_fallback_says_why_and_keeps_the_processor_that_it_stands_in_for():
    found = fallback_placement(GPU, "cpu", "it has no kernel for Cos", {})
    assert (found.processor, found.delegate, found.dispatch, found.stand_in) == ("gpu", "cpu", "blocking", True)
    assert found.reason == "the opencl delegate cannot run it: it has no kernel for Cos"
    assert found.waits_on is None


def test_fallback_takes_the_cores_that_it_had_or_the_last_one():
    found = fallback_placement(GPU, "cpu", "", {})
    assert found.cores[0] in os.sched_getaffinity(0)
    assert found.queue == f"cpu{found.cores[0]}"
    pocl = Placement("gpu", "opencl", (1,), "opencl:gpu", "async", True, "")
    assert fallback_placement(pocl, "cpu", "", {}).queue == "cpu1"


def test_queue_that_is_there_already_keeps_its_way_of_dispatch():
    pocl = Placement("gpu", "opencl", (0,), "opencl:gpu", "async", True, "")
    assert fallback_placement(pocl, "cpu", "", {"cpu0": "inline", "cpu1": "blocking"}).dispatch == "inline"
