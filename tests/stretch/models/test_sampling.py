import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.models.sampling import MAX_SIDE, between

pytestmark = pytest.mark.torch

PLACES = st.lists(st.floats(-2, 8, width=32), min_size=1, max_size=9)


@given(PLACES, st.integers(1, 6))
def test_pixels_between_others_are_those_of_numpy(places, old):
    made = between(np.array(places), old)
    values = np.random.default_rng(0).normal(size=old)
    np.testing.assert_allclose(made @ values, np.interp(places, np.arange(old), values), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made.sum(1), 1, rtol=1e-5)


def test_matrix_that_would_be_too_large_is_refused():
    with pytest.raises(StretchError, match="coordinates that torch has not"):
        between(np.zeros(MAX_SIDE + 1), 2)
