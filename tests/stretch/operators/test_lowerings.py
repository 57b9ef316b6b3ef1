"""Modules of every kind of operator, and parts of a network that stay calls of torch functions."""

import contextlib

import hypothesis.strategies as st
import msgspec
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from onnx import TensorProto, helper
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op
from predictors.operators import kind_of
from predictors.operators.opaque import CALLS
from stretch.network.capture.trace import capture_traced as capture
from stretch.operators.capturing import UnsupportedNode, class_name, lower_module
from stretch.operators.formats.onnx import OPSET
from stretch.operators.lowerings import lowerings, make_module
from stretch.operators.opaque.calls import Call, Calls, CallTensor, CheckedCalls, find_operator, read_calls, to_builtins
from stretch.operators.opaque.snippets import prepare, snippet_of
from tests.effort import examples
from tests.scheduler.delegates import graphs
from tests.stretch.network.capture.patterns import Calling


@pytest.mark.representatives(16)
@pytest.mark.parametrize("kind", graphs.ALL_KIND_NAMES)
@settings(max_examples=examples(4))
@given(data=st.data())
def test_module_of_every_kind_is_traced_as_its_operator(kind, data):
    (height, width), attrs = data.draw(graphs.attributes(kind))
    shape = {"linear": (1, 6), "unflatten": (1, 6), "channels_first": (1, height * width, 6)}.get(kind, (1, 6, height, width))
    count = max(1, kind_of(kind).min_inputs)
    op = Op("op", kind, ("input",) * count, attrs)
    module = Calling(lambda x, layer: layer(*[x] * count), make_module(op, [shape] * count))
    traced = capture(module, shape).graph.by_name["part0"]
    assert (traced.kind, dict(traced.attrs)) == (kind, dict(op.attrs))


#: Attributes of kinds with weights, with every optional attribute set.
WEIGHING = {"bias": True, "affine": True, "out_channels": 6, "out_features": 5, "groups": 2, "kernel": (3, 2)}


def test_weights_that_a_form_stores_are_those_of_its_kind():
    """Forms store ones for missing factors of a batch norm, so kinds are compared with all their weights set."""
    for kind in graphs.ALL_KIND_NAMES:
        attrs = WEIGHING | (dict.fromkeys(("bias", "mask"), (1, 1, 9, 9)) if kind == "attention" else {})
        weights = kind_of(kind).weights([(1, 4, 9, 9)] * max(1, kind_of(kind).min_inputs), attrs)
        assert tuple(weights) == lowerings.get(kind).stored, kind


STATED = {"kernel": "elementwise", "variant": "sub", "in_channels": 1, "out_channels": 1, "groups": 1, "taps": 1, "pixels": 1, "weights": 3}
CALLED = Calls(
    (CallTensor("float32", (1, 3)),),
    (CallTensor("float32", (3,), True), CallTensor("int64", (1,))),
    (Call("sub.Tensor", ({"read": 0}, {"constant": 0})), Call("index.Tensor", ({"call": 0}, (None, {"constant": 1})))),
)


def opaque(**changes):
    attrs = {**STATED, "shape": (1, 1), CALLS: CALLED.text(), "constant_0": (3,), "constant_1": (1,)}
    return Op("op", "opaque", ("x",), {**attrs, **changes})


