"""Untrusted files: an unreadable file is refused in one sentence, and nothing outside of the model's folder is read."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from predictors.errors import StretchError, UsageError
from stretch.network.models.builder import MAX_KNOWN, Builder
from stretch.network.models.onnx import read_module
from stretch.network.models.onnx.network import RULES, OnnxSite, by_rule, compute_constant
from tests.damage import one_sentence
from tests.effort import examples
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.stretch.network.models.onnx.oracle import net, random

pytestmark = pytest.mark.torch


CONV = helper.make_node("Conv", ["x", "w"], ["h"], name="conv", pads=[1, 1, 1, 1])
RELU = helper.make_node("Relu", ["h"], ["y"], name="relu")
WEIGHT = random((6, 4, 3, 3))


def small(**options):
    return net(CONV, RELU, stored={"w": WEIGHT}, **options)


def save(path, model, **options):
    onnx.save(model, str(path), **options)
    return path


def test_open_batch_size_becomes_one_and_any_other_open_size_must_be_given(tmp_path):
    assert read_module(save(tmp_path / "b.onnx", small(shape=("batch", 4, 5, 3)))).input_shape == (1, 4, 5, 3)
    path = save(tmp_path / "s.onnx", small(shape=("batch", 4, "h", "w")))
    with pytest.raises(UsageError, match=r"the size of the input `x` of .*s\.onnx is open") as caught:
        read_module(path)
    assert "--input" in caught.value.hint
    assert read_module(path, (1, 4, 8, 8)).input_shape == (1, 4, 8, 8)
    with pytest.raises(UsageError, match="has 4 axes, a shape of 3 is given"):
        read_module(path, (4, 8, 8))


def test_weights_in_a_file_next_to_the_model_are_read(tmp_path):
    path = save(tmp_path / "m.onnx", small(), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").is_file()
    np.testing.assert_array_equal(read_module(path).conv.weight.detach(), WEIGHT)
    (tmp_path / "w.bin").write_bytes(b"\0" * 9)
    with pytest.raises(StretchError, match="`w` lies beyond the end of its file"):
        read_module(path)


def with_external_weight(location):
    """Make the small network with its weight in another file."""
    model = small()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return model


@pytest.mark.parametrize("location", ["../w.bin", "{outside}", "link.bin", "", "missing.bin", "sub/../../w.bin", "."])
def test_weights_outside_of_the_folder_are_not_read(tmp_path, location):
    outside = tmp_path / "w.bin"
    outside.write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(outside)
    with pytest.raises(StretchError, match="no file in the model's folder"):
        read_module(save(folder / "m.onnx", with_external_weight(location.format(outside=outside))))


def test_external_weights_larger_than_the_format_allows_are_refused_unread(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"")
    model = with_external_weight("w.bin")
    model.graph.initializer[0].dims[:] = [1 << 20, 1 << 10]
    with pytest.raises(StretchError, match=r"has 4\.3 GB of weights in other files, 2\.1 GB are read"):
        read_module(save(tmp_path / "m.onnx", model))


def with_change(change):
    """Return the small network after a change."""
    model = small()
    change(model)
    return model


def with_function(model):
    relu = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(helper.make_function("d", "f", ["a"], ["b"], [relu], model.opset_import))


#: A weight that is listed among the inputs is not an input.
ONLY_WEIGHT = helper.make_tensor_value_info("w", TensorProto.FLOAT, WEIGHT.shape)
UNSIGNED = onnx.numpy_helper.from_array(WEIGHT.astype(np.uint16), "w")


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (with_change(lambda model: model.graph.input[0].CopyFrom(ONLY_WEIGHT)), "has no input"),
        (with_change(with_function), "defines functions of its own"),
        (with_change(lambda model: model.graph.initializer[0].dims.__setitem__(0, 1 << 40)), "`w` has 864 bytes, its shape"),
        (with_change(lambda model: model.graph.initializer[0].CopyFrom(UNSIGNED)), "element type 4"),
        (small(kind=TensorProto.INT64), "takes whole numbers as its input `x`, and inputs are real numbers here"),
        (small(kind=TensorProto.DOUBLE), "element type 11"),
        (small(opset=7), "has opset 7, those from 9 to"),
        (small(shape=(1, 4, 1 << 20, 1 << 20)), "which no network reads"),
        (net(outputs=()), "is no ONNX model: it has no operators or no output"),
        (small(outputs=("y", "q")), "returns `q`, which nothing computes"),
        (small(outputs=("x",)), "computes nothing from its input"),
        (small(outputs=("x", "w")), "computes nothing from its input"),
        (net(helper.make_node("Relu", ["a\nb\x1b"], ["y"])), r"it reads `a\\nb\\x1b`, which nothing writes"),
        (net(RELU), r"node `relu` \(Relu\) of .* it reads `h`, which nothing writes before it"),
        (net(CONV, CONV, RELU, stored={"w": WEIGHT}), "`h` is written twice"),
        (net(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")), "of the domain `com.microsoft`"),
        (net(helper.make_node("Gelu", ["x"], ["y"], domain="com.other")), "of the domain `com.other`, and only"),
        (net(helper.make_node("MaxRoiPool", ["x"], ["y"], name="g")), r"node `g` \(MaxRoiPool\) .*there is no rule for this operator"),
        (net(helper.make_node("NonZero", ["x"], ["y"])), r"node `NonZero_0` \(NonZero\) .*depends on what the network computes"),
        (net(helper.make_node("Relu", ["x"], ["y"], body=small().graph)), "it holds a graph"),
        (net(helper.make_node("Reshape", ["x", "s"], ["y"]), stored={"s": np.array([7, -1])}), "it makes"),
        (net(helper.make_node("Conv", ["x", "x"], ["y"])), "its weight depends on the network's inputs"),
    ],
)
def test_onnx_file_without_a_usable_network_is_refused_in_one_sentence(tmp_path, model, problem):
    with pytest.raises(StretchError, match=problem) as caught:
        read_module(save(tmp_path / "m.onnx", model))
    assert "\n" not in caught.value.message
    assert "m.onnx" in caught.value.message


@pytest.mark.parametrize("content", [None, b"", b"text"])
def test_file_that_is_not_onnx_is_refused(tmp_path, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StretchError, match=r"cannot read|is no ONNX model"):
        read_module(path)


KINDS = [np.float32, np.int64, np.int32, np.int8, np.uint8, np.bool_]
SIZES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
NUMBERS = st.one_of(st.integers(-9, 9), st.sampled_from([2**31, -(2**31), 2**62, -(2**63)]))
VALUES = st.one_of(
    NUMBERS,
    st.floats(width=32),
    st.lists(NUMBERS, min_size=1, max_size=8),
    st.lists(st.floats(width=32), min_size=1, max_size=3),
    st.sampled_from(["linear", "SAME_UPPER", "add", "reflect", "\udcff", ""]).map(lambda word: word.encode(errors="ignore")),
)


def attributes(op):
    """Return the names of an operator's attributes."""
    schemas = [item for item in onnx.defs.get_all_schemas_with_history() if item.name == op and item.domain == ""]
    names = sorted({name for schema in schemas for name in schema.attributes})
    return names or ["alpha", "axis", "transB", "channels_last", "kernel_shape", "opset"]


