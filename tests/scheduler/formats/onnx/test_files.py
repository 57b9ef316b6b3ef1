"""ONNX files: nodes, shapes and weights, and content that must not reach a runtime."""

from contextlib import suppress

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from predictors.formats.onnx import decode
from predictors.predictor import LatencyPredictor
from scheduler.formats.onnx import open_onnx
from scheduler.formats.onnx.file import MAX_PARTS, OnnxFile, stored_tensor
from scheduler.formats.onnx.shapes import RULES
from tests.effort import examples
from tests.predictors.networks import Net, convolution
from tests.predictors.specified import specified
from tests.scheduler.bundles import onnx_model, stating
from tests.scheduler.delegates import graphs
from tests.scheduler.formats.onnx.shapes.oracle import FILE, Case, node, refused


def value(name, shape=(1, 2), kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def relu(read="x", write="y", **more):
    return helper.make_node("Relu", [read], [write], **more)


def model(nodes, weights=(), inputs=None, outputs=None):
    graph = helper.make_graph(list(nodes), "g", inputs or [value("x")], outputs or [value("y")], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def check(proto, path):
    onnx.save(proto, str(path / "m.onnx"))
    return OnnxFile(path / "m.onnx", decode(path / "m.onnx")).cost


def wrong(name="w", **fields):
    tensor = numpy_helper.from_array(np.ones((1, 2), np.float32), name)
    for key, content in fields.items():
        if key == "dims":
            del tensor.dims[:]
            tensor.dims.extend(content)
        else:
            setattr(tensor, key, content)
    return tensor


def add(weight):
    return model([helper.make_node("Add", ["x", weight.name], ["y"])], [weight])


def endless_loop():
    inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("v")]
    nodes = [helper.make_node("Identity", ["go"], ["on"]), relu("v", "w")]
    body = helper.make_graph(nodes, "body", inputs, [value("on", [], TensorProto.BOOL), value("w")])
    return model([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)])


def sparse():
    built = model([relu()])
    number, place = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]), helper.make_tensor("i", TensorProto.INT64, [1], [0])
    built.graph.sparse_initializer.append(helper.make_sparse_tensor(number, place, [4]))
    return built


def external(**entries):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1, 2], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return add(tensor)


def batch_norm(variance):
    numbers = {"s": [1, 1], "b": [0, 0], "m": [0, 0], "v": variance}
    weights = [numpy_helper.from_array(np.array(n, np.float32), name) for name, n in numbers.items()]
    return model([helper.make_node("BatchNormalization", ["x", *numbers], ["y"])], weights)


def with_function():
    built = model([relu()])
    built.functions.append(helper.make_function("d", "f", ["a"], ["b"], [relu("a", "b")], [helper.make_opsetid("", 20)]))
    return built


def large(shape):
    return model([relu()], inputs=[value("x", shape)], outputs=[value("y", shape)])


def too_much_work():
    """Many convolutions, each below the limit of work."""
    weight = numpy_helper.from_array(np.zeros((64, 64, 31, 31), np.float32), "w")
    convs = [helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], pads=[15] * 4) for i in range(160)]
    return model(convs, [weight], [value("t0", (1, 64, 64, 64))], [value("t160", (1, 64, 64, 64))])


