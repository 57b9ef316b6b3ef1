"""Files of other exporters: shapes, work and hashes, and what is refused."""

import hashlib

import numpy as np
import onnx
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.formats.tflite import open_tflite
from scheduler.measure.bench.files import hash_again, open_subject, tflite_macs
from scheduler.measure.bench.subject import UNNAMED
from tests.scheduler.measure.bench.nets import CHANNELS, CONV_MACS, FILTERS, LINEAR_MACS, WIDE, conv_onnx, linear_tflite


def test_onnx_file_tells_its_work_and_is_loaded_as_it_is(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx")
    found = open_subject(str(path), {}, 0, tmp_path)
    assert (found.kind, found.macs, found.model) == ("onnx", CONV_MACS, path)
    assert (found.sha256, found.bytes) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
    assert found.outputs == {"y": ("float32", (1, FILTERS, WIDE, WIDE))}
    assert hash_again("onnx", path) == found.sha256


def test_open_shapes_are_fixed_in_a_copy(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", shape=("n", CHANNELS, "h", "w"), out=("n", FILTERS, "h", "w"))
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(UsageError, match="open"):
        open_subject(str(path), {}, 0, folder)
    found = open_subject(str(path), {UNNAMED: (2, CHANNELS, 6, 5)}, 0, folder)
    assert found.model.parent == folder
    assert found.outputs["y"][1] == (2, FILTERS, 6, 5)
    assert found.macs == FILTERS * CHANNELS * 9 * 30 * 2
    onnx.checker.check_model(onnx.load(found.model))


def test_output_of_a_size_that_only_running_tells_is_known(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", out=(1, FILTERS, "h", "w"))
    assert open_subject(str(path), {}, 0, tmp_path).outputs["y"][1] == (1, FILTERS, WIDE, WIDE)


def test_tflite_file_of_an_open_batch_has_one(tmp_path):
    path, _ = linear_tflite(tmp_path / "m.tflite", opened=True)
    found = open_subject(str(path), {}, 0, tmp_path)
    assert found.inputs["x"].shape == (1, 5)
    assert found.macs == LINEAR_MACS
    wider = open_subject(str(path), {"x": (3, 5)}, 0, tmp_path)
    assert (wider.inputs["x"].shape, wider.macs) == ((3, 5), None)


@pytest.mark.parametrize(
    ("code", "reads", "made", "macs"),
    [
        ("CONV_2D", [(1, 9, 9, 3), (8, 3, 3, 3), (8,)], (1, 9, 9, 8), 81 * 8 * 27),
        ("DEPTHWISE_CONV_2D", [(1, 9, 9, 6), (1, 5, 5, 6), (6,)], (1, 9, 9, 6), 81 * 6 * 25),
        ("TRANSPOSE_CONV", [(4,), (8, 2, 2, 3), (1, 5, 5, 3)], (1, 10, 10, 8), 25 * 3 * 8 * 4),
        ("BATCH_MATMUL", [(2, 4, 5), (2, 5, 6)], (2, 4, 6), 2 * 4 * 6 * 5),
        ("ADD", [(1, 9), (9,)], (1, 9), 0),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", [(1, 9)], (1, 9), None),
    ],
)
def test_work_of_tflite_operators_is_that_of_their_shapes(tmp_path, code, reads, made, macs):
    from dataclasses import replace

    network = open_tflite(linear_tflite(tmp_path / "m.tflite")[0])
    tensors = [replace(network.tensors[0], shape=shape, stored=None) for shape in (*reads, made)]
    operator = replace(network.operators[0], code=code, inputs=tuple(range(len(reads))), outputs=(len(reads),), settings={})
    assert tflite_macs(replace(network, tensors=tensors, operators=[operator])) == macs


@pytest.mark.parametrize("name", ["m.onnx", "m.tflite"])
@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(1000)])
def test_damaged_file_is_refused_by_its_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StretchError, match=name):
        open_subject(str(tmp_path / name), {}, 0, tmp_path)


def test_missing_file_and_folder_that_is_no_bundle_are_refused(tmp_path):
    for name in ("gone.onnx", "gone.tflite", "."):
        with pytest.raises(StretchError):
            open_subject(str(tmp_path / name), {}, 0, tmp_path)


def test_weights_outside_of_the_files_folder_are_refused(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", weights=np.zeros((FILTERS, CHANNELS, 3, 3), np.float32))
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(StretchError, match="outside of its folder"):
        open_subject(str(path), {}, 0, tmp_path)


def test_input_of_words_is_refused(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", value=onnx.TensorProto.STRING)
    with pytest.raises(StretchError, match="no tensor of plain numbers"):
        open_subject(str(path), {}, 0, tmp_path)
