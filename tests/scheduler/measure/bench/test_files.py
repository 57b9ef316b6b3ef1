"""Files of other exporters: shapes, work and hashes, and what is refused."""

import numpy as np
import onnx
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.formats.tflite import open_tflite
from scheduler.measure.bench.files import open_subject, tflite_macs
from scheduler.measure.bench.subject import UNNAMED
from tests.scheduler.measure.bench.nets import CHANNELS, FILTERS, WIDE, conv_onnx, linear_tflite


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
