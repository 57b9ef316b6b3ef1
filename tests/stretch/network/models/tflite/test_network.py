"""Whole networks: those that nn-stretch writes are the graph of the module again, those of others compute what LiteRT does."""

import numpy as np
import pytest
import torch

from predictors.errors import StretchError, UsageError
from scheduler.formats.tflite import ANY_TFLITE
from stretch.export.onnx import save_onnx, to_numpy, to_onnx
from stretch.export.tflite.source import read_source
from stretch.network.capture import capture
from stretch.network.models.load import load_model
from stretch.network.models.tflite import read_module
from tests.scheduler.delegates import graphs
from tests.stretch.network.models.onnx.oracle import check_numbers, functions, random
from tests.stretch.network.models.onnx.test_network import canonical
from tests.stretch.network.models.tflite.files import agrees, model, op, ran, to_first, write

pytest.importorskip("ai_edge_litert")

pytestmark = pytest.mark.torch


def exported(name, shape, folder):
    """A network's module, its graph, and the TFLite file that nn-stretch writes of it."""
    module = load_model(name, weights="none").module
    captured = capture(module, shape)
    save_onnx(to_onnx(captured.graph, to_numpy(captured.weights)), folder / "m.onnx")
    source = read_source(folder / "m.onnx")
    (folder / "m.tflite").write_bytes(graphs.tflite_bytes(source.graph, source))
    return module, captured.graph, folder / "m.tflite"


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", "tiny_efficientnet", "tiny_regnet"])
def test_file_of_a_network_is_the_graph_of_its_module(tmp_path, name):
    module, graph, path = exported(name, (1, 3, 32, 32), tmp_path)
    result = read_module(path)
    assert canonical(capture(result, (1, 3, 32, 32)).graph) == canonical(graph)
    check_numbers(result, module, torch.from_numpy(random((1, 3, 32, 32))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "shufflenet_v2_x0_5", "squeezenet1_1", "convnext_tiny"])
def test_file_computes_what_its_module_does(tmp_path, name):
    module, _, path = exported(name, (1, 3, 64, 64), tmp_path)
    check_numbers(read_module(path), module, torch.from_numpy(random((1, 3, 64, 64))))


def test_weights_that_are_rounded_by_channel_are_those_of_the_runtime(tmp_path):
    """Reals everywhere but in the weights, which is called the dynamic range."""
    weight = np.random.default_rng(1).integers(-127, 128, (3, 3, 3, 4)).astype(np.int8)
    scales = {"w": (np.array([0.01, 0.02, 0.005], np.float32), np.zeros(3, np.int64), 0)}
    operators = [op("DEQUANTIZE", ["w"], ["r"]), op("CONV_2D", ["x", "r", "b"], table="Conv2DOptions", stride_h=1, stride_w=1)]
    result = agrees(write(tmp_path / "m.tflite", *operators, stored={"w": weight, "b": random((3,))}, scales=scales))
    assert functions(result) == ["Conv2d"]
    assert result.warnings == []


def test_input_of_whole_numbers_is_of_the_reals_that_they_stand_for(tmp_path):
    scales = {"x": (np.float32(0.5), 3, 0), "q": (np.float32(0.5), 3, 0)}
    path = write(tmp_path / "m.tflite", op("DEQUANTIZE", ["x"], ["r"]), op("NEG", ["r"]), kinds={"x": "uint8"}, scales=scales)
    x = np.arange(120, dtype=np.uint8).reshape(1, 6, 5, 4)
    check_numbers(read_module(path), torch.from_numpy(to_first(ran(path, x))), torch.from_numpy(to_first(0.5 * (x.astype(np.float32) - 3))))


def test_input_whose_channels_are_second_in_the_file_is_read_so(tmp_path):
    """Converters of torch's networks begin with a transposition."""
    stored = {"mean": np.float32(0.3), "last": np.array([0, 2, 3, 1], np.int32), "w": random((3, 3, 3, 6), 1), "b": random((3,))}
    operators = [
        op("SUB", ["x", "mean"], ["c"], "SubOptions"),
        op("TRANSPOSE", ["c", "last"], ["t"]),
        op("CONV_2D", ["t", "w", "b"], table="Conv2DOptions", stride_h=1, stride_w=1),
    ]
    path = write(tmp_path / "m.tflite", *operators, stored=stored, shape=(1, 6, 5, 4))
    module = read_module(path)
    assert module.input_shape == (1, 6, 5, 4)
    assert functions(module) == ["sub", "Conv2d"]
    agrees(path)


def test_another_size_of_the_image_is_taken_and_other_channels_are_not(tmp_path):
    stored = {"w": random((3, 3, 3, 4), 1), "b": random((3,))}
    path = write(tmp_path / "m.tflite", op("CONV_2D", ["x", "w", "b"], table="Conv2DOptions", stride_h=1, stride_w=1), stored=stored)
    assert read_module(path).input_shape == (1, 4, 6, 5)
    assert read_module(path, (2, 4, 9, 8))(torch.zeros(2, 4, 9, 8)).shape == (2, 3, 9, 8)
    with pytest.raises(UsageError, match="has 4 along axis 1, 3 is given"):
        read_module(path, (1, 3, 6, 5))
    with pytest.raises(UsageError, match="has 4 axes, a shape of 3 is given"):
        read_module(path, (4, 6, 5))


def test_input_of_words_is_refused_as_that_of_a_module_is(tmp_path):
    with pytest.raises(StretchError, match="takes whole numbers as its input `x`, and inputs are real numbers here"):
        read_module(write(tmp_path / "m.tflite", op("ABS", ["x"]), kinds={"x": "int32"}))


def test_length_that_the_file_leaves_open_must_be_given(tmp_path):
    tables = model(op("RELU", ["x"]), shape=(1, 1))
    tables["subgraphs"][0]["tensors"][0]["shape_signature"] = [-1, -1]
    (tmp_path / "m.tflite").write_bytes(bytes(ANY_TFLITE.encode(tables)))
    with pytest.raises(UsageError, match=r"the size of the input `x` of .* is open"):
        read_module(tmp_path / "m.tflite")
    x = random((2, 7))
    assert np.array_equal(read_module(tmp_path / "m.tflite", x.shape)(torch.from_numpy(x)).numpy(), np.maximum(x, 0))
