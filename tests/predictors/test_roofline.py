"""Kernel times follow the physics they state, against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import UsageError
from predictors.fusion import KernelCost
from predictors.roofline import RooflinePredictor

MI9 = load_device("mi9")


def conv(cin=256, cout=256, taps=9, pixels=196, kind="conv"):
    return KernelCost(kind, cin, cout, 1, taps, pixels, cin * pixels, cout * pixels, cin * cout * taps)


def roofline(name, precision=None):
    return RooflinePredictor(MI9.processor(name), precision)


def test_time_of_a_convolution_worked_out_by_hand():
    gpu = MI9.processor("gpu")
    half, epilogue, efficiency = (q.value for q in (gpu.profile.half_outputs, gpu.profile.epilogue_macs, gpu.profile.efficiency["conv"]))
    outputs = 256 * 196
    macs_per_second = gpu.cores.peak_gops["fp16"].value * 1e9 / 2
    compute = outputs * (256 * 9 + epilogue) / (macs_per_second * efficiency * outputs / (outputs + half))
    time = roofline("gpu").time(conv())
    assert time.compute_ms == pytest.approx(compute * 1e3)
    assert time.ms == pytest.approx(time.launch_ms + max(time.compute_ms, time.memory_ms))
    assert time.bound == "compute"


def test_memory_time_worked_out_by_hand():
    cpu = MI9.processor("cpu")
    cost = KernelCost("elementwise", 1, 1, 512, 1, 3136, 2 * 512 * 3136, 512 * 3136, 0)
    size = 3 * 512 * 3136
    fits = cpu.cores.cache_kib.value * 1024 / size
    assert fits < 1
    seconds = size * (fits / (cpu.cores.cache_gbs.value * 1e9) + (1 - fits) / (cpu.cores.bandwidth_gbs.value * 1e9))
    assert roofline("cpu").time(cost).memory_ms == pytest.approx(seconds * 1e3)


@given(st.sampled_from(["cpu", "gpu", "dsp"]), st.integers(1, 600), st.integers(1, 600), st.sampled_from([1, 9, 25]), st.integers(1, 3000))
def test_more_channels_pixels_or_taps_never_take_less_time(name, cin, cout, taps, pixels):
    predictor = roofline(name)
    base = predictor.time(conv(cin, cout, taps, pixels)).ms
    for other in (
        conv(cin + 1, cout, taps, pixels),
        conv(cin, cout + 1, taps, pixels),
        conv(cin, cout, taps + 1, pixels),
        conv(cin, cout, taps, pixels + 1),
    ):
        assert predictor.time(other).ms >= base * (1 - 1e-12)


@given(st.sampled_from(["cpu", "gpu", "dsp"]), st.integers(1, 40))
def test_channels_up_to_the_slice_take_the_same_arithmetic(name, slices):
    predictor = roofline(name)
    step = MI9.processor(name).width_slice
    times = {predictor.time(conv(64, slices * step - less)).compute_ms for less in range(step)}
    assert len(times) == 1


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


def test_shallow_and_wide_beats_deep_and_narrow_by_more_on_gpu_and_dsp():
    # The same multiply-accumulates: one block of width 256 or four of width 128.
    advantage = {name: throughput(name, 256) / throughput(name, 128) for name in ("cpu", "gpu", "dsp")}
    assert min(advantage["gpu"], advantage["dsp"]) > advantage["cpu"] * 1.1


def test_reduction_is_as_parallel_as_its_inputs():
    cost = KernelCost("reduce", 1, 1, 64, 3136, 1, 64 * 3136, 64, 0)
    half = MI9.processor("gpu").profile.half_outputs.value
    serial = KernelCost("pool", 1, 1, 64, 3136, 1, 64 * 3136, 64, 0)
    gpu = roofline("gpu")
    scale = MI9.processor("gpu").profile.efficiency
    ratio = gpu.time(serial).compute_ms * scale["pool"].value / (gpu.time(cost).compute_ms * scale["reduce"].value)
    assert ratio == pytest.approx(((64 + half) / 64) / ((64 * 3136 + half) / (64 * 3136)))


def test_half_precision_halves_bytes_and_time_where_the_peak_doubles():
    full, half = roofline("gpu", "fp32").time(conv()), roofline("gpu", "fp16").time(conv())
    assert full.compute_ms == pytest.approx(2 * half.compute_ms, rel=1e-3)
    assert full.memory_ms >= 2 * half.memory_ms * (1 - 1e-12)


def test_precision_that_the_processor_lacks_is_refused():
    with pytest.raises(UsageError, match="does not run `int8`"):
        roofline("gpu", "int8")
