import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, reals, rule, shapes, whole

X = (1, 3, 8, 8)


def axis_of(draw, shape):
    """An axis, counted from the first or from the last."""
    return draw(st.integers(-len(shape), len(shape) - 1))


@given(shapes, st.data())
def test_cut_of_several_axes_clamps_bounds_as_the_runtime_does(shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bounds = st.integers(-8, 8)
    starts = [data.draw(bounds | st.sampled_from([-(2**63) + 1, 2**63 - 1])) for _ in axes]
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    # The largest number stands for the end of the axis, the smallest for before its beginning.
    ends = [data.draw(bounds | st.just(2**63 - 1 if step > 0 else -(2**63) + 1)) for step in steps]
    signed = [i - len(shape) if data.draw(st.booleans()) else i for i in axes]
    case = Case("Slice", [reals(shape), *[whole(*each) for each in (starts, ends, signed, steps)]], stored=(1, 2, 3, 4))
    made = case.computed()
    if made[0].size:
        agrees(case)
    else:
        with pytest.raises(StretchError, match="it cuts nothing"):
            rule("Slice", [shape] * 5, {}, dict(enumerate((starts, ends, signed, steps), 1)))


@given(shapes, st.sampled_from(["constant", "reflect", "edge", "wrap"]), st.data())
def test_padding_grows_and_cuts_in_every_mode(shape, mode, data):
    # What the runtime reflects or wraps must be there.
    most = {"reflect": min(shape) - 1, "wrap": min(shape)}.get(mode, 3)
    least = -((min(shape) - 1) // 2) if mode == "constant" else 0
    widths = [data.draw(st.integers(least, most)) for _ in range(2 * len(shape))]
    agrees(Case("Pad", [reals(shape), whole(*widths)], {"mode": mode}, stored=(1,)))
    axis = axis_of(data.draw, shape)
    agrees(Case("Pad", [reals(shape), whole(*widths[:2]), np.float32(0).reshape(()), whole(axis)], {"mode": mode}, stored=(1, 2, 3)))


@given(shapes, st.data())
def test_repetition_multiplies_sizes(shape, data):
    times = [data.draw(st.integers(1, 3)) for _ in shape]
    agrees(Case("Tile", [reals(shape), whole(*times)], stored=(1,)))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Concat", ([X, (1, 3, 8, 9)], {"axis": 1}), "differ beside"),
        ("Concat", ([X, (1, 3, 8)], {"axis": 1}), "number of axes"),
        ("Concat", ([X, X],), "along which axis"),
        ("Concat", ([X, X], {"axis": 4}), "its axis is 4"),
        ("Split", ([X, (2,)], {"axis": 1}, {1: [1, 1]}, 2), r"splits 3 into \[1, 1\]"),
        ("Split", ([X, (2,)], {"axis": 1}, {1: [4, -1]}, 2), r"splits 3 into"),
        ("Split", ([X, (2,)], {"axis": 1}, {1: [2, 1]}, 3), r"splits 3 into"),
        ("Split", ([X], {"axis": 1, "num_outputs": 3}, {}, 2), "3 parts for 2 results"),
        ("Slice", ([X] * 4, {}, {1: [0], 2: [0], 3: [1]}), "cuts nothing from axis 1"),
        ("Slice", ([X] * 4, {}, {1: [0, 0], 2: [1, 1], 3: [1, -3]}), "there twice"),
        ("Slice", ([X] * 5, {}, {1: [0], 2: [1], 3: [1], 4: [0]}), "do not fit together"),
        ("Slice", ([X] * 4, {}, {1: [0], 2: [1, 1], 3: [1]}), "do not fit together"),
        ("Slice", ([X] * 5, {}, {1: [0], 2: [2**63 - 1], 3: [1], 4: [-1]}), "runtimes read in two ways"),
        ("Slice", ([X] * 3,), "no short constant"),
        ("Slice", ([X],), "it has no bounds"),
        ("Pad", ([X, (8,)], {}, {1: [0] * 7 + [10**12]}), "it pads by"),
        ("Pad", ([X, (8,)], {"mode": b"mirror"}, {1: [0] * 8}), "in the mode `mirror`"),
        ("Pad", ([X, (8,)], {"mode": b"reflect"}, {1: [0] * 7 + [8]}), "pads axis 3 of 8 by 8"),
        ("Pad", ([X, (8,)], {}, {1: [0, 0, 0, 0, 0, 0, 0, -8]}), "cuts off everything"),
        ("Pad", ([X],), "how much it pads"),
        ("Expand", ([X, (1,)], {}, {1: [0]}), "it makes"),
        ("Expand", ([X, (1,)], {}, {1: [5]}), "do not go together"),
        ("Tile", ([X, (1,)], {}, {1: [2]}), "it repeats"),
        ("Trilu", ([(3,)],), "has the shape"),
        ("Trilu", ([(3, 3), (2,)],), "diagonal"),
    ],
)
def test_piece_that_does_not_fit_or_grows_too_much_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)
