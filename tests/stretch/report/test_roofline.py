"""The picture of a network's kernels under a processor's roofline."""

import pytest

from predictors.predictor import LatencyPredictor
from stretch.report.roofline import kernel_points
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

MI9 = specified("mi9")


def test_points_are_the_kernels_that_multiply():
    estimate = LatencyPredictor(MI9).predict(small_resnet(), "gpu", "fp32")
    points = kernel_points(estimate)
    multiplying = [each for each in estimate.kernels if each.kernel.macs]
    assert len(points) == len(multiplying)
    peak = MI9.processor("gpu").cores.peak_gops["fp32"].value
    for (kind, intensity, rate, share), each in zip(points, multiplying, strict=True):
        assert kind == each.kernel.cost.kind
        assert rate * each.time.ms * 1e6 == pytest.approx(2 * each.kernel.macs)
        assert 0 < rate <= peak
        assert intensity > 0
        assert 0 < share < 1
