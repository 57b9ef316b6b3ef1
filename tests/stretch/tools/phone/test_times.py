"""What a phone's benchmark program is asked and says: times of signatures, kernels and releases."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.measurements.litert import ProfiledOperator, read_op_profile
from predictors.measurements.networks import load_measurements
from scheduler.bundle.load import load_bundle
from stretch.tools.phone.measure import (
    AdbCall,
    PhoneProcessor,
    SignatureWork,
    Spoken,
    mask_of,
    open_table,
    pair,
    places,
    read_spoken,
    works,
)
from tests.scheduler.bundles import edit, two_branches
from tests.stretch.tools.phone.samples import profile, spoken, xnnpack

pytestmark = pytest.mark.torch

REQUEST = AdbCall("/p/benchmark_model", "/p/model.tflite", "s1.cpu", "cpu", 3, 50, 5)


def test_a_command_names_signature_threads_and_runs():
    words = REQUEST.command()
    assert words[0] == "/p/benchmark_model"
    assert {"--graph=/p/model.tflite", "--signature_to_run_for=s1.cpu", "--num_threads=3", "--num_runs=50", "--warmup_runs=5"} <= set(words)
    assert not any("profiling" in word for word in words)


def test_the_time_is_that_of_measured_runs_not_of_the_warm_up():
    answer = read_spoken(spoken(1.5, 0.02), "cpu")
    assert (answer.ms, answer.std_ms, answer.elsewhere) == (pytest.approx(1.5), pytest.approx(0.02), None)


def test_a_time_counts_for_a_gpu_only_if_all_of_it_ran_there():
    assert read_spoken(spoken(1.0, delegate="GPU"), "gpu").elsewhere is None
    assert "in 2 pieces" in read_spoken(spoken(1.0, delegate="GPU", partly=True), "gpu").elsewhere
    assert "does not say" in read_spoken(spoken(1.0), "gpu").elsewhere
    nothing = spoken(1.0) + "Though NPU delegate is explicitly applied, the model graph will not be executed by the delegate.\n"
    assert "nothing of it" in read_spoken(nothing, "npu").elsewhere


@pytest.mark.parametrize(
    "text", ["", "Segmentation fault\n", "INFO: count=50 first=1 avg=nan std=0\n", "Inference (avg): -5\n", "Inference (avg): 1e99\n"]
)
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(StretchError, match=r"no time|no measurement"):
        read_spoken(text, "cpu")


WINDOW = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}

GRAPH = OpGraph.build(
    "net",
    [
        Op("x", "input", attrs={"shape": (1, 3, 8, 8)}),
        Op("a", "conv", ("x",), WINDOW | {"groups": 1, "out_channels": 8, "bias": True}),
        Op("r", "relu", ("a",)),
        Op("b", "conv", ("r",), WINDOW | {"groups": 8, "out_channels": 8, "bias": True}),
        Op("s", "add", ("b", "r")),
        Op("g", "global_avg_pool", ("s",), {"keepdims": False}),
        Op("y", "linear", ("g",), {"out_features": 5, "bias": True}),
    ],
    "y",
)

ORDER = ["a", "b", "s", "g", "y"]
KERNELS = fuse(GRAPH, "tflite_cpu")


def read(folder: Path, text):
    path = folder / "profile.csv"
    path.write_text(text)
    return read_op_profile(path)


def times(result):
    return {kernel.name: ms for kernel, ms in result}


def test_operators_of_the_runtime_are_known_by_the_tensors_they_write(tmp_path):
    rows = [
        ("CONV_2D", 1.0, "[r]:0"),
        ("DEPTHWISE_CONV_2D", 2.0, "[b]:1"),
        ("ADD", 0.5, "[s]:2"),
        ("MEAN", 0.25, "[g]:3"),
        ("FULLY_CONNECTED", 0.125, "[y]:4"),
    ]
    assert times(pair(read(tmp_path, profile(rows)), KERNELS, ORDER)) == {"a": 1.0, "b": 2.0, "s": 0.5, "g": 0.25, "y": 0.125}


def test_kernels_of_a_delegate_are_known_by_their_order(tmp_path):
    rows = xnnpack([("conv", 1.0), ("depthwise", 2.0), ("elementwise", 0.5), ("pool", 0.25), ("linear", 0.125)])
    result = pair(read(tmp_path, profile(rows, subgraph=(3, "s1.cpu"))), KERNELS, ORDER)
    assert times(result) == {"a": 1.0, "b": 2.0, "y": 0.125}


@given(st.lists(st.sampled_from(["conv", "depthwise", "linear", "pool", "elementwise"]), max_size=8))
def test_times_are_given_to_all_kernels_that_multiply_or_to_none(kinds):
    lines = [ProfiledOperator(word, 1.0, name) for word, _, name in xnnpack([(kind, 1.0) for kind in kinds])]
    result = pair(lines, KERNELS, ORDER) if lines else []
    assert len(result) in (0, 3)
    assert (len(result) == 3) == ([kind for kind in kinds if kind in ("conv", "depthwise", "linear")] == ["conv", "depthwise", "linear"])


@pytest.fixture
def bundle(tmp_path):
    path = two_branches(tmp_path / "bundle", 1, ("cpu", "gpu", "dsp"))
    edit(path, lambda data: [sub.update(precision="int8") for sub in data["subgraphs"] if sub["processor"] == "dsp"])
    return load_bundle(path)


def test_each_signature_is_measured_on_what_computes_its_precision(bundle):
    result = works(bundle, places(load_device("mi9"), None, npu=True))
    pairs = {(work.signature, work.place.family, work.precision) for work in result}
    assert {item for item in pairs if item[0] == "s1.cpu"} == {("s1.cpu", "cpu", "fp32"), ("s1.cpu", "gpu", "fp16")}
    assert {item for item in pairs if item[0] == "s1.dsp"} == {("s1.dsp", "cpu", "int8"), ("s1.dsp", "dsp", "int8")}
    assert not any(signature.endswith("join") for signature, _, _ in pairs)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_a_mask_has_a_bit_for_each_core(cores):
    assert mask_of(",".join(map(str, sorted(cores)))) == sum(1 << core for core in cores)


def test_ranges_of_cores_are_masks_and_no_cores_are_none():
    assert (mask_of("4-6"), mask_of("0,7"), mask_of(None)) == (0x70, 0x81, 0)
    for text in ("", "a", "6-4", "4-", "64", "-1", "1,,2", "²"):
        with pytest.raises(UsageError, match="names no cores"):
            mask_of(text)


CPU = PhoneProcessor("cpu", "cpu", "3med", 3)


@pytest.fixture
def timing_bundle(tmp_path):
    return load_bundle(two_branches(tmp_path / "bundle"))


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "benchmark_model"
    path.write_text("one release")
    return path


def work(signature="stem"):
    return SignatureWork(signature, "stem", f"tiny:{signature}", "fp32", CPU)


def test_times_are_kept_with_the_release_that_took_them(timing_bundle, program, tmp_path):
    open_table(tmp_path / "m", "Pixel-6", program, [work()]).add(timing_bundle, work(), Spoken(1.5, 0.1, None), [])
    program.write_text("another release")
    open_table(tmp_path / "m", "Pixel-6", program, [work()]).add(timing_bundle, work(), Spoken(1.2, None, None), [])
    rows = load_measurements(tmp_path / "m").latencies
    assert [(row.ms, row.std_ms) for row in rows] == [(1.5, 0.1), (1.2, None)]
    assert len({row.runtime for row in rows}) == 2