@pytest.mark.parametrize(
    ("op", "reads", "reason"),
    [
        (opaque(), [(1, 4)], "not"),
        (opaque(shape=(1, 2)), [(1, 3)], "give"),
        (opaque(constant_0=(4,)), [(1, 3)], "constants of other shapes"),
        (opaque(**{CALLS: "{}"}), [(1, 3)], "cannot be read"),
        (opaque(**{CALLS: CALLED.text().replace("sub.Tensor", "sub_.Tensor")}), [(1, 3)], "more than compute"),
        (Op("op", "opaque", ("x",), {**STATED, "shape": (1, 1)}), [(1, 3)], "for predictions"),
        (Op("op", "view", ("x", "y"), {"shape": (1, 3)}), [(1, 3), (1, 3)], "for predictions"),
    ],
)
def test_operator_that_contradicts_itself_or_is_for_predictions_is_refused(op, reads, reason):
    with pytest.raises(StretchError, match=reason):
        make_module(op, reads)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + 1j, r"combines a tensor with 1j"),
        (lambda x: x / x, "divides by something else"),
        (lambda x: x - x, "subtracts one tensor"),
        (lambda x: torch.cat([x, x], 2), "only along channels"),
        (lambda x: x.mean(1), "only over height and width"),
        (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "mode `reflect`"),
        (lambda x: x.view(1, 4, 64), "reshaping"),
        (lambda x: x.view(1, 2, 2, 8, 8), "reshaped to five dimensions"),
        (lambda x: torch.add(x, x, alpha=2), "scales one side"),
        (lambda x: x.transpose(1, 2), "permuting dimensions"),
        (lambda x: F.dropout(x), "drops at random"),
        (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), "mode `bilinear`"),
        (lambda x: F.interpolate(x, scale_factor=1.5), "whole factors"),
        (lambda x: F.softmax(x, dim=2), "only over channels"),
        (lambda x: x.clamp(1, 0), "clamping to 1"),
        (lambda x: x.clamp(0, float("nan")), "bounds must be in order"),
        (lambda x: x.clamp(torch.tensor(0.0), torch.tensor(1.0)), "to tensors, not to numbers"),
        (lambda x: F.layer_norm(x, (8,)), "only over channels"),
        (lambda x: F.layer_norm(x, (4, 8, 8)), "only over channels|last dimension"),
        (lambda x: x[:, :, 1:], "only ranges of channels"),
        (lambda x: x[:, ::2], "only ranges of channels"),
        (lambda x: x.split(4, dim=2)[0], "only along channels"),
        (lambda x: x.permute(0, 2, 3, 1).mean((1, 2)), "only over height and width"),
        (lambda x: F.relu(x.permute(0, 2, 3, 1)), "cannot (be captured|capture node)"),
        (lambda x: torch.cat([x.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)], 1), "permuted"),
        (lambda x: torch.cumsum(x, 1), "function `cumsum`"),
        (nn.BatchNorm2d(4, track_running_stats=False), "running statistics"),
        (nn.BatchNorm2d(4, momentum=None), "cumulative"),
        (nn.MaxPool2d(2, return_indices=True), "indices"),
        (nn.AvgPool2d(2, divisor_override=5), "own divisor"),
    ],
)
def test_function_or_setting_that_is_not_supported_is_refused_with_the_reason(function, reason):
    module = Calling(lambda x, module: module(x), function) if isinstance(function, nn.Module) else Calling(function)
    with pytest.raises(StretchError, match=reason):
        capture(module.eval(), (1, 4, 8, 8))


@pytest.mark.parametrize(("size", "kind"), [(1, "global_avg_pool"), (4, "avg_pool"), (8, "identity")])
def test_adaptive_pooling_lowers_to_a_kind_by_its_size(size, kind):
    assert [step.kind for step in lower_module(nn.AdaptiveAvgPool2d(size), (1, 4, 8, 8))] == [kind]


@pytest.mark.parametrize("padding", [0, 1, (1, 2), "same", "valid"])
def test_padded_convolution_has_the_output_shape_of_torch(padding):
    module = nn.Sequential(nn.Conv2d(3, 4, (3, 5), padding=padding))
    x = torch.zeros(1, 3, 9, 11)
    graph = capture(module, x.shape).graph
    assert graph.by_name[graph.output].shape == tuple(module(x).shape)


def test_same_padding_and_norm_with_activation_of_timm_are_supported():
    timm = pytest.importorskip("timm")
    module = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    captured = capture(module, (1, 3, 64, 64), "lite0")
    assert captured.graph.params == sum(p.numel() for p in module.parameters())
    assert "relu6" in {op.kind for op in captured.graph.ops}
    assert any(op.attrs["padding"] == (0, 0, 1, 1) for op in captured.graph.ops if op.kind == "conv")
    (step,) = lower_module(timm.layers.activations.GELU(), (1, 4, 8, 8))
    assert (step.kind, step.attrs) == ("gelu", {"approximate": "none"})


def test_module_of_another_package_is_captured_by_its_code_and_not_by_its_name():
    timm = pytest.importorskip("timm")
    assert class_name(type("Conv2d", (nn.Module,), {})()) is None
    with pytest.raises(UnsupportedNode, match="attention of another package"):
        lower_module(timm.layers.Attention(8, 2), (1, 8, 4, 4))


pytest.importorskip("onnxscript")

X = CallTensor("float32", (2, 3))
ROLL = Calls((X,), (), (Call("roll.default", ({"read": 0}, (1,), (1,))),))


def test_calls_are_computed_in_order_with_their_inputs():
    first = Call("add.Tensor", ({"read": 0}, {"constant": 0})), Call("max.dim", ({"call": 0}, 1), {}, 1)
    calls = Calls(
        (X,), (CallTensor("float32", (3,), True),), (*first, Call("_to_copy.default", ({"call": 1},), {"dtype": {"dtype": "float32"}}))
    )
    x, c = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(CheckedCalls(calls, (2,))([x], [c]), (x + c).max(1).indices.float())


def test_number_that_json_lacks_is_restored():
    calls = Calls((X,), (), (Call("clamp.default", ({"read": 0}, to_builtins(float("-inf"), lambda v: None), 0.5)),))
    x = torch.randn(2, 3)
    assert torch.equal(CheckedCalls(read_calls(calls.text()), (2, 3))([x], []), x.clamp(max=0.5))


