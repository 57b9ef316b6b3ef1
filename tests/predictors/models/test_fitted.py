"""Kernel times: the roofline model against times computed by hand, and numbers from a fit."""

import csv
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from predictors.devices import load_device
from predictors.fits import Correction, Interval, KernelGroup, LeftOut, Prior, Relative, Trees
from predictors.fusion import KernelCost
from predictors.measurements.networks import MEASUREMENT_FOLDER
from predictors.models.fitted import SIBLING_SPREAD, FittedModel, Grain, TreeModel, terms
from predictors.models.related import Ratios, RelatedModel
from predictors.models.roofline import KernelTime, RooflinePredictor, Times
from tests.effort import examples
from tests.predictors.fits.test_fits import fit, kernel_costs
from tests.predictors.specified import specified

MI9 = specified("mi9")


def processor(**changes):
    """A processor with round numbers: 10⁶ multiply-accumulates per ms, and no other costs, unless changed."""
    arguments = MI9.processor("cpu")
    number = dict.fromkeys(("launch_us", "half_outputs", "epilogue_macs"), 0.0) | {"bandwidth_gbs": 1e9, "cache_gbs": 1e9}
    number |= dict.fromkeys(("width_slice", "reduce_slice", "efficiency", "scaling", "cache_kib"), 1.0) | changes

    def replaced(struct):
        return {name: replace(old, value=number[name]) for name in number if isinstance(old := getattr(struct, name, None), Struct)}

    peak = {"fp32": replace(arguments.cores.peak_gops["fp32"], value=2.0)}
    rates = {kind: replace(ratio, value=number["efficiency"]) for kind, ratio in arguments.profile.efficiency.items()}
    return dataclasses.replace(
        arguments,
        profile=replace(arguments.profile, **replaced(arguments.profile), efficiency=rates),
        cores=replace(arguments.cores, **replaced(arguments.cores), peak_gops=peak),
    )


#: 10 000 outputs of 100 products each: 10⁶ multiply-accumulates, so 1 ms.
PRODUCTS = KernelCost("conv", 10, 10, 1, 10, 1000, 1, 1, 0)


#: 1 000 sums of 1 000 each: 10⁶ steps.
SUMS = KernelCost("reduce", 1, 1, 1000, 1000, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("changes", "ms", "cost"),
    [
        ({}, 1.0, PRODUCTS),
        ({"launch_us": 500.0}, 1.5, PRODUCTS),
        ({"efficiency": 0.5}, 2.0, PRODUCTS),
        ({"scaling": 0.25}, 4.0, PRODUCTS),
        ({"half_outputs": 10_000.0}, 2.0, PRODUCTS),
        ({"half_outputs": 30_000.0}, 4.0, PRODUCTS),
        ({"epilogue_macs": 100.0}, 2.0, PRODUCTS),
        ({"width_slice": 16.0}, 1.6, PRODUCTS),
        ({"reduce_slice": 4.0}, 1.2, PRODUCTS),
        ({"width_slice": 16.0, "reduce_slice": 4.0, "launch_us": 80.0}, 2.0, PRODUCTS),
        # with one channel per group, slices are of groups
        ({"width_slice": 16.0, "reduce_slice": 4.0}, 1.6, KernelCost("depthwise", 1, 1, 10, 10, 10_000, 1, 1, 0)),
        # a reduction is as parallel as its inputs: it runs at half rate with as many inputs as `half_outputs`
        ({"half_outputs": 1e6}, 2.0, SUMS),
        ({"half_outputs": 1e6}, 1001.0, SUMS._replace(kind="pool")),
    ],
)
def test_each_cost_of_arithmetic_adds_the_time_computed_by_hand(changes, ms, cost):
    time = RooflinePredictor(processor(**changes), "fp32").time(cost)
    assert (time.ms, time.launch_ms + time.compute_ms) == (pytest.approx(ms), pytest.approx(ms))


@pytest.mark.parametrize(
    ("reads", "writes", "weights", "ms"),
    [
        (128, 128, 0, 1.0),  # 1 024 bytes fit: 1 024 per ms
        (384, 128, 0, 3.0),  # half of 2 048 bytes fit: 1 ms, and 2 ms for the other half
        (0, 0, 128, 1.0),  # 512 bytes of weights come from DRAM: 512 per ms
        (384, 128, 512, 7.5),  # a quarter of 4 096 bytes fits: 0.5 ms and 3 ms for activations, 4 ms for weights
    ],
)
def test_memory_traffic_takes_the_time_computed_by_hand(reads, writes, weights, ms):
    slow = processor(cache_kib=1.0, cache_gbs=1024e-6, bandwidth_gbs=512e-6)
    time = RooflinePredictor(slow, "fp32").time(KernelCost("elementwise", 1, 1, 1, 1, 1, reads, writes, weights))
    assert (time.bound, time.memory_ms, time.ms) == ("memory", pytest.approx(ms), pytest.approx(ms))


