"""Whole networks in files of several exporters: the graph of the original module and the numbers of the runtime."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from predictors.operators import kind_of
from stretch.network.capture import capture
from stretch.network.models.onnx import read_module
from tests.stretch.network.models.onnx.oracle import check_numbers, computed, functions, net, ran, random, same

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from stretch.network.models.load import load_model  # noqa: E402


def export(module, shape, path, dynamo, opset=17):
    """Write a module with torch's newer or older exporter."""
    options = {"external_data": False, "verbose": False} if dynamo else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), (torch.zeros(shape),), str(path), dynamo=dynamo, opset_version=max(opset, 18) if dynamo else opset, **options
        )
    return path


def canonical(graph):
    """Return the operators without names, in an order that depends only on their connections.

    Exporters leave out identity operators, and fold a batch norm into a convolution with no other reader.
    """
    at, result = {}, []

    def visit(name):
        if name in at:
            return at[name]
        op = graph.by_name[name]
        reads = tuple(visit(item) for item in op.inputs)
        attrs = dict(op.attrs)
        if kind_of(op.kind).identity:
            at[name] = reads[0]
        elif op.kind == "batch_norm" and result[reads[0]][0] == "conv" and len(graph.consumers[op.inputs[0]]) == 1:
            at[name] = reads[0]
            result[reads[0]][1]["bias"] = True
        else:
            at[name] = len(result)
            result.append((op.kind, attrs, op.shape, reads))
        return at[name]

    visit(graph.output)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_b0", "mobilenet_v3_small", "regnet_x_400mf"])
def test_both_exporters_give_the_graph_of_the_module(tmp_path, name, dynamo):
    module, shape = load_model(name, weights="none").module, (1, 3, 64, 64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if key.endswith("bias"):  # an exporter would leave out a bias of zeros
                parameter.add_(torch.rand(parameter.shape, generator=generator) / 50 + 0.01)
    path = export(module, shape, tmp_path / "m.onnx", dynamo)
    result, x = read_module(path), random(shape)
    assert canonical(capture(result, shape).graph) == canonical(capture(module, shape).graph)
    check_numbers(result, torch.from_numpy(ran(path, x)), torch.from_numpy(x))


def test_int8_file_becomes_a_float_network_and_warns_what_it_left_out(tmp_path):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, name):
            self.left = [{name: random((1, 3, 64, 64), seed)} for seed in range(4)]

        def get_next(self):
            return self.left.pop() if self.left else None

    shape = (1, 3, 64, 64)
    path = export(load_model("tiny_resnet", weights="none").module, shape, tmp_path / "m.onnx", False)
    name = onnx.load(str(path)).graph.input[0].name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(str(path), str(tmp_path / "q.onnx"), Reader(name), quant_format=QuantFormat.QDQ, per_channel=True)
    module = read_module(tmp_path / "q.onnx")
    assert len(module.warnings) == 1
    assert "rounds" in module.warnings[0]
    assert "they are reals here" in module.warnings[0]
    assert canonical(capture(module, shape).graph) == canonical(capture(read_module(path), shape).graph)
    x = random(shape, 9)
    real, rounded = computed(path, x), computed(tmp_path / "q.onnx", x)
    # Rounded weights change the output by a few parts of 127.
    assert 0 < np.abs(real - rounded).max() < 0.2 * np.abs(real).max()


