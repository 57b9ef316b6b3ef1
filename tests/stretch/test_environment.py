"""Facts about this installation and machine."""

import re
from importlib import metadata
from pathlib import Path

import numpy

import stretch
from stretch.environment import OTHERS, folder, version


def test_version_is_that_of_the_installed_distribution():
    assert version("numpy") == numpy.__version__


def test_version_of_an_absent_distribution_is_none():
    assert version("no-such-distribution") is None


def test_folder_is_where_the_package_lies():
    assert folder("stretch") == Path(stretch.__file__).resolve().parent


def test_every_package_that_an_extra_of_a_delegate_brings_has_its_version_told():
    extras = {"opencl", "litert", "openvino", "qnn"}
    brought = [line for line in metadata.requires("nn-stretch") if any(f"extra == '{extra}'" in line for extra in extras)]
    names = {re.match(r"[\w.-]+", line)[0] for line in brought}
    assert len(names) >= len(extras)
    assert names <= set(OTHERS)