def throughput(name, width):
    """Multiply-accumulates per ms of a bottleneck's three convolutions at 14×14."""
    window = conv(width, width, 196, kind="conv", taps=9, weights=9 * width * width)
    kernels = [conv(4 * width, width, 196), window, conv(width, 4 * width, 196)]
    predictor = RooflinePredictor(MI9.processor(name))
    return 17 * width * width * 196 / sum(predictor.time(k).ms for k in kernels)


def test_width_raises_the_rate_of_gpu_and_dsp_much_more_than_that_of_the_cpu():
    # Paper 003, figure 7: wide operators use a GPU better; a CPU's rate is flat.
    gain = {name: throughput(name, 256) / throughput(name, 64) for name in ("cpu", "gpu", "dsp")}
    assert gain["cpu"] < 1.25 < 1.5 < min(gain["gpu"], gain["dsp"])


CPU = load_device("mi9").processor("cpu[1large]")


def conv(cin=16, cout=16, pixels=100, **changes):
    return KernelCost("conv1x1", cin, cout, 1, 1, pixels, cin * pixels, cout * pixels, cin * cout)._replace(**changes)


def fitted(groups, *more, **changes):
    """A fitted model with these terms per group of kernels."""
    return FittedModel(fit({name: KernelGroup(terms) for name, terms in groups.items()}, *more, **changes), CPU)


def test_terms_add_up_to_launch_compute_and_memory_times():
    time = fitted({"conv1x1": {"launch": 0.5, "macs": 1e-3, "weight_bytes": 1e-3}}).time(conv())
    parts = (0.5, 16 * 16 * 100 * 1e-3, 16 * 16 * 4 * 1e-3)
    assert (time.launch_ms, time.compute_ms, time.memory_ms, time.ms) == pytest.approx((*parts, sum(parts)))
    assert time.origin == "fit"


def test_interval_of_a_siblings_fit_is_wider_by_the_spread_of_devices_with_one_chip():
    low, high = fitted({}).interval()
    wider = fitted({}, sibling="pixel4").interval()
    assert wider[0] * 1.05 < low < high < wider[1] / 1.05
    assert {name: item.sibling for (name, _, _), item in load_device("mi9").fits.items()} == {"cpu": "pixel4", "gpu": "pixel4"}


def test_spread_of_devices_with_one_chip_agrees_with_the_public_tables():
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


def test_correction_scales_kernels_and_adds_times_per_kernel_per_weight_and_per_inference():
    groups = {"conv1x1": {"launch": 0.5}}
    plain, corrected = fitted(groups), fitted(groups, Correction(2.0, 0.25, 3.0, per_io_element_ms=0.01))
    assert corrected.time(conv()).ms == pytest.approx(2 * plain.time(conv()).ms + 0.25)
    assert (plain.inference_ms(100), corrected.inference_ms(), corrected.inference_ms(100)) == (0.0, 3.0, 4.0)
    time, driven = plain.time(conv()), fitted(groups, Correction(1.0, 0.0, 0.0, 1e-3)).time(conv())
    assert driven.ms - time.ms == pytest.approx(driven.memory_ms - time.memory_ms) == pytest.approx(16 * 16 * 1e-3)


def test_group_of_a_variant_comes_before_that_of_its_kind_and_the_roofline_times_all_others():
    model = fitted({"conv1x1": {"launch": 1.0}, "conv1x1:winograd": {"launch": 2.0}})
    assert [model.time(cost).ms for cost in (conv(), conv(variant="winograd"))] == pytest.approx([1.0, 2.0])
    time = fitted({"conv": {"launch": 1.0}}).time(conv())
    assert (time, time.origin) == (RooflinePredictor(CPU, "fp32").time(conv()), "roofline")


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(kernel_costs, min_size=1, max_size=20))
def test_no_kernel_is_faster_than_its_products_at_the_peak(costs):
    model = fitted({kind: {"launch": 0.0} for kind in ("conv1x1", "conv", "depthwise", "elementwise")})
    peak = CPU.cores.peak_gops["fp32"].value * 1e6 / 2
    for cost, time in zip(costs, model.times(costs), strict=True):
        products = cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps
        least = 0.0 if cost.kind == "elementwise" else products / peak
        assert time.ms == pytest.approx(least, rel=1e-9)


@settings(max_examples=examples(50))
@given(st.lists(kernel_costs, min_size=1, max_size=20))
def test_kernels_as_columns_take_the_same_times_including_kernels_of_the_roofline(costs):
    model = fitted({kind: {"macs": 1e-6, "io_bytes": 1e-6} for kind in ("conv1x1", "conv")})
    assert [time._replace(origin="fit") for time in model.times(costs)] == model.columns(costs).kernels("fit")


