"""Files that are compared and the runtimes that take them."""

import hashlib
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.cores import available_cores
from scheduler.formats.tflite import open_tflite
from scheduler.tools.bench.subject import (
    UNNAMED,
    FileEnd,
    digest,
    hash_of,
    open_subject,
    prepare,
    random_arrays,
    settled,
    tflite_macs,
    unavailable,
)
from tests.scheduler.tools.bench.nets import CHANNELS, FILTERS, WIDE, conv_onnx, linear_tflite


def test_open_shapes_are_fixed_in_a_copy(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", shape=("n", CHANNELS, "h", "w"), out=("n", FILTERS, "h", "w"))
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(UsageError, match="open"):
        open_subject(str(path), {}, 0, folder)
    result = open_subject(str(path), {UNNAMED: (2, CHANNELS, 6, 5)}, 0, folder)
    assert result.model.parent == folder
    assert result.outputs["y"][1] == (2, FILTERS, 6, 5)
    assert result.macs == FILTERS * CHANNELS * 9 * 30 * 2
    onnx.checker.check_model(onnx.load(result.model))


def test_output_of_a_size_that_only_running_tells_is_known(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", out=(1, FILTERS, "h", "w"))
    assert open_subject(str(path), {}, 0, tmp_path).outputs["y"][1] == (1, FILTERS, WIDE, WIDE)


@pytest.mark.parametrize(
    ("code", "reads", "written", "macs"),
    [
        ("CONV_2D", [(1, 9, 9, 3), (8, 3, 3, 3), (8,)], (1, 9, 9, 8), 81 * 8 * 27),
        ("DEPTHWISE_CONV_2D", [(1, 9, 9, 6), (1, 5, 5, 6), (6,)], (1, 9, 9, 6), 81 * 6 * 25),
        ("TRANSPOSE_CONV", [(4,), (8, 2, 2, 3), (1, 5, 5, 3)], (1, 10, 10, 8), 25 * 3 * 8 * 4),
        ("BATCH_MATMUL", [(2, 4, 5), (2, 5, 6)], (2, 4, 6), 2 * 4 * 6 * 5),
        ("ADD", [(1, 9), (9,)], (1, 9), 0),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", [(1, 9)], (1, 9), None),
    ],
)
def test_work_of_tflite_operators_is_that_of_their_shapes(tmp_path, code, reads, written, macs):
    network = open_tflite(linear_tflite(tmp_path / "m.tflite")[0])
    tensors = [replace(network.tensors[0], shape=shape, stored=None) for shape in (*reads, written)]
    operator = replace(network.operators[0], code=code, inputs=tuple(range(len(reads))), outputs=(len(reads),), settings={})
    assert tflite_macs(replace(network, tensors=tensors, operators=[operator])) == macs


@pytest.mark.parametrize("name", ["m.onnx", "m.tflite"])
@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(1000)])
def test_damaged_file_is_refused_by_its_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StretchError, match=name):
        open_subject(str(tmp_path / name), {}, 0, tmp_path)


def test_weights_outside_of_the_files_folder_are_refused(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx")
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(StretchError, match="outside of its folder"):
        open_subject(str(path), {}, 0, tmp_path)


CORES = available_cores()


def needs(runtime):
    if unavailable(runtime) is not None:
        pytest.skip(f"{runtime} is not installed")


@pytest.mark.parametrize("rows", [1, 4])
def test_tflite_file_gives_what_numpy_gives_also_of_another_batch(tmp_path, rows):
    needs("litert")
    path, linear = linear_tflite(tmp_path / "m.tflite", opened=True)
    subject = open_subject(str(path), {"x": (rows, 5)}, 0, tmp_path)
    ready = prepare(subject, "litert", CORES[:1])
    assert ready.time() > 0
    (output,) = ready.outputs().values()
    np.testing.assert_allclose(output, linear(subject.inputs["x"]), rtol=1e-5, atol=1e-5)


IMAGE = FileEnd("x", (None, 3, None, None), "float32")


def test_hash_is_that_of_the_file_and_of_weights_beside_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "w").write_bytes(b"weights")
    assert digest("onnx", tmp_path / "m.onnx") == (hashlib.sha256(b"model").hexdigest(), 5)
    assert digest("onnx", tmp_path / "m.onnx", ["w"]) == (hashlib.sha256(b"modelweights").hexdigest(), 12)
    with pytest.raises(StretchError, match="cannot read"):
        digest("onnx", tmp_path / "m.onnx", ["gone"])


@pytest.mark.parametrize("requested", [{"x": (1, 4, 8, 8)}, {"x": (1, 3, 8)}])
def test_size_that_contradicts_the_file_is_refused(tmp_path, requested):
    with pytest.raises(UsageError, match="is requested"):
        settled(tmp_path, [IMAGE], requested)


@pytest.mark.parametrize("shape", [(1 << 15, 3, 1 << 15, 1 << 15)])
def test_huge_input_is_refused(tmp_path, shape):
    with pytest.raises(StretchError, match="has the shape"):
        settled(tmp_path, [IMAGE], {UNNAMED: shape})
    with pytest.raises(StretchError, match="has 0 inputs"):
        settled(tmp_path, [], {})


@given(st.sampled_from(["float32", "float16", "int8", "uint8", "int64", "bool"]), st.integers(0, 99))
def test_numbers_are_of_the_type_finite_and_those_of_the_seed(dtype, seed):
    first, again, other = (random_arrays({"x": (dtype, (4, 50))}, value) for value in (seed, seed, seed + 1))
    assert first["x"].dtype == np.dtype(dtype)
    assert np.isfinite(first["x"].astype(float)).all()
    assert hash_of(first) == hash_of(again) != hash_of(other)
    if dtype == "int64":
        assert set(np.unique(first["x"])) <= {0, 1}
