"""Parts of a network that are kept as calls of torch: computed, written as ONNX, or refused."""

import hypothesis.strategies as st
import msgspec
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from onnx import TensorProto, helper

from predictors.errors import StretchError
from stretch.formats.onnx import OPSET
from stretch.opaque.calls import Call, Calls, CallTensor, CheckedCalls, find_operator, plain, read_calls
from stretch.opaque.snippets import prepare, snippet_of
from tests.effort import examples

pytest.importorskip("onnxscript")

X = CallTensor("float32", (2, 3))
ROLL = Calls((X,), (), (Call("roll.default", ({"read": 0}, (1,), (1,))),))


def test_calls_are_computed_one_after_the_other_with_what_they_read():
    calls = Calls(
        (X,),
        (CallTensor("float32", (3,), True),),
        (
            Call("add.Tensor", ({"read": 0}, {"constant": 0})),
            Call("max.dim", ({"call": 0}, 1), {}, 1),
            Call("_to_copy.default", ({"call": 1},), {"dtype": {"dtype": "float32"}}),
        ),
    )
    x, c = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(CheckedCalls(calls, (2,))([x], [c]), (x + c).max(1).indices.float())


def test_number_that_json_lacks_comes_back():
    calls = Calls((X,), (), (Call("clamp.default", ({"read": 0}, plain(float("-inf"), lambda v: None), 0.5)),))
    x = torch.randn(2, 3)
    assert torch.equal(CheckedCalls(read_calls(calls.text()), (2, 3))([x], []), x.clamp(max=0.5))


@given(st.integers(1, 4))
@settings(deadline=None, max_examples=examples(10))
def test_several_times_the_batch_is_several_results_one_behind_the_other(times):
    x = torch.arange(times * 6.0).reshape(2 * times, 3)
    got = CheckedCalls(ROLL, (2, 3)).batched([x], [])
    assert torch.equal(got, torch.cat([torch.roll(part, 1, 1) for part in x.split(2)]))


@pytest.mark.parametrize(
    "name",
    [
        "from_file.default",
        "add_.Tensor",
        "add.out",
        "rand_like.default",
        "empty_like.default",
        "as_strided.default",
        "no_such_operator.default",
        "__class__.default",
        "item.default",
    ],
)
def test_operator_that_does_more_than_compute_tensors_is_not_found(name):
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
def test_calls_that_make_no_sense_are_refused(calls, shape, reason):
    with pytest.raises(StretchError, match=reason):
        CheckedCalls(calls, shape)


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_text_that_is_no_calls_is_refused(text):
    with pytest.raises(StretchError, match="cannot be read"):
        read_calls(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=8), x),
    )
)
@settings(deadline=None)
def test_arguments_of_any_form_are_computed_or_refused(argument):
    text = msgspec.json.encode(
        {"reads": [X], "constants": [], "calls": [{"operator": "roll.default", "arguments": [{"read": 0}, argument]}]}
    )
    try:
        CheckedCalls(read_calls(text.decode()), (2, 3))
    except StretchError:
        return


SNIPPETS_X = CallTensor("float32", (1, 6, 4))
READ = {"read": 0}

CASES = [
    (Calls((SNIPPETS_X,), (), (Call("roll.default", (READ, (2,), (1,))),)), (1, 6, 4)),
    (Calls((SNIPPETS_X,), (), (Call("max.dim", (READ, 1), {}, 0),)), (1, 4)),
    (
        Calls((SNIPPETS_X, SNIPPETS_X), (), (Call("transpose.int", ({"read": 1}, 1, 2)), Call("matmul.default", (READ, {"call": 0})))),
        (1, 6, 6),
    ),
    (Calls((SNIPPETS_X,), (CallTensor("int64", (3,)),), (Call("index.Tensor", (READ, (None, {"constant": 0}))),)), (1, 3, 4)),
    (
        Calls(
            (SNIPPETS_X,),
            (CallTensor("float32", (4,)),),
            (Call("layer_norm.default", (READ, (4,), {"constant": 0}, {"constant": 0}, 1e-5)),),
        ),
        (1, 6, 4),
    ),
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
def test_what_the_exporter_cannot_write_is_named():
    unwritten = Calls((CallTensor("float32", (3, 3)),), (), (Call("linalg_eigvalsh.default", (READ,)),))
    with pytest.raises(StretchError, match="linalg_eigvalsh"):
        prepare([(unwritten, (3,)), CASES[1]])
