"""What a kernel takes longer beside other processors."""

import msgspec
import pytest

from predictors.contention import contended_ms
from predictors.devices import Factor, load_device
from predictors.models.base import KernelTime

PROFILE = msgspec.structs.replace(load_device("mi9").processors["cpu"], contention=Factor(1.1, "x"), contention_memory=Factor(1.5, "x"))


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (KernelTime(10.0, 0.0, 10.0, 0.0), 11.0),
        (KernelTime(10.0, 0.0, 0.0, 10.0), 15.0),
        (KernelTime(10.0, 0.0, 5.0, 5.0), 13.0),
        (KernelTime(10.0, 10.0, 0.0, 0.0), 10.0),
        (KernelTime(11.0, 1.0, 10.0, 0.0), 12.0),
    ],
)
def test_each_part_of_a_kernel_is_slowed_by_its_own_factor(time, expected):
    assert contended_ms(time, PROFILE) == pytest.approx(expected)
