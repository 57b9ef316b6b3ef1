"""Operators that state their cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import KERNEL_KINDS
from predictors.errors import StretchError
from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.operators.opaque import PRODUCTS

STATED = {
    "shape": (1, 7, 12),
    "kernel": "linear",
    "variant": "einsum",
    "in_channels": 4,
    "out_channels": 12,
    "groups": 1,
    "taps": 1,
    "pixels": 7,
    "weights": 48,
}


def graph(**changes):
    ops = [
        Op("x", "input", attrs={"shape": (1, 7, 4)}),
        Op("y", "opaque", ("x",), STATED | changes),
        Op("z", "view", ("y",), {"shape": (1, 84)}),
    ]
    return OpGraph.build("g", ops, "z")


def test_stated_work_is_the_kernel_and_the_view_launches_none():
    (kernel,) = fuse(graph(), "tflite_cpu")
    assert kernel.ops == ("y",)
    assert kernel.macs == 4 * 12 * 7
    assert (kernel.cost.kind, kernel.cost.reads, kernel.cost.writes, kernel.cost.weights) == ("linear", 28, 84, 48)


@given(
    st.sampled_from(KERNEL_KINDS),
    st.tuples(*[st.integers(1, 50)] * 5),
    st.integers(0, 1000),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_graph_with_any_stated_operator_survives_json(kernel, work, weights, shape):
    named = dict(zip(("in_channels", "out_channels", "groups", "taps", "pixels"), work, strict=True))
    ops = [
        Op("x", "input", attrs={"shape": (1, 3)}),
        Op("y", "opaque", ("x",), STATED | named | {"kernel": kernel, "weights": weights, "shape": tuple(shape)}),
    ]
    built = OpGraph.build("g", ops, "y")
    assert OpGraph.from_json(built.to_json()) == built
    product = 1
    for count in work:
        product *= count
    assert built.macs == (product if kernel in PRODUCTS else 0)
    assert built.params == weights


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": "magic"}, "none of conv1x1"),
        ({"taps": 0}, "`taps` is 0"),
        ({"pixels": 1 << 60}, "`pixels` is"),
        ({"weights": -1}, "`weights` is -1"),
        ({"groups": "two"}, "not a whole number"),
        ({"variant": 3}, "not a name"),
        ({"shape": (1, 0, 12)}, "empty output shape"),
    ],
)
def test_statement_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(StretchError, match=words):
        graph(**changes)


def test_view_of_another_number_of_elements_is_refused():
    with pytest.raises(ValueError, match="cannot be seen as"):
        kind_of("view").shape([(1, 6)], {"shape": (1, 9)})
    assert kind_of("view").shape([(1, 6, 1)], {"shape": (1, 6, 5)}) == (1, 6, 5)
