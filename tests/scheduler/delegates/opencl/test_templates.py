"""Every kernel against ONNX Runtime, with all shapes that its template distinguishes, and tuning of schedules and work groups."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.tuner import ScheduleTuner, cached_schedules, open_cache, tuned_groups
from tests.scheduler.delegates.opencl import networks

ONE = {"kernel_shape": [1, 1]}
THREE = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


def one_conv(path, shape, weight, bias=True, **attrs):
    weights = {"w": networks.numbers(*weight, seed=1)} | ({"b": networks.numbers(weight[0], seed=2)} if bias else {})
    return networks.save(path, [networks.conv("x", "y", "w", "b" if bias else "", **attrs)], {"x": shape}, ["y"], weights)


#: Kernel, shapes of input and weights, and attributes.
CONVOLUTIONS = pytest.mark.parametrize(
    ("kernel", "shape", "weight", "attrs"),
    [
        ("conv", (2, 20, 7, 9), (12, 20, 1, 1), ONE),
        ("conv", (1, 8, 1, 1), (9, 8, 1, 1), ONE),
        ("conv", (1, 6, 11, 5), (40, 6, 3, 3), THREE | {"strides": [2, 1]}),
        ("conv", (2, 9, 8, 8), (17, 9, 2, 4), {"kernel_shape": [2, 4], "dilations": [2, 1], "pads": [2, 0, 1, 3]}),
        ("conv", (1, 48, 5, 5), (48, 24, 3, 3), THREE | {"group": 2}),
        ("conv", (1, 12, 6, 6), (24, 3, 3, 3), THREE | {"group": 4}),
        ("conv", (2, 6, 5, 5), (12, 1, 3, 3), THREE | {"group": 6}),
        ("stem", (2, 3, 21, 19), (10, 3, 7, 7), {"kernel_shape": [7, 7], "strides": [2, 2], "pads": [3, 3, 3, 3]}),
        ("stem", (1, 1, 5, 3), (4, 1, 3, 3), THREE),
        ("depthwise", (2, 12, 9, 10), (12, 1, 3, 3), THREE | {"group": 12}),
        ("depthwise", (1, 9, 13, 11), (9, 1, 5, 5), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2], "strides": [2, 2], "group": 9}),
        ("depthwise", (1, 8, 7, 7), (8, 1, 3, 3), {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2], "dilations": [2, 2], "group": 8}),
    ],
)


@pytest.mark.representatives(4)
@CONVOLUTIONS
def test_convolution_takes_its_kernel_and_agrees(tmp_path, kernel, shape, weight, attrs):
    path = one_conv(tmp_path / "m.onnx", shape, weight, **attrs)
    assert kernel in networks.kernels(path, winograd="off")
    assert networks.error(path, winograd="off") <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 10, 9, 9), (2, 16, 8, 4), (1, 3, 3, 5)])
def test_winograd_agrees_at_every_border(tmp_path, shape):
    c = shape[1]
    nodes = [("Relu", ["x"], "i", {}), networks.conv("i", "c", "w", "b", **THREE), ("Add", ["c", "i"], "a", {}), ("Relu", ["a"], "y", {})]
    weights = {"w": networks.numbers(c, c, 3, 3, seed=1), "b": networks.numbers(c, seed=2)}
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": shape}, ["y"], weights)
    kernels = networks.kernels(path, winograd="on")
    assert kernels.count("winograd_in") == kernels.count("winograd_out") == 1
    assert networks.error(path, winograd="on") <= 1e-5


def test_template_of_paper_004_and_a_padded_copy_of_the_input_give_equal_results(tmp_path):
    path = one_conv(tmp_path / "m.onnx", (1, 16, 9, 9), (32, 16, 3, 3), **THREE)
    (launch,) = [launch for launch in networks.launches(path, schedule="tvm") if launch.kernel == "conv"]
    assert dict(launch.defines)["VW"] == "4"
    path = one_conv(tmp_path / "m.onnx", (1, 10, 9, 9), (12, 10, 3, 3), **THREE)
    assert networks.kernels(path, winograd="off", borders="pad").count("move") == 2
    for options in ({"schedule": "tvm"}, {"winograd": "off", "borders": "pad"}):
        assert networks.error(path, **options) <= 1e-5


@pytest.mark.parametrize(
    ("op", "constant"),
    [
        *((op, networks.numbers(*shape, seed=4)) for op in ("Add", "Mul") for shape in ((), (1,), (9, 1, 1), (1, 9, 3, 4), (4,))),
        # pads add zeros, and negative pads cut off rows or columns
        *(("Pad", np.array([0, 0, *high, 0, 0, *low])) for high, low in (((1, 0), (2, 3)), ((-1, -1), (1, 1)), ((-2, 1), (0, -3)))),
    ],
)
def test_constant_operand_of_lower_rank_and_pads(tmp_path, op, constant):
    reads = ["r", "k"] if op == "Pad" else ["k", "r"]
    shape = (2, 9, 11, 9) if op == "Pad" else (2, 9, 3, 4)
    nodes = [("Relu", ["x"], "r", {}), (op, reads, "y", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": shape}, ["y"], {"k": constant})
    assert networks.error(path) <= 1e-5


WINDOWS = {
    "one pixel": ((8, 8, 1, 1), {}),
    "winograd or direct": ((8, 8, 3, 3), {"pads": [1, 1, 0, 1]}),
    "stride": ((8, 8, 3, 3), {"strides": [2, 2], "pads": [0, 1, 1, 1]}),
    "groups": ((8, 4, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ((8, 1, 3, 3), {"group": 8, "pads": [0, 1, 1, 1]}),
}


@pytest.mark.representatives(5)
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_every_window_reads_rows_that_are_a_view(tmp_path, window, blocked):
    """The rows are of another kernel's output or of the caller's memory; the second slice cuts the result."""
    shape, attrs = WINDOWS[window]
    weights = {"w": networks.numbers(*shape, seed=3), "s": np.array([2]), "e": np.array([9]), "a": np.array([2]), "t": np.array([3])}
    nodes = [("Relu", ["x"], "r", {})] * blocked + [
        ("Slice", ["r" if blocked else "x", "s", "e", "a"], "cut", {}),
        ("Conv", ["cut", "w"], "c", attrs),
        ("Slice", ["c", "one", "t", "a"], "d", {}),
        ("Relu", ["d"], "y", {}),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 8, 11, 9)}, ["y"], weights | {"one": np.array([1])})
    assert networks.error(path) <= 1e-5


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("Concat", ["x", "x"], "y", {"axis": 3})], "channels or rows of images only"),
        ([("Resize", ["x", "", "s"], "y", {"mode": "linear"})], "nearest neighbours only"),
        ([("Slice", ["x", "one", "two", "axis"], "y", {})], "slices of channels or rows only"),
        ([("Gemm", ["m", "g"], "y", {"alpha": 2.0})], "transA, alpha or beta"),
        ([("MatMul", ["m", "m2"], "y", {})], "is computed"),
        ([networks.conv("x", "y", "v", kernel_shape=[2, 2])], "`v` is computed"),
        ([networks.conv("volume", "c", "w5"), ("BatchNormalization", ["c", *["g0"] * 4], "y", {})], "over images"),
    ],
)
def test_setting_that_no_kernel_computes_is_refused_with_the_reason(tmp_path, nodes, message):
    weights = {"s": np.array([1, 1, 2, 2], np.float32), "one": np.array([1]), "two": np.array([2]), "axis": np.array([3])}
    weights |= {"g": networks.numbers(5, 2), "g0": np.ones(3, np.float32), "w5": networks.numbers(3, 2, 3, 3, 3)}
    inputs = {"x": (1, 3, 4, 4), "m": (2, 5), "m2": (5, 2), "v": (2, 3, 2, 2), "volume": (1, 2, 4, 4, 4)}
    path = networks.save(tmp_path / "m.onnx", nodes, inputs, ["y"], weights)
    with pytest.raises(UnableError, match=message):
        networks.launches(path)


@pytest.mark.slow
@CONVOLUTIONS
def test_convolution_computed_with_half_is_within_its_precision(tmp_path, kernel, shape, weight, attrs):
    networks.needs_half()
    path = one_conv(tmp_path / "m.onnx", shape, weight, **attrs)
    for launch in networks.launches(path, half=True, arithmetic="half"):
        assert dict(launch.defines)["NATIVE"] == "1"
    assert networks.error(path, half=True, arithmetic="half") <= 1e-2
    assert networks.error(path, half=True, arithmetic="float") <= 2e-3


def test_half_sums_join_floats_before_they_lose_what_is_added(tmp_path):
    """A sum of ones in half precision stops at 2048."""
    networks.needs_half()
    weights = {"w": np.ones((8, 4096, 1, 1), np.float32)}
    path = networks.save(tmp_path / "m.onnx", [networks.conv("x", "y", "w", **ONE)], {"x": (1, 4096, 1, 2)}, ["y"], weights)
    compiled = networks.OpenCLDelegate(half=True, options=networks.Options(arithmetic="half")).compile(path)
    y = np.zeros((1, 8, 1, 2), np.float32)
    compiled.run([np.ones((1, 4096, 1, 2), np.float32)], [y])
    assert np.all(y == 4096)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("half", [False, True])
@CONVOLUTIONS
def test_convolution_that_reads_images_agrees(tmp_path, kernel, shape, weight, attrs, half):
    path = one_conv(tmp_path / "m.onnx", shape, weight, **attrs)
    results, result = networks.as_gpu(path, half=half, images=(1 << 8, 1 << 8, 1 << 16), winograd="off")
    (macros,) = [dict(item.defines) for item in result if item.kernel == kernel]
    assert int(macros["WIMAGE"]) > 0
    assert macros.get("XIMAGE") == (None if kernel == "stem" else "1")
    (expected,) = networks.run(networks.CpuDelegate(), path)
    assert np.abs(results[0] - expected).max() <= (1e-2 if half else 1e-5) * np.abs(expected).max()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize(("limit", "shape"), [(64, (2, 11, 37, 45)), (48, (1, 9, 3, 200)), (64, (1, 5, 1, 1)), (1, (1, 4, 6, 5))])
def test_pooling_of_whole_images_by_a_work_group_agrees(tmp_path, limit, shape, op, half):
    path = networks.save(tmp_path / "m.onnx", [(op, ["x"], "y", {})], {"x": shape}, ["y"], {})
    results, (*_, launch) = networks.as_gpu(path, half=half, max_local=limit, max_sizes=(limit, 1, 1))
    assert launch.kernel == "global_pool"
    assert launch.local[0] <= limit
    (expected,) = networks.run(networks.CpuDelegate(), path)
    assert np.abs(results[0] - expected).max() <= (2e-3 if half else 1e-5) * np.abs(expected).max()


@pytest.fixture
def few_candidates(monkeypatch):
    """Measure two candidates, so that few kernels are built."""
    before = ScheduleTuner.__init__
    monkeypatch.setattr(ScheduleTuner, "__init__", lambda self, *a, **k: before(self, *a, **k | {"top": 2, "rounds": 3}))


@pytest.mark.slow
def test_tuned_schedules_are_stored_and_used_by_the_next_compilation(tmp_path, few_candidates):
    path = networks.residual_block(tmp_path / "m.onnx")
    tune = OpenCLDelegate().tune(path, 60)
    assert {item.kernel for item in tune} == {"conv", "product", "winograd"}
    assert all(item.after_ms <= item.before_ms for item in tune)
    schedules = cached_schedules(open_cache(open_device(()), False))
    assert schedules == {(item.kernel, item.shape): item.choice for item in tune}
    winograd = next(item for item in tune if item.kernel == "winograd")
    assert ("winograd_in" in networks.kernels(path)) == bool(winograd.choice["USE"])
    assert networks.error(path) <= 1e-5


def test_interrupted_tuning_keeps_its_results(tmp_path, few_candidates):
    def interrupt(_):
        raise KeyboardInterrupt

    path = networks.residual_block(tmp_path / "m.onnx")
    with pytest.raises(KeyboardInterrupt):
        OpenCLDelegate().tune(path, 60, interrupt)
    kept = cached_schedules(open_cache(open_device(()), False))
    assert kept
    assert len(OpenCLDelegate().tune(path, 60)) + len(kept) == len(cached_schedules(open_cache(open_device(()), False)))


def test_equal_launches_are_measured_once(tmp_path):
    device = open_device(())
    compiled = OpenCLDelegate().compile(networks.residual_block(tmp_path / "m.onnx"))
    compiled.launches = (compiled.launches[0], replace(compiled.launches[0], node="again"))
    steps = []
    tune = list(tuned_groups(device, compiled, "fast", 60, steps.append))
    assert (len(tune), len(steps)) == (1, 2)
