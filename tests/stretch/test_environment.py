"""Facts about this installation and machine."""

import re
from importlib import metadata

from stretch.environment import OTHERS, version


def test_version_of_an_absent_distribution_is_none():
    assert version("no-such-distribution") is None


def test_every_package_that_an_extra_of_a_delegate_brings_has_its_version_told():
    extras = {"opencl", "litert", "openvino", "ncnn", "qnn"}
    brought = [line for line in metadata.requires("nn-stretch") if any(f"extra == '{extra}'" in line for extra in extras)]
    names = {re.match(r"[\w.-]+", line)[0] for line in brought}
    assert len(names) >= len(extras)
    assert names <= set(OTHERS)