@pytest.mark.parametrize(
    ("proto", "problem"),
    [
        (endless_loop(), r"`Loop_0` \(Loop\): no bundle holds `Loop`: it holds a graph.*write it with other operators"),
        (model([relu(name="n", domain="theirs")]), r"`n` \(Relu\): no bundle holds operators of the domain `theirs`"),
        (model([helper.make_node("Relu", ["x"], ["y"], body=model([relu()]).graph)]), "`body` is no number or word"),
        (model([helper.make_node("Relu", ["x"], ["y"], t=wrong())]), "`t` is no number or word"),
        (with_function(), "functions"),
        (sparse(), "sparse weights"),
        (model([relu(), relu()]), "`y` is written twice"),
        (model([relu()], outputs=[value("y"), value("y")]), "two of its outputs are called `y`"),
        (model([relu()], inputs=[value("x"), value("x")]), "two of its inputs are called `x`"),
        (model([relu()], [wrong("w"), wrong("w")]), "two of its weights are called `w`"),
        (model([relu("z", "y")]), "reads `z`, which nothing writes before it"),
        (model([relu("y", "z"), relu("x", "y")]), "reads `y`, which nothing writes before it"),
        (model([relu()], outputs=[value("q")]), "nothing writes its output `q`"),
        (model([relu()], outputs=[value("y", (1, 3))]), r"it states \[1, 3\] for `y` and makes \[1, 2\]"),
        (model([relu()], inputs=[value("x", (1, "n"))]), "no fixed shape"),
        (
            model([helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[1, 1])], (), [value("x", (1, 1, 2, 2))], [value("q")]),
            "nothing writes its output `q`",
        ),
        (model([helper.make_node("Relu", ["x"], ["y", "i"])]), "it has 2 results, 1 are allowed"),
        (model([helper.make_node("Split", ["x"], ["y", "y"], axis=1)]), "`y` is written twice"),
        (model([helper.make_node("Split", ["x"], ["y", "x"], axis=1)]), "`x` is written twice"),
        (model([helper.make_node("Split", ["x"], ["", "y"], axis=1)]), "it has 2 results"),
        (model([helper.make_node("Relu", ["x"], [])]), "it has 0 results"),
        (add(wrong(dims=[1 << 20, 2])), "`w` has 8 bytes, its shape .* needs 8388608"),
        *((add(wrong(dims=[1, 1])), "has 8 bytes, its shape .* needs 4"), (add(wrong(dims=[-1, -2])), r"has the shape \[-1, -2\]")),
        (add(wrong(data_type=TensorProto.BOOL)), "`w` has 8 bytes, its shape .* needs 2"),
        (add(helper.make_tensor("w", TensorProto.BOOL, [1, 2], [True, False])), "its input 1 is of type bool"),
        (model([relu()], inputs=[value("x", kind=TensorProto.DOUBLE)]), "`x` has element type 11"),
        (model([relu()], outputs=[value("y", kind=TensorProto.INT64)]), "it states int64 for `y` and makes float"),
        *((add(wrong(data_type=TensorProto.COMPLEX64)), "element type 14"), (add(wrong(data_type=77)), "element type 77")),
        (external(location="w.bin"), "cannot be read"),
        (external(location="m.onnx", offset="-1", length="8"), "has no position in its file"),
        (external(location="m.onnx", offset="9" * 18, length="8"), "beyond the end"),
        (batch_norm([1, -1]), "variance `v` of a batch norm is negative"),
        (too_much_work(), "multiply-accumulates"),
        *((large((1 << 14, 1 << 14)), "has the shape"), (large((1 << 13, (1 << 14) - 1)), "keeps 2.7e\\+08 elements at one time")),
        (model([relu()] * (MAX_PARTS + 1)), "more than"),
    ],
)
def test_content_that_must_not_reach_a_runtime_is_refused_with_its_path(tmp_path, proto, problem):
    with pytest.raises(StretchError, match=problem) as caught:
        check(proto, tmp_path)
    assert caught.value.message.startswith(f"{tmp_path / 'm.onnx'} cannot be run: ")


def test_memory_counts_tensors_until_their_last_reader(tmp_path):
    chain = model([relu("x", "a"), relu("a", "b"), relu("b", "y")])
    assert check(chain, tmp_path).peak_elements == 2 * 2
    kept = model([relu("x", "a"), relu("a", "b"), helper.make_node("Sum", ["x", "a", "b"], ["y"])])
    assert check(kept, tmp_path).peak_elements == 4 * 2


@pytest.mark.torch
@settings(max_examples=examples(20))
@given(data=st.data())
def test_every_exported_operator_has_a_rule(data):
    from stretch.export.onnx import to_onnx

    graph, weights, _ = data.draw(st.sampled_from(graphs.KIND_NAMES).flatmap(graphs.graphs))
    assert {node.op_type for node in to_onnx(graph, weights).graph.node} <= RULES.keys()


#: Attributes of any operator, with values that are valid for some operators.
NUMBERS = st.integers(-3, 5)
LISTS = st.lists(NUMBERS, min_size=1, max_size=4)
ATTRIBUTES = {
    **dict.fromkeys(("axes", "dilations", "kernel_shape", "output_padding", "pads", "perm", "split", "strides"), LISTS),
    **dict.fromkeys(("axis", "batch_dims", "blocksize", "group", "num_groups", "num_outputs", "p", "size", "start", "end"), NUMBERS),
    **dict.fromkeys(("allowzero", "ceil_mode", "fmod", "keepdims", "noop_with_empty_axes", "transA", "transB", "upper"), st.integers(0, 1)),
    "mode": st.sampled_from(["nearest", "linear", "cubic", "constant", "reflect", "edge", "wrap", "DCR"]),
    "equation": st.sampled_from(["ab,bc->ac", "abc,abd->acd", "a,b->ab"]),
    "to": st.sampled_from([1, 6, 7, 9]),
}