@given(st.integers(1, 4))
@settings(deadline=None, max_examples=examples(10))
def test_multiple_of_the_batch_size_gives_concatenated_results(times):
    x = torch.arange(times * 6.0).reshape(2 * times, 3)
    got = CheckedCalls(ROLL, (2, 3)).batched([x], [])
    assert torch.equal(got, torch.cat([torch.roll(part, 1, 1) for part in x.split(2)]))


NOT_FOUND = ["from_file.default", "add_.Tensor", "add.out", "rand_like.default", "empty_like.default", "as_strided.default"]


@pytest.mark.parametrize("name", [*NOT_FOUND, "no_such_operator.default", "__class__.default", "item.default"])
def test_operator_with_effects_beyond_tensors_is_not_found(name):
    with pytest.raises(StretchError):
        find_operator(name)


@pytest.mark.parametrize(
    ("calls", "shape", "reason"),
    [
        (ROLL, (3, 2), "not \\(3, 2\\)"),
        (Calls((X,), (), ()), (2, 3), "0 calls"),
        (Calls((), (), (Call("ones.default", ((2, 3),)),)), (2, 3), "0 tensors"),
        (Calls((X,), (), (Call("relu.default", ({"read": 5},)),)), (2, 3), "cannot be computed"),
        (Calls((X,), (), (Call("relu.default", ({"read": 0}, 1, 2)),)), (2, 3), "cannot be computed"),
        (Calls((CallTensor("no_type", (2, 3)),), (), ROLL.calls), (2, 3), "no type of torch"),
        (Calls((X,), (), ROLL.calls * 20), (2, 3), "20 calls"),
    ],
)
def test_inconsistent_calls_are_refused(calls, shape, reason):
    with pytest.raises(StretchError, match=reason):
        CheckedCalls(calls, shape)


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_text_without_valid_calls_is_refused(text):
    with pytest.raises(StretchError, match="cannot be read"):
        read_calls(text)


ANYTHING = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)


@given(st.recursive(ANYTHING, lambda x: st.lists(x) | st.dictionaries(st.text(max_size=8), x)))
@settings(deadline=None)
def test_arguments_of_any_form_are_evaluated_or_refused(argument):
    call = {"operator": "roll.default", "arguments": [{"read": 0}, argument]}
    text = msgspec.json.encode({"reads": [X], "constants": [], "calls": [call]})
    with contextlib.suppress(StretchError):
        CheckedCalls(read_calls(text.decode()), (2, 3))


SNIPPETS_X = CallTensor("float32", (1, 6, 4))
READ = {"read": 0}


def calls_on(shape, *calls, reads=1, constants=()):
    """Draw calls on `inputs` tensors and some constants, and the shape of their result."""
    return Calls((SNIPPETS_X,) * reads, tuple(CallTensor(*constant) for constant in constants), calls), shape


CASES = [
    calls_on((1, 6, 4), Call("roll.default", (READ, (2,), (1,)))),
    calls_on((1, 4), Call("max.dim", (READ, 1), {}, 0)),
    calls_on((1, 6, 6), Call("transpose.int", ({"read": 1}, 1, 2)), Call("matmul.default", (READ, {"call": 0})), reads=2),
    calls_on((1, 3, 4), Call("index.Tensor", (READ, (None, {"constant": 0}))), constants=[("int64", (3,))]),
    calls_on((1, 6, 4), Call("layer_norm.default", (READ, (4,), *[{"constant": 0}] * 2, 1e-5)), constants=[("float32", (4,))]),
]


def model_of(calls, shape, snippet):
    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    specs = (*calls.reads, *calls.constants)
    inputs = [helper.make_tensor_value_info(name, types[spec.dtype], spec.shape) for name, spec in zip(snippet.inputs, specs, strict=True)]
    output = helper.make_tensor_value_info(snippet.output, TensorProto.FLOAT, shape)
    graph = helper.make_graph(snippet.nodes, "one", inputs, [output], initializer=snippet.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


@pytest.mark.slow
def test_each_piece_computes_its_own_calls():
    prepare(CASES)
    for calls, shape in CASES:
        snippet = snippet_of(calls, shape)
        reads = [torch.randn(spec.shape) for spec in calls.reads]
        constants = [torch.randint(0, 3, spec.shape) if spec.dtype == "int64" else torch.randn(spec.shape) for spec in calls.constants]
        session = onnxruntime.InferenceSession(model_of(calls, shape, snippet).SerializeToString())
        feed = dict(zip(snippet.inputs, [read.numpy() for read in (*reads, *constants)], strict=True))
        (got,) = session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
        assert torch.allclose(torch.from_numpy(got), CheckedCalls(calls, shape)(reads, constants), atol=1e-5)


@pytest.mark.slow
def test_call_that_the_exporter_cannot_write_is_named():
    unwritten = Calls((CallTensor("float32", (3, 3)),), (), (Call("linalg_eigvalsh.default", (READ,)),))
    with pytest.raises(StretchError, match="linalg_eigvalsh"):
        prepare([(unwritten, (3,)), CASES[1]])
