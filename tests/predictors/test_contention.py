"""What a kernel takes longer beside other processors."""

import msgspec
import pytest

from predictors.predictor import contended_ms
from predictors.devices import Factor, load_device
from predictors.models.base import KernelTime
from predictors.predictor import LatencyPredictor
from tests.predictors.networks import small_resnet

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


def test_profile_with_one_factor_slows_everything_alike():
    profile = msgspec.structs.replace(PROFILE, contention_memory=None)
    assert contended_ms(KernelTime(10.0, 0.0, 3.0, 7.0), profile) == pytest.approx(11.0)


def test_network_beside_others_takes_no_less_than_alone():
    estimate = LatencyPredictor(load_device("mi9")).predict(small_resnet(), "gpu")
    assert estimate.computing_ms <= estimate.contended_ms <= 1.2 * estimate.computing_ms