def test_sizes_computed_from_the_input_shape_become_constants(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["row"]),
        helper.make_node("Concat", ["row", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    stored = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    onnx.save(net(*nodes, stored=stored, shape=(2, 4, 3, 3)), str(tmp_path / "m.onnx"))
    assert functions(read_module(tmp_path / "m.onnx")) == ["flatten"]


def test_constants_of_operators_without_a_bundle_rule_are_folded(tmp_path):
    """Constants are folded with torch's function."""
    nodes = [helper.make_node("Hardmax", ["w"], ["h"], axis=-1), helper.make_node("Mul", ["x", "h"], ["y"])]
    model = net(*nodes, stored={"w": random((4, 5, 3))})
    onnx.save(model, str(tmp_path / "m.onnx"))
    x = random((1, 4, 5, 3), seed=1)
    np.testing.assert_array_equal(computed(tmp_path / "m.onnx", x), ran(model, x))


def test_doubles_of_a_file_are_read_in_single_precision(tmp_path):
    # torch's older exporter writes a sum of an arange and a Python number in double precision
    grid = numpy_helper.from_array(np.arange(3) + 0.5, "")
    nodes = [
        helper.make_node("Constant", [], ["grid"], value=grid),
        helper.make_node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["whole"], ["w"], to=TensorProto.DOUBLE),
        helper.make_node("Sub", ["grid", "d"], ["s"]),
        helper.make_node("Max", ["s", "lowest"], ["m"]),
        helper.make_node("Mul", ["m", "w"], ["y"]),
    ]
    model = net(*nodes, stored={"whole": np.int64(8), "lowest": np.float64(-1e300)})
    same(tmp_path / "m.onnx", model, random((1, 4, 5, 3), 1))


def like_tensorflow(normalised):
    """Make a model with channels last outside, first inside: convolutions between transpositions, a ReLU, a mean."""
    nodes = [
        *([helper.make_node("Sub", ["x", "mean"], ["c"])] if normalised else []),
        helper.make_node("Transpose", ["c" if normalised else "x"], ["a"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["a", "w"], ["b"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Transpose", ["r"], ["u"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["u", "v"], ["d"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["d"], ["p"]),
        helper.make_node("Squeeze", ["p", "axes"], ["y"]),
    ]
    mean = np.array([0.1, 0.2, 0.3], np.float32)
    stored = {"w": random((6, 3, 3, 3), 1), "v": random((5, 6, 1, 1), 2), "mean": mean, "axes": np.array([2, 3])}
    return net(*nodes, stored=stored, shape=("n", 8, 8, 3))


@pytest.mark.parametrize("normalised", [False, True])
def test_image_with_channels_last_is_read_with_channels_second(tmp_path, normalised):
    x, model = random((1, 8, 8, 3)), like_tensorflow(normalised)
    onnx.save(model, str(tmp_path / "m.onnx"))
    checked = read_module(tmp_path / "m.onnx", (1, 3, 8, 8))
    check_numbers(checked, torch.from_numpy(ran(model, x)), torch.from_numpy(x.transpose(0, 3, 1, 2)))
    assert checked.input_shape == (1, 3, 8, 8)
    assert any("channels last" in sentence for sentence in checked.warnings)
    captured = capture(checked, (1, 3, 8, 8))
    assert captured.refusal is None or not captured.refusal
    kinds = [op.kind for op in captured.graph.ops]
    assert [kind for kind in kinds if kind in ("conv", "relu", "global_avg_pool", "opaque")] == ["conv", "relu", "conv", "global_avg_pool"]


def if_on_size(start, output):
    """Make an `If` on a size of a tensor, as torch exports a squeeze; inner names are equal in all `If`s of a file."""

    def branch(name, *nodes, weights=()):
        return helper.make_graph(list(nodes), name, [], [onnx.ValueInfoProto(name="inner")], weights)

    factor = numpy_helper.from_array(np.float32([3]), "factor")
    doubled = branch("then", helper.make_node("Mul", [start, "factor"], ["inner"]), weights=[factor])
    other = branch("else", helper.make_node("Relu", [start], ["inner"]))
    return [
        helper.make_node("Shape", [start], [f"shape_{start}"]),
        helper.make_node("Gather", [f"shape_{start}", "axis"], [f"size_{start}"]),
        helper.make_node("Equal", [f"size_{start}", "four"], [f"four_{start}"]),
        helper.make_node("If", [f"four_{start}"], [output], then_branch=doubled, else_branch=other),
    ]


@pytest.mark.parametrize("axis", [1, 2])
def test_branch_of_an_if_on_sizes_is_part_of_the_network(tmp_path, axis):
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), *if_on_size("h", "a"), *if_on_size("a", "y")]
    model = net(*nodes, stored={"w": random((4, 4, 1, 1)), "axis": np.int64(axis), "four": np.int64(4)})
    same(tmp_path / "m.onnx", model, random((1, 4, 5, 3), 1))
