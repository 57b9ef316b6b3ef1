import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
import onnxruntime  # noqa: E402 - torch may be missing
from onnx import TensorProto, helper  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.formats.onnx import OPSET  # noqa: E402
from stretch.opaque.calls import Call, Calls, Replay, Tensor  # noqa: E402
from stretch.opaque.snippets import prepare, snippet_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

X = Tensor("float32", (1, 6, 4))
READ = {"read": 0}
CASES = [
    (Calls((X,), (), (Call("roll.default", (READ, (2,), (1,))),)), (1, 6, 4)),
    (Calls((X,), (), (Call("max.dim", (READ, 1), {}, 0),)), (1, 4)),
    (Calls((X, X), (), (Call("transpose.int", ({"read": 1}, 1, 2)), Call("matmul.default", (READ, {"call": 0})))), (1, 6, 6)),
    (Calls((X,), (Tensor("int64", (3,)),), (Call("index.Tensor", (READ, (None, {"constant": 0}))),)), (1, 3, 4)),
    (
        Calls((X,), (Tensor("float32", (4,)),), (Call("layer_norm.default", (READ, (4,), {"constant": 0}, {"constant": 0}, 1e-5)),)),
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


def test_each_piece_computes_its_own_calls():
    prepare(CASES)
    for calls, shape in CASES:
        snippet = snippet_of(calls, shape)
        reads = [torch.randn(spec.shape) for spec in calls.reads]
        constants = [torch.randint(0, 3, spec.shape) if spec.dtype == "int64" else torch.randn(spec.shape) for spec in calls.constants]
        session = onnxruntime.InferenceSession(model_of(calls, shape, snippet).SerializeToString())
        feed = dict(zip(snippet.inputs, [each.numpy() for each in (*reads, *constants)], strict=True))
        (got,) = session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
        assert torch.allclose(torch.from_numpy(got), Replay(calls, shape)(reads, constants), atol=1e-5)


def test_what_the_exporter_cannot_write_is_named():
    unwritten = Calls((Tensor("float32", (3, 3)),), (), (Call("linalg_eigvalsh.default", (READ,)),))
    with pytest.raises(StretchError, match="linalg_eigvalsh"):
        prepare([(unwritten, (3,)), CASES[1]])