@st.composite
def stored(draw):
    """Draw a stored tensor of any type, with small or extreme numbers."""
    kind, shape = draw(st.sampled_from(KINDS)), draw(SIZES)
    numbers = np.random.default_rng(draw(st.integers(0, 9))).integers(-3, 9, shape)
    if draw(st.booleans()) and kind in (np.float32, np.int64):
        numbers = numbers * draw(st.sampled_from([1e30, 2**40, np.nan] if kind == np.float32 else [2**40]))
    with np.errstate(invalid="ignore"):
        return np.asarray(numbers).astype(kind)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(RULES)), st.data())
def test_node_with_any_inputs_and_attributes_is_read_or_refused_in_one_sentence(tmp_path_factory, op, data):
    domain, _, name = op.rpartition(".")
    names = attributes(name)
    chosen = data.draw(st.lists(st.sampled_from(names), max_size=4, unique=True)) if names else []
    attrs = {item: data.draw(VALUES) for item in chosen}
    reads, tensors = [], {"s": np.float32(0.1), "z": np.uint8(3)}
    for i in range(data.draw(st.integers(1, 9))):
        source = data.draw(st.sampled_from(["x", "q", "i", "", "s", "z", None, None, None]))
        if source is None:
            tensors[f"w{i}"] = data.draw(stored())
        reads.append(f"w{i}" if source is None else source)
    before = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("Cast", ["x"], ["i"], to=7)]
    node = helper.make_node(name, reads, ["y", "other"][: data.draw(st.integers(1, 2))], domain=domain, **attrs)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    path = tmp_path_factory.getbasetemp() / "anything.onnx"
    onnx.save(net(*before, node, stored=tensors, shape=shape, opset=data.draw(st.sampled_from([9, 11, 13, 17, 22]))), str(path))
    with one_sentence():
        read_module(path)


