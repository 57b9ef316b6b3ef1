from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.measurements.litert import Operator, read_op_profile
from stretch.phone.measure import pair
from tests.stretch.phone.samples import profile, xnnpack

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


def times(found):
    return {kernel.name: ms for kernel, ms in found}


def test_operators_of_the_runtime_are_known_by_the_tensors_they_write(tmp_path):
    rows = [
        ("CONV_2D", 1.0, "[r]:0"),
        ("DEPTHWISE_CONV_2D", 2.0, "[b]:1"),
        ("ADD", 0.5, "[s]:2"),
        ("MEAN", 0.25, "[g]:3"),
        ("FULLY_CONNECTED", 0.125, "[y]:4"),
    ]
    assert times(pair(read(tmp_path, profile(rows)), KERNELS, ORDER)) == {"a": 1.0, "b": 2.0, "s": 0.5, "g": 0.25, "y": 0.125}


def test_what_pads_for_a_kernel_counts_with_it(tmp_path):
    rows = [("PAD", 0.5, "[a.padded]:0"), ("CONV_2D", 1.0, "[a]:1")]
    assert times(pair(read(tmp_path, profile(rows)), KERNELS, ORDER)) == {"a": 1.5}


def test_kernels_of_a_delegate_are_known_by_their_order(tmp_path):
    rows = xnnpack([("conv", 1.0), ("depthwise", 2.0), ("elementwise", 0.5), ("pool", 0.25), ("linear", 0.125)])
    found = pair(read(tmp_path, profile(rows, subgraph=(3, "s1.cpu"))), KERNELS, ORDER)
    assert times(found) == {"a": 1.0, "b": 2.0, "y": 0.125}


def test_kernels_of_a_gpu_are_known_by_their_order(tmp_path):
    kernels = fuse(GRAPH, "tflite_gpu")
    rows = [
        ("convolution_2d 1", 1.0, "Delegate/convolution_2d 1:0"),
        ("depthwise_convolution 3 -> add 4", 2.0, "Delegate/depthwise_convolution 3 -> add 4:1"),
    ]
    rows += [("mean 5", 0.5, "Delegate/mean 5:2"), ("fully_connected 6", 0.25, "Delegate/fully_connected 6:3")]
    assert times(pair(read(tmp_path, profile(rows)), kernels, ORDER)) == {"a": 1.0, "b": 2.0, "y": 0.25}


@pytest.mark.parametrize(
    "kinds", [["conv", "depthwise"], ["depthwise", "conv", "linear"], ["conv", "conv", "linear"], ["conv", "depthwise", "linear", "linear"]]
)
def test_another_row_of_kernels_gives_no_times(tmp_path, kinds):
    assert pair(read(tmp_path, profile(xnnpack([(kind, 1.0) for kind in kinds]))), KERNELS, ORDER) == []


def test_what_is_told_twice_counts_once(tmp_path):
    rows = xnnpack([("conv", 1.0), ("depthwise", 2.0), ("linear", 0.125)])
    assert [each.ms for each in read(tmp_path, profile(rows, inside=rows))] == [1.0, 2.0, 0.125]


@given(st.lists(st.sampled_from(["conv", "depthwise", "linear", "pool", "elementwise"]), max_size=8))
def test_times_are_given_to_all_kernels_that_multiply_or_to_none(kinds):
    lines = [Operator(word, 1.0, name) for word, _, name in xnnpack([(kind, 1.0) for kind in kinds])]
    found = pair(lines, KERNELS, ORDER) if lines else []
    assert len(found) in (0, 3)
    assert (len(found) == 3) == ([kind for kind in kinds if kind in ("conv", "depthwise", "linear")] == ["conv", "depthwise", "linear"])
