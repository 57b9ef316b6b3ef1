import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, reals, rule, sizes

#: Gates and states by operator.
KINDS = {"LSTM": (4, 2), "GRU": (3, 1), "RNN": (1, 1)}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def shapes(op, steps, batch, width, size, ways):
    """Shapes of everything that a layer may read; its lengths are left out."""
    gates, states = KINDS[op]
    state = (ways, batch, size)
    return [
        (steps, batch, width),
        (ways, gates * size, width),
        (ways, gates * size, size),
        (ways, 2 * gates * size),
        None,
        *[state] * states,
    ]


@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(DIRECTIONS)), sizes, sizes, sizes, sizes, st.booleans(), st.data())
def test_layer_gives_all_outputs_and_the_last_states(op, direction, steps, batch, width, size, bare, data):
    given_shapes = shapes(op, steps, batch, width, size, DIRECTIONS[direction])
    inputs = [None if shape is None else reals(shape) for shape in (given_shapes[:3] if bare else given_shapes)]
    results = data.draw(st.integers(1, 1 + KINDS[op][1]))
    agrees(Case(op, inputs, {"direction": direction, "hidden_size": size}, results=results))


@pytest.mark.parametrize(
    ("changed", "attrs", "problem"),
    [
        ({0: (7, 3)}, {}, "its input has the shape"),
        ({1: (1, 20, 4)}, {}, "its weights have the shape"),
        ({2: (1, 19, 5)}, {}, "its recurrent weights have the shape"),
        ({3: (1, 20)}, {}, "its input 3 is not of the shape"),
        ({4: (2,)}, {}, "lengths of their own"),
        ({6: (1, 2, 4)}, {}, "its input 6 is not of the shape"),
        ({}, {"hidden_size": 0}, "its hidden_size is 0"),
        ({}, {"layout": 1}, "its batch comes first"),
        ({}, {"direction": b"sideways"}, "its direction is `sideways`"),
    ],
)
def test_layer_that_does_not_fit_is_refused(changed, attrs, problem):
    found = shapes("LSTM", 7, 2, 3, 5, 1)
    for i, shape in changed.items():
        found[i] = shape
    with pytest.raises(StretchError, match=problem):
        rule("LSTM", found, {"hidden_size": 5, **attrs})
