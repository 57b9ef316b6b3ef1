import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import Op  # noqa: E402
from predictors.operators.opaque import CALLS  # noqa: E402
from stretch.opaque.calls import Call, Calls, CallTensor  # noqa: E402
from stretch.operators.lowerings import make_module  # noqa: E402
from stretch.operators.opaque import Opaque, Reshape  # noqa: E402

pytestmark = pytest.mark.torch

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


def test_modules_tell_what_they_compute():
    assert "sub.Tensor, index.Tensor" in repr(Opaque(CALLED, (1, 1)))
    assert "(2, 6)" in repr(Reshape((2, 6)))
