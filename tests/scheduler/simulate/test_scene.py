from itertools import islice

import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.simulate.scene import Scene


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"runs": 0}, "0 inferences cannot be simulated"),
        ({"runs": -3}, "-3 inferences cannot be simulated"),
        ({"runs": 10**9}, "inferences cannot be simulated"),
        ({"in_flight": 0}, "0 inferences cannot be in flight"),
        ({"in_flight": 65}, "65 inferences cannot be in flight"),
        ({"jitter": -0.1}, "a jitter of -0.1 is out of range"),
        ({"jitter": float("nan")}, "a jitter of nan is out of range"),
        ({"jitter": float("inf")}, "a jitter of inf is out of range"),
        ({"jitter": 1.5}, "a jitter of 1.5 is out of range"),
        ({"seed": -1}, "-1 is no seed"),
    ],
)
def test_number_out_of_its_range_is_refused_with_a_sentence(asked, told):
    with pytest.raises(UsageError) as error:
        Scene(**asked)
    assert told in error.value.message
    assert error.value.hint


def test_factors_are_log_normal_around_one():
    drawn = np.log(list(islice(Scene(jitter=0.1, seed=5).factors(2), 10_000)))
    assert drawn.shape == (10_000, 2)
    assert np.abs(drawn.mean(0)).max() < 0.005
    assert drawn.std(0) == pytest.approx([0.1, 0.1], rel=0.05)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.05
