"""Modules of every kind of operator, and of calls of torch."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from predictors.graph import Op  # noqa: E402
from predictors.operators import kind_of, kinds  # noqa: E402
from predictors.operators.opaque import CALLS  # noqa: E402
from stretch.capture.trace import capture_traced as capture  # noqa: E402
from stretch.opaque.calls import Call, Calls, CallTensor  # noqa: E402
from stretch.operators.lowerings import lowerings, make_module  # noqa: E402
from stretch.operators.opaque import Opaque, Reshape  # noqa: E402

COMPUTED = sorted(name for name in kinds if name != "input" and not kind_of(name).stated)
WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1), "ceil_mode": True}
ATTRS = {
    "conv": {"out_channels": 6, "kernel": (3, 2), "stride": (1, 2), "padding": (1, 0, 1, 0), "dilation": (1, 1), "groups": 2, "bias": True},
    "linear": {"out_features": 5, "bias": True},
    "batch_norm": {"eps": 1e-3, "momentum": 0.01, "affine": True},
    "gelu": {"approximate": "tanh"},
    "elu": {"alpha": 0.5},
    "leaky_relu": {"slope": 0.1},
    "clamp": {"low": -1.0, "high": 2.5},
    "max_pool": WINDOW,
    "avg_pool": {k: v for k, v in WINDOW.items() if k != "dilation"} | {"count_include_pad": False},
    "global_avg_pool": {"keepdims": False},
    "global_max_pool": {"keepdims": True},
    "pad": {"padding": (1, 2, 3, 4)},
    "slice": {"start": 1, "stop": 3},
    "slice_rows": {"start": 2, "stop": 5},
    "channel_shuffle": {"groups": 2},
    "upsample": {"scale": (2, 3)},
    "layer_norm": {"eps": 1e-6, "affine": True},
    "add_scalar": {"value": 3.0},
    "mul_scalar": {"value": -0.5},
    "dropout": {"p": 0.3},
    "stochastic_depth": {"p": 0.2, "mode": "row"},
    "group_norm": {"groups": 2, "eps": 1e-5, "affine": True},
    "global_l2_norm": {"keepdims": False},
    "rearrange": {"split": (3, 3, 9), "order": (1, 2, 0), "pixels": (27, 3)},
    "roll": {"shift": (2, 0)},
    "subsample": {"start": (0, 1), "stop": (9, 8), "step": (2, 3)},
    "channels_first": {"rows": 1},
    "attention": {"heads": 2, "keys": 9, "scale": 0.5, "bias": (2, 1, 9, 9), "mask": (1, 9, 9, 9)},
}
#: Where a kind reads something else than feature maps.
SHAPES = {"linear": (1, 4), "unflatten": (1, 4), "channels_first": (1, 9, 4)}


ONE_SIDED = [(kind, {**ATTRS[kind], "padding": (1, 1, 0, 1)}) for kind in ("max_pool", "avg_pool")]


@pytest.mark.representatives(16)
@pytest.mark.parametrize(("kind", "attrs"), [*((kind, ATTRS.get(kind, {})) for kind in COMPUTED), *ONE_SIDED])
def test_module_of_every_kind_traces_back_to_its_operator(kind, attrs):
    shape = SHAPES.get(kind, (1, 4, 9, 9))
    count = max(1, kind_of(kind).min_inputs)
    op = Op("op", kind, ("input",) * count, attrs)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.op = make_module(op, [shape] * count)

        def forward(self, x):
            return self.op(*[x] * count)

    traced = capture(Net(), shape).graph.by_name["op"]
    assert (traced.kind, dict(traced.attrs)) == (kind, dict(op.attrs))


def test_every_kind_that_computes_something_has_a_form():
    assert set(lowerings) == {*COMPUTED, "opaque", "view"}


@pytest.mark.representatives(14)
@pytest.mark.parametrize("kind", COMPUTED)
def test_weights_that_a_form_stores_are_those_of_its_kind(kind):
    """A batch norm without factors is stored with ones, so only what a kind has must be stored."""
    shape = SHAPES.get(kind, (1, 4, 9, 9))
    assert tuple(kind_of(kind).weights([shape] * max(1, kind_of(kind).min_inputs), ATTRS.get(kind, {}))) == lowerings.get(kind).stored


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
