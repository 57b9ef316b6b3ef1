"""A timeline's parts that are uncertain."""

import numpy as np
import pytest

from stretch.planning.cost.draws import ROBUST, kept_ms


def test_time_that_most_draws_keep_is_a_quantile():
    assert kept_ms(np.arange(101.0)) == pytest.approx(100 * ROBUST)
