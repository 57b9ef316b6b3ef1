"""Fits of boards with ncnn: GPUs through Vulkan, and what leaving families out says of the devices whose processors are alike."""

import re

import numpy as np
import pytest

from predictors.devices import load_device
from predictors.fusion import Fuser, load_rules
from predictors.measurements.networks import load_measurements
from predictors.predictor import LatencyPredictor

ALIKE = ("rk3588", "rk3399", "a311d", "n5105", "sd888", "x-elite", "d9300")


@pytest.fixture(scope="module")
def boards():
    return load_measurements("boards")


@pytest.mark.parametrize("device", ALIKE)
def test_networks_that_were_measured_come_out_within_the_interval(boards, device):
    profile = load_device(device)
    predictor = LatencyPredictor(profile)
    for processor, core_set, precision in profile.fits:
        rows = [
            row for row in boards.of(device).latencies if (row.processor, row.core_set, row.precision) == (processor, core_set, precision)
        ]
        times = [predictor.predict(boards.graphs[row.network], f"{processor}[{core_set}]", precision) for row in rows]
        inside = [time.low_ms <= row.ms <= time.high_ms for row, time in zip(rows, times, strict=True)]
        assert not rows or np.mean(inside) >= 0.8


def test_gpu_tables_have_no_network_that_ran_on_the_cpu(boards):
    names = {row.network for row in boards.latencies if row.processor == "gpu"}
    assert len(names) == 20
    assert not any(re.search("int8|efficientnetv2|vision_transformer", name) for name in names)


def test_products_of_images_and_of_one_position_have_variants_of_their_own(boards):
    kernels = Fuser(load_rules("ncnn")).fuse(boards.graphs["vgg16"])
    variants = {kernel.cost.variant: kernel.cost for kernel in kernels if kernel.cost.kind in ("conv", "linear")}
    assert variants["image"].in_channels == 3
    assert variants["vector"].pixels == 1
    assert variants["winograd"].in_channels >= 16


def test_laptop_is_predicted_as_its_eight_networks_ran():
    profile = load_device("core-ultra-155h")
    assert {key[0] for key in profile.priors} == {"cpu", "gpu", "npu"}
    for prior in profile.priors.values():
        assert not any("mobilenetv3" in row.name for row in prior.calibration.networks)
        off = [abs(row.left_out_ms / row.measured_ms - 1) for row in prior.calibration.networks]
        assert np.mean([error <= 0.25 for error in off]) >= 0.6
