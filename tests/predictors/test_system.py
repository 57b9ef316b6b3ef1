"""The form that every system has; `make plain` runs tests of the rest with it."""

import os

import pytest

from predictors import system
from scheduler.cores import available_cores


@pytest.mark.skipif(not system.PLAIN, reason="needs NN_STRETCH_SYSTEM=plain")
def test_nothing_of_linux_is_left():
    assert system.fcntl is system.resource is system.affinity() is system.load_average() is None
    assert available_cores() == tuple(range(os.cpu_count()))