def test_trees_multiply_the_terms_by_the_exponential_of_their_clipped_sum():
    # One tree: 0.5 for up to 64 output channels, else −0.25; base 0.1.
    trees = Trees(("out_channels",), (0,), (0, 0, 0), (64.0, 0.0, 0.0), (1, 1, 2), (2, 1, 2), (0.0, 0.5, -0.25), 0.1, 1.0)
    for bound, logarithms in ((1.0, [0.6, -0.15]), (0.125, [0.125, -0.125])):
        model = FittedModel(fit({"conv1x1": KernelGroup({"launch": 1.0}, replace(trees, bound=bound))}), CPU)
        assert [model.time(conv(cout=cout)).ms for cout in (64, 65)] == pytest.approx(np.exp(logarithms))


BIG, MED = load_device("mi9").processor("cpu[1large]"), load_device("mi9").processor("cpu[3med]")


def test_compute_and_memory_times_are_scaled_by_the_ratios_of_the_profiles_specifications():
    times = Times(*(np.array([ms]) for ms in (6.0, 1.0, 3.0, 2.0)))
    assert Ratios(2.0, 3.0).of(times).kernels("relatives") == [KernelTime(13.0, 1.0, 6.0, 6.0, "relatives")]
    ratios = Ratios.between(BIG, MED, "fp32")
    peak = [p.cores.peak_gops["fp32"].value * p.cores.scaling.value for p in (BIG, MED)]
    assert ratios.compute == pytest.approx(peak[0] / peak[1])
    assert ratios.memory == pytest.approx(BIG.cores.bandwidth_gbs.value / MED.cores.bandwidth_gbs.value)


def test_times_of_several_relatives_are_averaged_and_scaled():
    relatives = [(FittedModel(fit({"conv1x1": KernelGroup({"launch": ms})}), BIG), Ratios(1.0, 1.0)) for ms in (3.0, 1.0)]
    at = (Relative("mi9", "cpu", "1large", "fp32"),) * 2
    prior = Prior("cpu", "3med", "fp32", at, 1.5, Interval(0.9, 0.5, 2.0, "m"), LeftOut(3, 9, 0.5, 0.3, 0.9))
    [result] = RelatedModel(prior, relatives).times([conv()])
    assert result.ms == pytest.approx(1.5 * 2.0)


WINDOW, POINT = (KernelCost("conv", 16, 8, 1, taps, 10, 160, 80, 128 * taps) for taps in (9, 1))
IMAGE, TOKENS = (KernelCost("conv1x1", 32, 32, 1, 1, pixels, 1, 1, 1024) for pixels in (14 * 14, 197))


@pytest.mark.parametrize(
    ("cost", "grain", "units"),
    [
        (KernelCost("conv1x1", 5, 9, 1, 1, 10, 50, 90, 45), Grain(8, 4, 4), {"outputs": 10 * 16, "macs": 10 * 16 * 8}),
        (KernelCost("depthwise", 1, 1, 20, 9, 10, 200, 200, 180), Grain(8, 4, 4), {"outputs": 10 * 24, "macs": 10 * 24 * 9}),
        # windows are copied, but not windows of one position
        (WINDOW, Grain(8, 4, 1), {"patch_bytes": 10 * 9 * 16, "patch_rows": 10 * 3}),
        (POINT, Grain(8, 4, 1), {"patch_bytes": 0, "patch_rows": 0}),
        (POINT._replace(stride=4), Grain(8, 4, 1), {"patch_bytes": 10 * 16}),
        # products are summed in steps of sixteen
        (KernelCost("conv1x1", 20, 16, 1, 1, 8, 160, 128, 320), Grain(8, 4, 1), {"deep_macs": 8 * 16 * 32}),
        # tensor processors compute full blocks of positions
        (IMAGE, Grain(32, 32, 1), {"block_macs": 16 * 16 * 32 * 32}),
        (IMAGE, Grain(32, 32, 2), {"block_macs": 224 * 32 * 32}),
        (TOKENS, Grain(32, 32, 1), {"block_macs": 256 * 32 * 32}),
        (IMAGE._replace(in_channels=4, out_channels=4, groups=8), Grain(32, 32, 1), {"packed_macs": 16 * 16 * 32 * 32}),
    ],
)
def test_work_is_counted_in_units_that_the_processor_computes_at_once(cost, grain, units):
    assert {name: terms.get(name).units(cost, grain) for name in units} == units


#: Two trees: one splits at 10 pixels, then at 4 channels; the other is a single leaf.
TREES = Trees(
    *(("pixels", "in_channels"), (0, 5), (0, 1, 0, 0, 0, 0), (10.0, 4.0, 0.0, 0.0, 0.0, 0.0)),
    *((1, 3, 2, 3, 4, 5), (2, 4, 2, 3, 4, 5), (0.0, 0.0, 0.3, 0.1, 0.2, 0.05), -0.5, 1.0),
)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=30))
def test_trees_give_the_values_computed_by_hand(rows):
    pixels, channels = (np.array(item, dtype=float) for item in zip(*rows, strict=True))
    result = TreeModel(TREES)(SimpleNamespace(pixels=pixels, in_channels=channels))
    by_hand = [-0.5 + 0.05 + (0.3 if p > 10 else 0.1 if c <= 4 else 0.2) for p, c in rows]
    assert result == pytest.approx(by_hand)
