"""The host is the CPU, in whichever core set."""

from predictors.host import host_among


def test_host_is_found_wherever_it_stands_and_need_not_be_there():
    assert host_among(["gpu", "cpu[1large]", "cpu"]) == "cpu[1large]"
    assert host_among(["gpu", "dsp"]) is None
