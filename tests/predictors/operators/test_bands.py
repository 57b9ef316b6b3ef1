"""Operators on bands of rows."""

import pytest

from predictors.operators import kind_of
from predictors.rows import Rows


def test_rows_are_cut_out_and_put_below_each_other():
    assert kind_of("slice_rows").shape([(1, 3, 8, 4)], {"start": 2, "stop": 5}) == (1, 3, 3, 4)
    assert kind_of("concat_rows").shape([(1, 3, 3, 4), (1, 3, 5, 4)], {}) == (1, 3, 8, 4)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (2, 9)])
def test_rows_that_are_not_there_are_refused(start, stop):
    with pytest.raises(ValueError, match="are not in"):
        kind_of("slice_rows").shape([(1, 3, 8, 4)], {"start": start, "stop": stop})


def test_bands_that_differ_in_more_than_rows_are_refused():
    with pytest.raises(ValueError, match="differ in more than rows"):
        kind_of("concat_rows").shape([(1, 3, 3, 4), (1, 4, 5, 4)], {})


def test_band_of_cut_rows_reads_them_alone():
    band = kind_of("slice_rows").rows([(1, 3, 8, 4)], {"start": 2, "stop": 7}, Rows(1, 3))
    assert band.reads == (Rows(3, 5),)
    assert band.attrs == {"start": 0, "stop": 2}
