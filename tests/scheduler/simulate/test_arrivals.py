from itertools import islice

import numpy as np
import pytest

from predictors.errors import UsageError
from scheduler.simulate.arrivals import Arrivals, parse_arrivals


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "says nothing of arrivals"),
        ("often", "says nothing of arrivals"),
        ("periodic", "says nothing of arrivals"),
        ("poisson:many", "in the place of a number"),
        ("periodic:0", "requests cannot come as `periodic:0` says"),
        ("periodic:-5", "requests cannot come"),
        ("poisson:nan", "requests cannot come"),
        ("poisson:inf", "requests cannot come"),
        ("poisson:1e-320", "requests cannot come"),
    ],
)
def test_arrivals_that_make_no_sense_are_refused(text, told):
    with pytest.raises(UsageError) as error:
        parse_arrivals(text)
    assert told in error.value.message
    assert error.value.hint


def test_periodic_requests_come_at_equal_distances_from_the_start_on():
    assert list(islice(Arrivals("periodic", 2.5).times(7), 4)) == [0, 2.5, 5, 7.5]


def test_random_requests_are_as_far_apart_as_an_exponential_law_says():
    times = np.array(list(islice(Arrivals("poisson", 4.0).times(3), 20_000)))
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    # mean and standard deviation are both 4, each known to about 1 %
    assert gaps.mean() == pytest.approx(4, rel=0.05)
    assert gaps.std() == pytest.approx(4, rel=0.05)
    assert (gaps > 4).mean() == pytest.approx(np.exp(-1), abs=0.02)