@pytest.mark.parametrize(
    ("op", "reads", "reason"),
    [
        ("ConstantOfShape", [whole(MAX_KNOWN, 2)], "a stored tensor too large"),
        ("Expand", [np.ones(1, np.float32), whole(MAX_KNOWN + 1)], "a stored tensor too large"),
        ("Range", [np.array(0), np.array(2**40), np.array(1)], "a stored tensor too large"),
        ("NonZero", [np.ones(3, np.float32)], "is not computed from what the file stores"),
        ("Reshape", [np.ones(3, np.float32), whole(2)], "it makes"),
        ("Gather", [np.ones(3, np.float32), whole(*[9] * 20)], "cannot be computed"),
        ("Add", [np.ones(3), np.ones(3)], "numbers of type float64"),
        ("AffineGrid", [random((1, 2, 3)), whole(1, 1, 1 << 13, 1 << 13)], "a stored tensor too large"),
    ],
)
def test_constant_that_is_too_large_or_not_computable_is_refused(op, reads, reason):
    def by_bundles():
        return compute_constant(helper.make_node(op, [f"r{i}" for i in range(len(reads))], ["y"]), reads, {}, 17)

    def by_networks():
        return by_rule(RULES[op], OnnxSite(reads, op, "known", {}, 1, Builder((1,)), 20))

    with pytest.raises(StretchError, match=reason):
        (by_networks if op == "AffineGrid" else by_bundles)()


@pytest.mark.parametrize(
    "case",
    [
        Case("Swish", [random((2, 3))], opset=24),
        Case("AffineGrid", [random((1, 2, 3)), whole(1, 4, 5, 6)]),
        Case("Hardmax", [random((2, 3))]),
        Case("EyeLike", [random((2, 3))]),
        Case("CenterCropPad", [random((2, 3)), whole(4, 1)]),
    ],
    ids=lambda case: case.op,
)
def test_constants_of_operators_that_bundles_lack_are_folded_with_torch(case):
    result = OnnxSite(case.inputs, case.op, "known", case.attrs, 1, Builder((1,)), case.opset)
    np.testing.assert_allclose(by_rule(RULES[case.op], result)[0], case.computed()[0], atol=1e-6)


def test_site_distinguishes_stored_from_computed_inputs():
    b = Builder((1, 3))
    seen = OnnxSite([b.inputs["x"], np.array([4, 5]), None], "Op", "name", {"axes": [1]}, 1, b, 17)
    assert (seen.int_list("sizes", 1), seen.int_list("axes", 2), seen.int_list("pads", 3)) == ([4, 5], [1], None)
    assert seen.optional_stored(2, "bias") is None
    with pytest.raises(StretchError, match="its weight depends on the network's inputs"):
        seen.require_stored(0, "weight")
    with pytest.raises(StretchError, match="it has no input 2"):
        seen.tensor(2)
