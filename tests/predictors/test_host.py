"""The host is the CPU, in whichever core set."""

import pytest

from predictors.devices import list_devices, load_device
from predictors.host import host_among, is_host, kind_of


@pytest.mark.parametrize(
    ("processor", "kind", "host"), [("cpu", "cpu", True), ("cpu[3med]", "cpu", True), ("gpu[1]", "gpu", False), ("cpux", "cpux", False)]
)
def test_core_set_is_no_part_of_the_kind(processor, kind, host):
    assert (kind_of(processor), is_host(processor)) == (kind, host)


def test_host_is_found_wherever_it_stands_and_need_not_be_there():
    assert host_among(["gpu", "cpu[1large]", "cpu"]) == "cpu[1large]"
    assert host_among(["gpu", "dsp"]) is None


@pytest.mark.parametrize("device", list_devices())
def test_every_device_has_a_host_in_every_of_its_core_sets(device):
    profile = load_device(device)
    host = host_among(profile.processors)
    assert host is not None
    assert all(is_host(name) == (profile.processor(name).family == host) for name in profile.variants)
