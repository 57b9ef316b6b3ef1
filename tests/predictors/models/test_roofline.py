"""Kernel times follow the physics they state, against figures worked out by hand."""

import dataclasses

import pytest
from msgspec import Struct
from msgspec.structs import replace

from predictors.errors import UsageError
from predictors.fusion import KernelCost
from predictors.models.roofline import RooflinePredictor
from tests.predictors.specified import specified

MI9 = specified("mi9")


def conv(cin=256, cout=256, taps=9, pixels=196, kind="conv"):
    return KernelCost(kind, cin, cout, 1, taps, pixels, cin * pixels, cout * pixels, cin * cout * taps)


def roofline(name, precision=None):
    return RooflinePredictor(MI9.processor(name), precision)


def processor(**changes):
    """A processor of round numbers: 10⁶ multiply-accumulates a ms, nothing else that takes time, unless changed."""
    arguments = MI9.processor("cpu")
    number = {
        "launch_us": 0.0,
        "half_outputs": 0.0,
        "epilogue_macs": 0.0,
        "width_slice": 1.0,
        "reduce_slice": 1.0,
        "efficiency": 1.0,
        "scaling": 1.0,
        "bandwidth_gbs": 1e9,
        "cache_kib": 1.0,
        "cache_gbs": 1e9,
    } | changes

    def stated(what):
        return {name: replace(old, value=number[name]) for name in number if isinstance(old := getattr(what, name, None), Struct)}

    peak = {"fp32": replace(arguments.cores.peak_gops["fp32"], value=2.0)}
    rates = {kind: replace(ratio, value=number["efficiency"]) for kind, ratio in arguments.profile.efficiency.items()}
    return dataclasses.replace(
        arguments,
        profile=replace(arguments.profile, **stated(arguments.profile), efficiency=rates),
        cores=replace(arguments.cores, **stated(arguments.cores), peak_gops=peak),
    )


#: 10 000 outputs of 100 products each: 10⁶ multiply-accumulates, so 1 ms.
PRODUCTS = KernelCost("conv", 10, 10, 1, 10, 1000, 1, 1, 0)


@pytest.mark.parametrize(
    ("changes", "ms"),
    [
        ({}, 1.0),
        ({"launch_us": 500.0}, 1.5),
        ({"efficiency": 0.5}, 2.0),
        ({"scaling": 0.25}, 4.0),
        ({"half_outputs": 10_000.0}, 2.0),
        ({"half_outputs": 30_000.0}, 4.0),
        ({"epilogue_macs": 100.0}, 2.0),
        ({"width_slice": 16.0}, 1.6),
        ({"reduce_slice": 4.0}, 1.2),
        ({"width_slice": 16.0, "reduce_slice": 4.0, "launch_us": 80.0}, 2.0),
    ],
)
def test_each_effect_on_arithmetic_takes_the_time_of_round_numbers(changes, ms):
    time = RooflinePredictor(processor(**changes), "fp32").time(PRODUCTS)
    assert time.ms == pytest.approx(ms)
    assert time.launch_ms + time.compute_ms == pytest.approx(ms)


def test_slices_of_one_channel_a_group_run_over_the_groups():
    depthwise = KernelCost("depthwise", 1, 1, 10, 10, 10_000, 1, 1, 0)
    assert RooflinePredictor(processor(width_slice=16.0, reduce_slice=4.0), "fp32").time(depthwise).ms == pytest.approx(1.6)


def test_reduction_is_as_parallel_as_its_inputs():
    # 1 000 sums of 1 000 each: 10⁶ steps, half of them lost where as many could run at once as there are inputs.
    half = processor(half_outputs=1e6)
    assert RooflinePredictor(half, "fp32").time(KernelCost("reduce", 1, 1, 1000, 1000, 1, 1, 1, 0)).ms == pytest.approx(2.0)
    assert RooflinePredictor(half, "fp32").time(KernelCost("pool", 1, 1, 1000, 1000, 1, 1, 1, 0)).ms == pytest.approx(1001.0)


@pytest.mark.parametrize(
    ("reads", "writes", "weights", "ms"),
    [
        (128, 128, 0, 1.0),  # 1 024 bytes fit: 1 024 a ms
        (384, 128, 0, 3.0),  # of 2 048 bytes half fit: 1 ms, and 2 ms for the others
        (0, 0, 128, 1.0),  # 512 bytes of weights come from DRAM: 512 a ms
        (384, 128, 512, 7.5),  # of 4 096 bytes a quarter fits: 0.5 ms and 3 ms for activations, 4 ms for weights
    ],
)
def test_memory_takes_the_time_of_round_numbers(reads, writes, weights, ms):
    slow = processor(cache_kib=1.0, cache_gbs=1024e-6, bandwidth_gbs=512e-6)
    time = RooflinePredictor(slow, "fp32").time(KernelCost("elementwise", 1, 1, 1, 1, 1, reads, writes, weights))
    assert time.memory_ms == pytest.approx(ms)
    assert time.bound == "memory"
    assert time.ms == pytest.approx(ms)


def throughput(name, width):
    """Multiply-accumulates per ms of a bottleneck's three convolutions at 14×14."""
    kernels = [conv(4 * width, width, 1, kind="conv1x1"), conv(width, width, 9), conv(width, 4 * width, 1, kind="conv1x1")]
    predictor = roofline(name)
    return 17 * width * width * 196 / sum(predictor.time(k).ms for k in kernels)


def test_width_raises_the_rate_of_gpu_and_dsp_much_more_than_that_of_the_cpu():
    # Paper 003, figure 7: wide operators use a GPU better; a CPU's rate is flat.
    gain = {name: throughput(name, 256) / throughput(name, 64) for name in ("cpu", "gpu", "dsp")}
    assert gain["gpu"] > 1.5
    assert gain["dsp"] > 1.5
    assert gain["cpu"] < 1.25


def test_precision_that_the_processor_lacks_is_refused():
    with pytest.raises(UsageError, match="does not run `int8`"):
        roofline("gpu", "int8")
