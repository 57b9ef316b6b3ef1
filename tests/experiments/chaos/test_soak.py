from collections import Counter

import numpy as np
import pytest

from experiments.chaos.soak import Sample, slope, summed


def grown(count, mib):
    return [Sample(float(i), 4, 10, 1, mib(i), 0.0) for i in range(count)]


def test_growth_is_what_the_second_half_gains_an_hour():
    row = summed(Counter(inferences=7, lost=1), grown(100, lambda item: 500.0 if item < 50 else 100.0 + item / 60), 2)
    assert row["growth mib per hour"] == pytest.approx(60)
    assert (row["inferences"], row["lost"], row["wrong"], row["left behind"]) == (7, 1, 0, 2)
    assert row["mib at the end"] > row["mib at half"]


def test_slope_is_that_of_least_squares():
    xs, ys = [0.0, 1.0, 2.0, 5.0], [1.0, 3.0, 2.0, 8.0]
    assert slope(xs, ys) == pytest.approx(np.polyfit(xs, ys, 1)[0])
    assert slope([1.0], [5.0]) == 0