@st.composite
def wild(draw, op):
    """A node with random inputs and attributes, which are usually invalid."""
    schema = onnx.defs.get_schema(op, 20)
    kinds = st.sampled_from([np.float32, np.float32, np.int64, np.bool_, np.int8])
    inputs, stored = [], []
    for i in range(draw(st.integers(schema.min_input, min(schema.max_input, 5)))):
        shape, kind = draw(arrays.array_shapes(min_dims=0, max_dims=4, max_side=4)), draw(kinds)
        if draw(st.booleans()) and kind == np.int64:
            shape = shape[-1:]
            stored.append(i)
        inputs.append(draw(arrays.arrays(kind, shape, elements=st.integers(0, 1) if kind == np.bool_ else st.integers(-2, 4))))
    attrs = {name: draw(ATTRIBUTES[name]) for name in sorted(schema.attributes.keys() & ATTRIBUTES.keys()) if draw(st.booleans())}
    return Case(op, inputs, attrs, tuple(stored), draw(st.sampled_from([1, 1, 2])))


@pytest.mark.representatives(44)
@pytest.mark.parametrize("op", sorted(RULES))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_accepted_node_has_the_runtimes_shape_if_the_runtime_accepts_it_too(op, data):
    case = data.draw(wild(op))
    try:
        _ = OnnxFile(FILE, case.model([])).shapes
    except StretchError:
        return
    computed = case.computed()
    assert computed is None or refused(case, computed) is None


@pytest.mark.parametrize("shapes", [[], [None], [()], [(2,)], [(1, 2, 3, 4)] * 6])
def test_every_rule_answers_or_refuses_any_node(shapes):
    for op, written in RULES.items():
        for attrs in ({}, {"axis": 10**18, "mode": b"\xff", "perm": [-1]}, {"axis": b"", "kernel_shape": [1, 1], "pads": [1 << 62] * 4}):
            with suppress(StretchError):
                assert written(node(shapes, attrs, {1: [10**18]} if len(shapes) > 1 else {})).work >= 0, op


def saved(path, nodes, shape=(1, 4, 2, 2), weights=()):
    """Write a model of these nodes from `x` to `y`."""
    onnx.save(onnx_model(nodes, {"x": shape}, {"y": shape}, weights), str(path))
    return path


def test_file_has_its_nodes_its_weights_and_the_shapes_of_all_tensors(tmp_path):
    first, last = helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Add", ["z", "b"], ["y"], name="last")
    nodes = [stating("relu", first), stating("shift", last)]
    path = saved(tmp_path / "m.onnx", nodes, (1, 2), {"b": np.array([1, 2], np.float32)})
    result = open_onnx(path)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    between = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inferred.graph.value_info}
    assert (result.ends, result.external) == (({"x": (1, 2)}, {"y": (1, 2)}), set())
    assert result.shapes == {"x": (1, 2), "b": (2,), "y": (1, 2)} | between
    assert (result.named_nodes, [node.op_type for node in result.nodes]) == ([("Relu_0", "Relu"), ("last", "Add")], ["Relu", "Add"])
    assert numpy_helper.to_array(result.initialisers["b"]).tolist() == [1.0, 2.0]


def test_forbidden_operator_is_refused_by_the_checks_only(tmp_path):
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="n")
    result = open_onnx(saved(tmp_path / "m.onnx", [stating("relu", node)], (1, 2)))
    assert result.ends[1] == {"y": (1, 2)}
    for check, verb in ((lambda: result.cost, "run"), (lambda: result.graph, "read")):
        with pytest.raises(StretchError, match=rf"m\.onnx cannot be {verb}: operator `n` .*: no bundle holds `RandomNormalLike`"):
            check()


def test_external_weight_is_not_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    assert stored_tensor(tensor, tmp_path / "m.onnx").values is None


