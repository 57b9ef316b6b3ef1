"""Whole measurements of small files on this machine."""

import numpy as np
import onnx
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.tools.bench import BenchRequest, MeasurementLength
from scheduler.tools.bench.compare import compare, largest_error
from scheduler.tools.bench.subject import unavailable
from tests.scheduler.tools.bench.nets import conv_onnx

SHORT = MeasurementLength(rounds=3, starts=2, warmup=4)


def measured(*what, **others):
    return compare(BenchRequest([str(item) for item in what], effort=SHORT, **others))


def test_same_seed_gives_the_same_input(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx")
    hashes = [measured(path, runtimes=["onnxruntime"], seed=seed).files[0].input_sha256 for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.torch
def test_bundle_is_compared_with_its_own_whole_model(tiny_bundle):
    answer = measured(tiny_bundle / "model.onnx", tiny_bundle, runtimes=["onnxruntime"])
    whole, bundle = answer.contenders
    assert (whole.runtime, bundle.runtime) == ("onnxruntime", "scheduler")
    assert bundle.max_error < 1e-3
    assert bundle.macs_ratio == pytest.approx(1, rel=0.02)


def test_file_that_no_runtime_loads_is_refused_and_one_that_some_do_is_left_out_there(tmp_path):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("NoSuchOperator", ["x"], ["y"])],
        "net",
        [onnx.helper.make_tensor_value_info("x", 1, (1, 2))],
        [onnx.helper.make_tensor_value_info("y", 1, (1, 2))],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "odd.onnx")
    with pytest.raises(StretchError, match=r"odd\.onnx"):
        measured(tmp_path / "odd.onnx")


def test_what_makes_no_sense_is_refused(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", inputs=2)
    for wrong, says in (
        ({"runtimes": ["litert"]}, "none of litert runs" if unavailable("litert") is None else "cannot be used"),
        ({"inputs": {"q": (1, 2)}}, "no file has an input `q`"),
        ({"inputs": {"": (1, 2, 3)}}, "names no input"),
        ({"cores": 10_000}, "10000 cores are requested"),
    ):
        with pytest.raises(StretchError, match=says):
            measured(path, **wrong)
    with pytest.raises(UsageError, match="0 files are given"):
        measured()


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0], [1.0, 2.0], None),
        ([1.0, np.nan], [1.0, 2.0], None),
        ([1.0, np.inf], [1.0, 2.0], None),
    ],
)
def test_largest_error_is_over_the_largest_element(got, expected, error):
    assert largest_error({"y": np.array(got)}, {"y": np.array(expected)}) == error
    assert largest_error({"y": np.array(got)}, {"z": np.array(expected)}) is None
