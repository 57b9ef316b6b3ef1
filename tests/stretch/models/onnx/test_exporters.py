"""Structures that exporters of other frameworks write, held against ONNX Runtime and against the graph that is meant."""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from stretch.capture import capture
from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import functions, net
from tests.stretch.models.onnx.oracle import random

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def check(path, model, x, own=None):
    """Assert that the module of a file computes what the runtime does, for `own` if it reads its input in another order."""
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [want] = session.run(None, {session.get_inputs()[0].name: x})
    found = read_module(path, None if own is None else own.shape)
    with torch.no_grad():
        got = found(torch.from_numpy(x if own is None else own)).numpy()
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-4 * max(1.0, float(np.abs(want).max()))
    return found


def node(op, reads, writes, **attrs):
    return helper.make_node(op, reads, [writes], **attrs)


def of_tensorflow(normalised):
    """Channels last outside, first within: a convolution between two transpositions, a rectifier, another one, a mean."""
    nodes = [node("Sub", ["x", "mean"], "c")] if normalised else []
    nodes += [
        node("Transpose", ["c" if normalised else "x"], "a", perm=[0, 3, 1, 2]),
        node("Conv", ["a", "w"], "b", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Transpose", ["b"], "t", perm=[0, 2, 3, 1]),
        node("Relu", ["t"], "r"),
        node("Transpose", ["r"], "u", perm=[0, 3, 1, 2]),
        node("Conv", ["u", "v"], "d", kernel_shape=[1, 1]),
        node("GlobalAveragePool", ["d"], "p"),
        node("Squeeze", ["p", "axes"], "y"),
    ]
    mean = np.array([0.1, 0.2, 0.3], np.float32)
    stored = {"w": random((6, 3, 3, 3), 1), "v": random((5, 6, 1, 1), 2), "mean": mean, "axes": np.array([2, 3])}
    return net(*nodes, stored=stored, shape=("n", 8, 8, 3))


@pytest.mark.parametrize("normalised", [False, True])
def test_image_whose_channels_are_last_is_read_with_channels_second(tmp_path, normalised):
    x = random((1, 8, 8, 3))
    found = check(tmp_path / "m.onnx", of_tensorflow(normalised), x, np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    assert found.input_shape == (1, 3, 8, 8)
    assert any("channels last" in sentence for sentence in found.warnings)
    captured = capture(found, (1, 3, 8, 8))
    assert captured.refusal is None or not captured.refusal
    kinds = [each.kind for each in captured.graph.ops]
    assert [kind for kind in kinds if kind in ("conv", "relu", "global_avg_pool", "opaque")] == ["conv", "relu", "conv", "global_avg_pool"]


def test_image_that_is_also_read_as_it_is_stays_so(tmp_path):
    nodes = [node("Transpose", ["x"], "a", perm=[0, 3, 1, 2]), node("Softmax", ["x"], "s", axis=-1), node("Flatten", ["s"], "f")]
    nodes += [node("Flatten", ["a"], "g"), node("Concat", ["f", "g"], "y", axis=1)]
    assert check(tmp_path / "m.onnx", net(*nodes, shape=(1, 4, 5, 3)), random((1, 4, 5, 3))).input_shape == (1, 4, 5, 3)


class AnchorHead(torch.nn.Module):
    """Boxes of a detector whose cells are counted in reals: the expectation of each distance, from the centre of its cell."""

    def __init__(self, bins=4):
        super().__init__()
        self.body, self.down = torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.Conv2d(8, 8, 3, 2, 1)
        self.boxes = torch.nn.ModuleList(torch.nn.Conv2d(8, 4 * bins, 1) for _ in range(2))
        self.register_buffer("distances", torch.arange(float(bins)))

    def forward(self, x):
        fine = self.body(x)
        found = []
        for stride, head, level in zip((2, 4), self.boxes, (fine, self.down(fine)), strict=True):
            height, width = level.shape[2:]
            rows, columns = torch.arange(end=height, dtype=x.dtype) + 0.5, torch.arange(end=width, dtype=x.dtype) + 0.5
            rows, columns = torch.meshgrid(rows, columns, indexing="ij")
            centres = torch.stack((columns, rows), -1).view(-1, 2).transpose(0, 1)
            share = head(level).view(x.shape[0], 4, -1, height * width).softmax(2)
            near, far = (share * self.distances.view(1, 1, -1, 1)).sum(2).chunk(2, 1)
            found.append(torch.cat(((2 * centres + far - near) / 2, near + far), 1) * stride)
        return torch.cat(found, 2)


def test_detector_that_counts_the_cells_of_an_open_size_in_reals_is_read(tmp_path):
    torch.manual_seed(0)
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            AnchorHead(),
            (torch.zeros(1, 3, 32, 32),),
            tmp_path / "e.onnx",
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            dynamic_axes=axes,
        )
    model = onnx.load(tmp_path / "e.onnx")
    counted = {node.input[0] for node in model.graph.node if node.op_type == "Range"}
    assert counted
    x = random((1, 3, 24, 40))
    found = check(tmp_path / "m.onnx", model, x, x)
    assert capture(found, x.shape).graph.output


def test_weights_that_several_operators_share_are_told_to_be_copies(tmp_path):
    nodes = [node("Gemm", ["x", "w"], "a"), node("Tanh", ["a"], "b"), node("Gemm", ["b", "w"], "c"), node("Tanh", ["c"], "d")]
    x = random((1, 40))
    shared = check(
        tmp_path / "m.onnx",
        net(*nodes, node("Gemm", ["d", "v"], "y"), stored={"w": random((40, 40), 1), "v": random((40, 9), 2)}, shape=(1, 40)),
        x,
    )
    assert [sentence for sentence in shared.warnings if "share weights" in sentence and "1,600 of them copies" in sentence]
    several = net(*nodes[:3], stored={"w": random((40, 40), 1)}, shape=(1, 40))
    several.graph.node[2].input[1] = "v"
    several.graph.initializer.append(onnx.numpy_helper.from_array(random((40, 40), 2), "v"))
    several.graph.node[2].output[0] = "y"
    assert not check(tmp_path / "n.onnx", several, x).warnings


def test_orders_of_axes_that_undo_each_other_are_none(tmp_path):
    nodes = [node("Relu", ["x"], "r"), node("Transpose", ["r"], "a", perm=[0, 2, 3, 1]), node("Transpose", ["a"], "b", perm=[0, 3, 1, 2])]
    found = check(tmp_path / "m.onnx", net(*nodes, node("Abs", ["b"], "y")), random((1, 4, 5, 3)))
    assert functions(found) == ["relu", "abs"]


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 21])
def test_sizes_that_are_worked_out_of_the_input_fold_in_every_opset(tmp_path, opset):
    axes = {"axes": [0]} if opset < 13 else {}
    nodes = [
        node("Shape", ["x"], "s"),
        node("Gather", ["s", "zero"], "n", axis=0),
        helper.make_node("Unsqueeze", ["n"] if axes else ["n", "front"], ["row"], **axes),
        node("Concat", ["row", "rest"], "sizes", axis=0),
        node("Reshape", ["x", "sizes"], "flat"),
        node("Identity", ["flat"], "same"),
        node("MatMul", ["same", "w"], "h"),
        node("Add", ["h", "b"], "y"),
    ]
    stored = {"zero": np.array(0), "front": np.array([0]), "rest": np.array([-1]), "w": random((60, 5)), "b": random((5,), 1)}
    found = check(tmp_path / "m.onnx", net(*nodes, stored=stored, shape=("batch", 4, 5, 3), opset=opset), random((1, 4, 5, 3)))
    assert functions(found) == ["flatten", "Linear"]