IDENTITIES = ("dropout", "stochastic_depth", "identity")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_regnet", "tiny_mobilenet", "tiny_efficientnet"])
def test_exported_network_is_read_back_without_identities(tmp_path, name):
    from stretch.export.onnx import save_onnx, to_numpy, to_onnx
    from stretch.network.capture import capture
    from stretch.network.models.load import load_model

    loaded = load_model(name, weights="none")
    captured = capture(loaded.module, loaded.input_shape, name)
    save_onnx(to_onnx(captured.graph, to_numpy(captured.weights)), tmp_path / "m.onnx")
    graph = open_onnx(tmp_path / "m.onnx").graph
    facts = [(op.name, op.kind, op.shape, dict(op.attrs)) for op in captured.graph.ops if op.kind not in IDENTITIES]
    assert [(op.name, op.kind, op.shape, dict(op.attrs)) for op in graph.ops] == facts
    assert (graph.macs, graph.params) == (captured.graph.macs, captured.graph.params)
    predictor = LatencyPredictor(specified("pixel6"))
    for processor in ("cpu", "gpu"):
        assert predictor.predict(graph, processor).ms == pytest.approx(predictor.predict(captured.graph, processor).ms)


def test_node_without_a_stated_operator_is_refused(tmp_path):
    sigmoid = stating("sigmoid", helper.make_node("Sigmoid", ["x"], ["gate"], name="n"))
    product = helper.make_node("Mul", ["x", "gate"], ["y"], name="m")
    with pytest.raises(StretchError, match="writes `y` does not say which operator") as caught:
        _ = open_onnx(saved(tmp_path / "m.onnx", [sigmoid, product])).graph
    assert "stretch branch" in caught.value.hint


CONV = {"out_channels": 4, "kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1, "bias": False}
POOL = {"kernel": (3, 1), "stride": (1, 1), "padding": (1, 0, 1, 0), "ceil_mode": False, "count_include_pad": True}


def conv_node(**attributes):
    return helper.make_node("Conv", ["x", "w"], ["y"], name="n", **attributes)


@pytest.mark.parametrize(
    ("node", "kind", "attrs", "problem"),
    [
        (relu(), "reluu", {}, "`reluu`"),
        (relu(), "flatten", {}, r"flatten of shape \[1, 16\].*Relu"),
        *((relu(), "conv", CONV, r"weight of shape \[4, 4, 1, 1\].*none"), (relu(), "conv", {}, "wrong attribute")),
        (conv_node(), "conv", CONV | {"out_channels": 5}, "of shape"),
        (conv_node(), "conv", CONV | {"groups": 2}, r"weight of shape \[4, 2, 1, 1\]"),
        (conv_node(), "conv", CONV | {"bias": True}, r"weight of shape \[4\]"),
        (conv_node(strides=[1, 1]), "conv", CONV | {"stride": (2, 1), "padding": (0, 0, 2, 0)}, r"with stride \(2, 1\), its node Conv has"),
        (helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 1]), "avg_pool", POOL, "with kernel"),
    ],
)
def test_stated_operator_that_contradicts_its_nodes_is_refused(tmp_path, node, kind, attrs, problem):
    weights = {"w": np.zeros((4, 4, 1, 1), np.float32)}
    with pytest.raises(StretchError, match=problem):
        _ = open_onnx(saved(tmp_path / "m.onnx", [stating(kind, node, attrs)], weights=weights)).graph


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_subgraph_in_a_lower_precision_is_read_as_its_float_graph(tmp_path, precision):
    from stretch.export.onnx import to_onnx
    from stretch.export.quantize.qdq import quantise, to_half

    # a batch norm that cannot be merged, and a convolution
    net, random = Net(1, 4, 5, 5), np.random.default_rng(0)
    net.add("batch_norm", eps=1e-5, momentum=0.1, affine=True)
    net.add("relu")
    net.add("conv", **convolution("", "", 3, 3, bias=True).attrs)
    graph = net.graph("net")
    floats = to_onnx(graph, graphs.weights_of(graph, random))
    samples = [random.normal(size=(1, 4, 5, 5)).astype(np.float32) for _ in range(8)]
    onnx.save(to_half(floats) if precision == "fp16" else quantise(floats, samples), str(tmp_path / "m.onnx"))
    graph_read = open_onnx(tmp_path / "m.onnx").graph
    # the single batch norm has become a depthwise convolution, and int8 has merged activations into scales
    assert [op.kind for op in graph_read.ops if op.kind != "relu"] == ["input", "conv", "conv"]
    assert (graph_read.input.name, graph_read.output) == (graph.input.name, graph.output)
    assert graph_read.by_name[graph_read.output].attrs["padding"] == (1, 1, 1, 1)
