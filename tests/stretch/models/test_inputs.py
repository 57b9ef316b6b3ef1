import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.models.inputs import Inputs

pytestmark = pytest.mark.torch

STORED = np.array([4, 5])


def test_inputs_that_are_stored_computed_or_left_out_are_told_apart():
    read = Inputs[str](["computed", STORED, None])
    assert [read.value(i) is None for i in range(5)] == [False, False, True, True, True]
    assert read.known(1, "axes") is STORED
    assert read.optional(1, "axes") is STORED
    assert read.optional(2, "bias") is None


@pytest.mark.parametrize("i", [0, 2, 7])
def test_what_the_file_must_store_is_named_where_it_does_not(i):
    with pytest.raises(StretchError, match="its weight depends on what the network reads, or is left out"):
        Inputs[str](["computed", STORED, None]).known(i, "weight")