def test_weights_that_are_inputs_too_and_constants_among_the_nodes_are_stored(tmp_path):
    value = helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(random((6, 4, 1, 1))))
    model = net(value, node("Conv", ["x", "w", "b"], "y"), stored={"b": random((6,), 1)})
    model.graph.input.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [6]))
    assert functions(check(tmp_path / "m.onnx", model, random((1, 4, 5, 3)))) == ["Conv2d"]


@pytest.mark.parametrize("opset", [9, 11, 14])
def test_hard_swish_of_several_nodes_is_one(tmp_path, opset):
    nodes = [node("HardSigmoid", ["x"], "g", alpha=1 / 6, beta=0.5), node("Mul", ["x", "g"], "y")]
    assert functions(check(tmp_path / "m.onnx", net(*nodes, opset=opset), random((1, 4, 5, 3), scale=4))) == ["hardswish"]


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_bounds_are_attributes_or_inputs(tmp_path, opset):
    clip = node("Clip", ["x"], "y", min=0.0, max=6.0) if opset < 11 else node("Clip", ["x", "low", "high"], "y")
    stored = {} if opset < 11 else {"low": np.float32(0), "high": np.float32(6)}
    assert functions(check(tmp_path / "m.onnx", net(clip, stored=stored, opset=opset), random((1, 4, 5, 3), scale=5))) == ["relu6"]


def test_batch_norm_that_is_not_folded_is_a_layer(tmp_path):
    names = ["s", "b", "m", "v"]
    stored = {name: np.abs(random((6,), seed)) + np.float32(0.1) for seed, name in enumerate(names)} | {"w": random((6, 4, 3, 3))}
    nodes = [node("Conv", ["x", "w"], "c"), node("BatchNormalization", ["c", *names], "n"), node("Relu", ["n"], "y")]
    assert functions(check(tmp_path / "m.onnx", net(*nodes, stored=stored), random((1, 4, 5, 3)))) == ["Conv2d", "BatchNorm2d", "relu"]
