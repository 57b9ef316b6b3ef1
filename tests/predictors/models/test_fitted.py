"""Kernel times from fits: what the terms, trees and corrections of a fit say, kernel by kernel."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.fits import Correction, KernelGroup, Trees
from predictors.fusion import KernelCost
from predictors.measurements.networks import MEASUREMENT_FOLDER
from predictors.models.fitted import SIBLING_SPREAD, FittedModel
from predictors.models.roofline import RooflinePredictor
from tests.effort import examples
from tests.predictors.fits.examples import fit, kernel_costs

CPU = load_device("mi9").processor("cpu[1large]")


def conv(cin=16, cout=16, pixels=100, **changes):
    return KernelCost("conv1x1", cin, cout, 1, 1, pixels, cin * pixels, cout * pixels, cin * cout)._replace(**changes)


def test_terms_add_up_in_their_parts():
    model = FittedModel(fit({"conv1x1": KernelGroup({"launch": 0.5, "macs": 1e-3, "weight_bytes": 1e-3})}), CPU)
    time = model.time(conv())
    assert time.launch_ms == pytest.approx(0.5)
    assert time.compute_ms == pytest.approx(16 * 16 * 100 * 1e-3)
    assert time.memory_ms == pytest.approx(16 * 16 * 4 * 1e-3)
    assert time.ms == pytest.approx(0.5 + 25.6 + 1.024)
    assert time.origin == "fit"


def test_interval_of_a_fit_to_another_device_holds_what_devices_of_one_chip_differ_by():
    low, high = FittedModel(fit({}), CPU).interval()
    wider = FittedModel(fit({}, sibling="pixel4"), CPU).interval()
    assert wider[0] < low / 1.05
    assert wider[1] > high * 1.05
    assert {name: each.sibling for (name, _, _), each in load_device("mi9").fits.items()} == {"cpu": "pixel4", "gpu": "pixel4"}


def test_spread_of_devices_with_one_chip_is_that_of_the_public_tables():
    with (MEASUREMENT_FOLDER / "boards" / "latencies.csv").open() as file:
        rows = {(row["device"], row["network"], row["core_set"], row["precision"]): float(row["ms"]) for row in csv.DictReader(file)}
    ratios = [
        ms / rows[(other, *case)]
        for (device, *case), ms in rows.items()
        for other in {"orangepi5plus": ("rk3588-fp16",), "orangepi4lts": ("rk3399",)}.get(device, ())
        if (other, *case) in rows
    ]
    assert len(ratios) == 86
    assert np.exp(1.645 * np.sqrt(np.mean(np.log(ratios) ** 2))) == pytest.approx(SIBLING_SPREAD, abs=0.005)
    assert np.mean(np.abs(np.log(ratios)) < np.log(SIBLING_SPREAD)) == pytest.approx(0.9, abs=0.03)


def test_correction_scales_kernels_and_adds_to_each():
    plain = FittedModel(fit({"conv1x1": KernelGroup({"launch": 0.5})}), CPU)
    corrected = FittedModel(fit({"conv1x1": KernelGroup({"launch": 0.5})}, Correction(2.0, 0.25, 3.0)), CPU)
    assert corrected.time(conv()).ms == pytest.approx(2 * plain.time(conv()).ms + 0.25)
    assert (plain.fixed_ms, corrected.fixed_ms) == (0.0, 3.0)


def test_weights_that_others_drive_out_of_caches_take_memory_time():
    groups = {"conv1x1": KernelGroup({"launch": 0.5})}
    plain, corrected = (
        FittedModel(fit(groups), CPU).time(conv()),
        FittedModel(fit(groups, Correction(1.0, 0.0, 0.0, 1e-3)), CPU).time(conv()),
    )
    assert corrected.ms - plain.ms == pytest.approx(16 * 16 * 1e-3)
    assert corrected.memory_ms - plain.memory_ms == pytest.approx(16 * 16 * 1e-3)


def test_finer_group_comes_before_that_of_the_kind():
    model = FittedModel(fit({"conv1x1": KernelGroup({"launch": 1.0}), "conv1x1:winograd": KernelGroup({"launch": 2.0})}), CPU)
    assert model.time(conv()).ms == pytest.approx(1.0)
    assert model.time(conv(variant="winograd")).ms == pytest.approx(2.0)


def test_kernel_that_no_group_knows_is_timed_by_the_roofline_and_says_so():
    model = FittedModel(fit({"conv": KernelGroup({"launch": 1.0})}), CPU)
    assert model.time(conv()) == RooflinePredictor(CPU, "fp32").time(conv())
    assert model.time(conv()).origin == "roofline"


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(kernel_costs, min_size=1, max_size=20))
def test_no_kernel_is_faster_than_its_products_at_the_peak(some):
    model = FittedModel(fit({kind: KernelGroup({"launch": 0.0}) for kind in ("conv1x1", "conv", "depthwise", "elementwise")}), CPU)
    peak = CPU.cores.peak_gops["fp32"].value * 1e6 / 2
    for cost, time in zip(some, model.times(some), strict=True):
        products = cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps
        least = 0.0 if cost.kind == "elementwise" else products / peak
        assert time.ms == pytest.approx(least, rel=1e-9)


@settings(max_examples=examples(50))
@given(st.lists(kernel_costs, min_size=1, max_size=20))
def test_kernels_as_columns_take_the_same_times_those_of_the_roofline_among_them(some):
    model = FittedModel(fit({kind: KernelGroup({"macs": 1e-6, "io_bytes": 1e-6}) for kind in ("conv1x1", "conv")}), CPU)
    assert [replace(time, origin="fit") for time in model.times(some)] == model.columns(some).kernels("fit")


def test_trees_multiply_the_terms_by_the_exponential_of_their_leaves():
    # One tree: up to 64 output channels 0.5, above −0.25; base 0.1.
    trees = Trees(("out_channels",), (0,), (0, 0, 0), (64.0, 0.0, 0.0), (1, 1, 2), (2, 1, 2), (0.0, 0.5, -0.25), 0.1, 1.0)
    model = FittedModel(fit({"conv1x1": KernelGroup({"launch": 1.0}, trees)}), CPU)
    assert model.time(conv(cout=64)).ms == pytest.approx(np.exp(0.6))
    assert model.time(conv(cout=65)).ms == pytest.approx(np.exp(-0.15))
