import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402 - torch may be missing
import onnxruntime  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import Op, OpGraph  # noqa: E402
from predictors.operators.opaque import CALLS  # noqa: E402
from scheduler.formats.onnx.operators import operators  # noqa: E402
from stretch.capture.runnable import capture_runnable  # noqa: E402
from stretch.export.onnx import to_numpy, to_onnx  # noqa: E402
from stretch.opaque.calls import Call, Calls, Tensor, calls_of  # noqa: E402
from stretch.operators.lowerings import make_module  # noqa: E402
from stretch.operators.opaque import Opaque, Reshape  # noqa: E402
from tests.stretch.capture.patterns import PATTERNS, SIDE, network  # noqa: E402

pytestmark = pytest.mark.torch

STATED = {"kernel": "elementwise", "variant": "sub", "in_channels": 1, "out_channels": 1, "groups": 1, "taps": 1, "pixels": 1, "weights": 3}
CALLED = Calls(
    (Tensor("float32", (1, 3)),),
    (Tensor("float32", (3,), True), Tensor("int64", (1,))),
    (Call("sub.Tensor", ({"read": 0}, {"constant": 0})), Call("index.Tensor", ({"call": 0}, (None, {"constant": 1})))),
)


def opaque(**changes):
    attrs = {**STATED, "shape": (1, 1), CALLS: CALLED.text(), "constant_0": (3,), "constant_1": (1,)}
    return Op("op", "opaque", ("x",), {**attrs, **changes})


def test_module_computes_the_calls_with_learned_and_fixed_constants():
    module = make_module(opaque(), [(1, 3)])
    assert [name for name, _ in module.named_parameters()] == ["constant_0"]
    module.load_state_dict({"constant_0": torch.tensor([1.0, 2.0, 3.0]), "constant_1": torch.tensor([2])})
    assert torch.equal(module(torch.tensor([[5.0, 6.0, 9.0], [0.0, 0.0, 0.0]])), torch.tensor([[6.0], [-3.0]]))


@pytest.mark.parametrize(
    ("changes", "reads", "reason"),
    [
        ({}, [(1, 4)], "not"),
        ({"shape": (1, 2)}, [(1, 3)], "give"),
        ({"constant_0": (4,)}, [(1, 3)], "constants of other shapes"),
        ({CALLS: "{}"}, [(1, 3)], "cannot be read"),
        ({CALLS: CALLED.text().replace("sub.Tensor", "sub_.Tensor")}, [(1, 3)], "more than compute"),
    ],
)
def test_operator_that_contradicts_itself_is_refused(changes, reads, reason):
    with pytest.raises(StretchError, match=reason):
        make_module(opaque(**changes), reads)


def test_operator_for_predictions_is_not_computed():
    with pytest.raises(StretchError, match="for predictions"):
        make_module(Op("op", "opaque", ("x",), {**STATED, "shape": (1, 1)}), [(1, 3)])
    with pytest.raises(StretchError, match="for predictions"):
        make_module(Op("op", "view", ("x", "y"), {"shape": (1, 3)}), [(1, 3), (1, 3)])


@given(st.integers(1, 5))
@settings(deadline=None)
def test_view_sees_any_number_of_images(images):
    x = torch.arange(images * 12.0).reshape(images, 3, 4)
    module = make_module(Op("op", "view", ("x",), {"shape": (2, 6)}), [(1, 3, 4)])
    assert isinstance(module, Reshape)
    assert torch.equal(module(x), x.reshape(-1, 6))


def test_modules_tell_what_they_compute():
    assert "sub.Tensor, index.Tensor" in repr(Opaque(CALLED, (1, 1)))
    assert "(2, 6)" in repr(Reshape((2, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
def test_files_compute_what_torch_computes(pattern):
    pytest.importorskip("onnxscript")
    module = network(pattern)
    captured = capture_runnable(module, (1, 3, SIDE, SIDE), "net")
    model = to_onnx(captured.graph, to_numpy(captured.weights))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    (got,) = session.run(None, {"input": x.numpy()})
    with torch.no_grad():
        want = module(x).numpy()
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.slow
def test_file_states_calls_that_read_in_the_order_of_its_nodes():
    """A sum of several nodes that reads its second input first comes back as the same function."""
    pytest.importorskip("onnxscript")
    spec = Tensor("float32", (2, 3))
    calls = Calls(
        (spec, spec),
        (),
        (Call("neg.default", ({"read": 1},)), Call("exp.default", ({"call": 0},)), Call("sub.Tensor", ({"read": 0}, {"call": 1}))),
    )
    attrs = {**STATED, "weights": 0, "shape": (2, 3), CALLS: calls.text()}
    ops = [
        Op("x", "input", (), {"shape": (2, 3)}),
        Op("a", "relu", ("x",)),
        Op("b", "tanh", ("x",)),
        Op("op", "opaque", ("a", "b"), attrs),
    ]
    graph = OpGraph.build("net", ops, "op")
    (part,) = [part for part in operators(to_onnx(graph, {})) if part.op.kind == "opaque"]
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    given = {"a": a, "b": b}
    again = make_module(Op("op", "opaque", part.op.inputs, part.op.attrs), [(2, 3), (2, 3)])
    assert torch.equal(again(*[given[name] for name in part.op.inputs]), a - torch.exp(-b))
    assert calls_of(part.op.attrs).calls != ()
