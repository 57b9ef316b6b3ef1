import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from scheduler.formats.int8_edges import edges
from stretch.export.onnx import to_onnx
from stretch.quantize.compare import loss
from stretch.quantize.qdq import quantise
from stretch.quantize.replay import runner

SHAPE = (1, 6, 8, 8)


def samples(count=12, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    return [(np.maximum(random.normal(size=SHAPE), 0) * scale).astype(np.float32) for _ in range(count)]


@pytest.fixture(scope="module")
def model(floats):
    """A 3×3 convolution and a ReLU, float."""
    return onnx.load(floats / "s1.dsp.onnx")


@pytest.fixture(scope="module")
def int8(model):
    return quantise(model, samples())


def test_result_keeps_a_cosine_of_at_least_0_999_on_images_it_was_not_calibrated_with(model, int8):
    fresh = samples(8, seed=5)
    expected, got = runner(model), runner(int8)
    assert loss((expected(x), got(x)) for x in fresh).cosine >= 0.999


def test_edges_stay_float_and_their_scales_span_what_was_seen(model, int8):
    assert int8.graph.input[0].type.tensor_type.elem_type == int8.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    run = runner(model)
    (read,), (written,) = (own.values() for own in edges(int8))
    for edge, seen in ((read, samples()), (written, [run(x) for x in samples()])):
        low, high = min(0, *(float(x.min()) for x in seen)), max(float(x.max()) for x in seen)
        assert edge.scale == pytest.approx((high - low) / 255, rel=0.02)
        assert edge.zero_point == pytest.approx(-low / edge.scale, abs=1)


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_activation_that_comes_first_is_rounded_once_in_a_scale_that_begins_at_zero(activation):
    conv = {"out_channels": 4, "kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "groups": 1, "bias": False}
    ops = [Op("x", "input", attrs={"shape": SHAPE}), Op("first", activation, ("x",)), Op("y", "conv", ("first",), conv)]
    weight = np.random.default_rng(0).normal(size=(4, 6, 3, 3)).astype(np.float32)
    float_model = to_onnx(OpGraph.build("net", ops, "y"), {"y": {"weight": weight}})
    random = np.random.default_rng(1)
    seen = [random.normal(size=SHAPE).astype(np.float32) for _ in range(8)]
    made = quantise(float_model, seen)
    (read,) = edges(made)[0].values()
    assert read.zero_point == 0
    assert read.scale == pytest.approx(max(x.max() for x in seen) / 255, rel=0.02)
    (first,) = [node for node in made.graph.node if "x" in node.input]
    assert [node.op_type for node in made.graph.node if first.output[0] in node.input] == ["DequantizeLinear"]
    assert {tensor.name for tensor in made.graph.initializer} <= {name for node in made.graph.node for name in node.input}
    expected, got = runner(float_model), runner(made)
    assert loss((expected(x), got(x)) for x in seen).cosine >= 0.999


def test_weights_are_int8_with_a_scale_for_each_output_channel(int8):
    constants = {t.name: numpy_helper.to_array(t) for t in int8.graph.initializer}
    reals = {node.output[0]: node for node in int8.graph.node if node.op_type == "DequantizeLinear"}
    (conv,) = [node for node in int8.graph.node if node.op_type == "Conv"]
    weight = reals[conv.input[1]]
    assert constants[weight.input[0]].dtype == np.int8
    assert constants[weight.input[1]].shape == (constants[weight.input[0]].shape[0],)
    assert (constants[weight.input[2]] == 0).all()


def test_scale_follows_the_samples(model):
    small, large = (next(iter(edges(quantise(model, samples(scale=scale)))[0].values())).scale for scale in (1.0, 10.0))
    assert large == pytest.approx(10 * small, rel=1e-3)


def test_nothing_is_printed_or_logged(model, capfd, caplog):
    quantise(model, samples())
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_properties_of_the_float_model_survive(model):
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    helper.set_model_props(marked, {"stretch.subgraph": "s1.dsp"})
    for node in marked.graph.node:
        entry = node.metadata_props.add()
        entry.key, entry.value = "stretch.processor", "dsp"
    made = quantise(marked, samples())
    assert {p.key: p.value for p in made.metadata_props} == {"stretch.subgraph": "s1.dsp"}
    before = {node.name: node for node in marked.graph.node}
    assert any(node.name in before for node in made.graph.node)
    for node in made.graph.node:
        told = {p.key: p.value for p in node.metadata_props}
        if node.name in before:
            assert told == {p.key: p.value for p in before[node.name].metadata_props}
        else:  # made here: of no operator, but of a processor
            assert told == {"stretch.processor": "dsp"}


def test_model_that_cannot_be_computed_is_one_sentence(model):
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(StretchError, match="cannot be quantised") as error:
        quantise(broken, samples())
    assert "\n" not in error.value.message


@pytest.mark.parametrize("op", ["Relu", "Clip", "Flatten", "MaxPool", "GlobalAveragePool"])
def test_subgraph_that_begins_with_any_operator_quantises_what_it_reads(op):
    reads = ["x", "low", "high"] if op == "Clip" else ["x"]
    weights = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("low", 0), ("high", 6))] if op == "Clip" else []
    first = helper.make_node(op, reads, ["a"], name="first", **({"kernel_shape": [2, 2]} if op == "MaxPool" else {}))
    ends = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([first, helper.make_node("Sigmoid", ["a"], ["y"], name="second")], "g", ends[:1], ends[1:], weights)
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    random = np.random.default_rng(2)
    mixed = [random.normal(size=SHAPE).astype(np.float32) for _ in range(8)]
    made = quantise(model, mixed)
    edges(made)
    expected, got = runner(model), runner(made)
    assert loss((expected(x), got(x)) for x in mixed).cosine > 0.999


def test_windows_that_would_begin_in_the_padding_are_not_counted(tmp_path):
    """Rounded up, five columns would have a fourth window of two, which lies in the padding alone."""
    pool = {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True, "count_include_pad": True}
    ops = [Op("x", "input", attrs={"shape": (1, 4, 8, 5)}), Op("p", "avg_pool", ("x",), pool), Op("y", "relu", ("p",))]
    model = to_onnx(OpGraph.build("net", ops, "y"), {})
    x = np.random.default_rng(0).normal(size=(1, 4, 8, 5)).astype(np.float32)
    want, got = (runner(each)(x) for each in (model, quantise(model, [x])))
    assert got.shape == want.shape == (1, 4, 5, 3)
    assert np.abs(got - want).max() <= 0.05 * np.abs(x).max()
