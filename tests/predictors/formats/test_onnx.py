"""ONNX files of other exporters, read for predictions: their kernels are those of the exported network."""

import warnings
from collections import Counter
from contextlib import suppress

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from predictors.errors import StretchError, UsageError
from predictors.formats.inference import LARGE, infer_shapes
from predictors.formats.onnx import read_onnx
from predictors.fusion import fuse
from scheduler.tools.explain.model import open_model
from tests.scheduler.bundles import onnx_model


def products(graph):
    """Kernels with multiply-accumulates, as a multiset."""
    return Counter(kernel.cost[:6] for kernel in fuse(graph, "tflite_gpu") if kernel.macs)


def write(path, nodes, shape, weights=(), more=()):
    """Write a small model with input `x`, further inputs `more` (names and shapes) and output `y`."""
    stored = {name: np.zeros(size, np.float32) for name, size in weights}
    onnx.save(onnx_model(nodes, {"x": shape, **dict(more)}, {"y": None}, stored), path)
    return path


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet", "tiny_efficientnet"])
def test_both_exporters_of_torch_give_the_kernels_of_the_module(tmp_path, name, dynamo):
    torch = pytest.importorskip("torch")
    from stretch.network.capture import capture
    from stretch.network.models.load import load_model

    loaded = load_model(name, weights="none")
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(loaded.module.eval(), (torch.zeros(loaded.input_shape),), path, dynamo=dynamo, opset_version=18)
    graph, result = capture(loaded.module, loaded.input_shape).graph, read_onnx(path)
    assert (result.macs, products(result)) == (graph.macs, products(graph))
    assert result.by_name[result.output].shape == graph.by_name[graph.output].shape


def test_node_without_an_operator_family_keeps_its_type(tmp_path):
    nodes = [helper.make_node("Einsum", ["x", "x"], ["e"], equation="nchw,nchw->nchw")]
    nodes += [helper.make_node("Mish", ["e"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    graph = read_onnx(write(tmp_path / "a.onnx", nodes, [1, 3, 8, 8]))
    assert [op.attrs.get("variant", op.kind) for op in graph.ops] == ["input", "einsum", "mish", "relu"]


def test_open_batch_is_one_and_another_shape_can_be_requested(tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")]
    path = write(tmp_path / "a.onnx", nodes, ["batch", 3, 9, 9], [("w", (8, 3, 3, 3))])
    graph = read_onnx(path)
    assert graph.by_name[graph.output].shape == (1, 8, 5, 5)
    assert read_onnx(path, (1, 3, 32, 32)).macs == 8 * 16 * 16 * 27


def test_shapes_of_several_inputs_can_be_requested_by_name_or_position(tmp_path):
    nodes = [helper.make_node("GlobalAveragePool", ["b"], ["g"]), helper.make_node("Mul", ["x", "g"], ["y"])]
    path = write(tmp_path / "a.onnx", nodes, ["n", 3, 8, 8], more=[("b", ["n", 3, 4, 4])])

    def shapes(request):
        return [op.shape for op in read_onnx(path, request).inputs]

    assert shapes(None) == [(1, 3, 8, 8), (1, 3, 4, 4)]
    assert shapes({"b": (1, 3, 6, 6)}) == [(1, 3, 8, 8), (1, 3, 6, 6)]
    assert shapes((1, 3, 9, 9)) == [(1, 3, 9, 9), (1, 3, 4, 4)]
    assert shapes([(1, 3, 9, 9), (1, 3, 6, 6)]) == [(1, 3, 9, 9), (1, 3, 6, 6)]
    for request, name in (({"c": (1, 3)}, "c"), ([(1, 3, 9, 9)] * 3, "number 3")):
        with pytest.raises(UsageError, match=f"has no input `{name}`"):
            read_onnx(path, request)


def test_quantised_weights_count_as_weights(tmp_path):
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])]
    path = write(tmp_path / "a.onnx", nodes, [1, 3, 9, 9], [("s", ())])
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((8, 3, 3, 3), np.int8), "q"))
    onnx.save(model, path)
    assert read_onnx(path).macs == 8 * 7 * 7 * 27


def test_open_sizes_and_a_model_that_computes_nothing_from_its_input_are_refused(tmp_path):
    path = write(tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])], [1, 3, "h", "w"])
    idle = write(tmp_path / "b.onnx", [helper.make_node("Relu", ["w"], ["y"])], [1, 3], [("w", (1, 3))])
    for *arguments, message in ((path, "input `x`"), (path, (1, 3, 8), "4 axes"), (idle, "computes nothing")):
        with pytest.raises(StretchError, match=message):
            read_onnx(*arguments)


FATAL = {  # shape inference of onnx 1.23 reads out of bounds: depending on the bytes there, a signal usually ends its process
    "gather": onnx_model(
        [helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-2)], {"x": [2, 3, 4]}, {"y": None}, {"i": np.zeros((2, 1), np.int64)}
    ),
    "split": onnx_model([helper.make_node("Split", ["x"], list("abcd"), num_outputs=2)], {"x": [4, 4]}, dict.fromkeys("abcd")),
}


@pytest.mark.parametrize("name", FATAL)
def test_file_that_may_crash_shape_inference_is_read_or_refused_with_one_sentence(tmp_path, name):
    onnx.save(FATAL[name], tmp_path / "m.onnx")
    with suppress(StretchError) if name == "gather" else pytest.raises(StretchError, match=r"the shapes of .*m\.onnx cannot be worked out"):
        read_onnx(tmp_path / "m.onnx")
    assert [op.op for op in open_model(tmp_path / "m.onnx").ops] == [FATAL[name].graph.node[0].op_type]


def test_shapes_do_not_depend_on_weights_that_are_left_out():
    weight = np.ones((LARGE, 3, 1, 1), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Reshape", ["c", "s"], ["y"])]
    model = onnx_model(nodes, {"x": [1, 3, 4, 4]}, {"y": None}, {"w": weight, "s": np.array([1, -1])})
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in infer_shapes(model, "m")}
    assert (shapes["c"], shapes["y"]) == ([1, LARGE, 4, 4], [1, LARGE * 16])
    assert len(model.graph.initializer) == 2
