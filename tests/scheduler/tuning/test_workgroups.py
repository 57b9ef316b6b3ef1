from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.tuning.workgroups import Limits, exhaustive, fast, fast_convolution, greatest_divisor, greatest_even_divisor, three

WIDE = Limits(256, (1024, 1024, 64))

grids = st.lists(st.integers(1, 70), min_size=1, max_size=3).map(tuple)
limits = st.builds(Limits, st.integers(1, 512), st.tuples(*[st.integers(1, 64)] * 3))


@pytest.mark.parametrize(("n", "most", "expected"), [(12, 8, 6), (7, 8, 7), (13, 8, 1), (64, 16, 16)])
def test_greatest_divisor(n, most, expected):
    assert greatest_divisor(n, most) == expected


@pytest.mark.parametrize(("n", "expected"), [(16, 8), (12, 4), (6, 2), (9, 3), (35, 7), (11, 1)])
def test_even_divisors_are_preferred(n, expected):
    assert greatest_even_divisor(n) == expected


def test_fast_follows_the_formulas_of_the_paper():
    # z = gbdp(32) = 8, xy = 256 // 8 = 32, x = min(⌈56 / 2⌉, 32) = 28, y = min(32 // 28, 56) = 1
    assert fast((56, 56, 32), WIDE) == (28, 1, 8)
    # z = gbd(32, 16) = 16, xy = 256 // 16 = 16, x = min(56, 16) = 16, y = min(1, 56) = 1
    assert fast_convolution((56, 56, 32), WIDE) == (16, 1, 16)
    # z = gbd(4, 16) = 4, xy = 64, x = 7, y = min(9, 7) = 7, the whole of an odd dimension
    assert fast_convolution((7, 7, 4), WIDE) == (7, 7, 4)
    # y = gy and gy is even: half of it
    assert fast_convolution((8, 8, 4), WIDE) == (8, 4, 4)
    assert fast_convolution((56, 56, 64), WIDE, most_z=64) == (4, 1, 64)


@given(grids, limits)
def test_fast_is_always_allowed(grid, limit):
    assert limit.allow(fast(grid, limit))
    assert limit.allow(fast_convolution(grid, limit))


@given(grids, limits, st.booleans())
def test_every_exhaustive_candidate_is_allowed_and_there_is_one(grid, limit, loose):
    found = exhaustive(grid, limit, loose)
    assert found
    assert len(set(found)) == len(found)
    assert all(limit.allow(size) for size in found)


def test_exhaustive_takes_divisors_with_32_work_items_or_more():
    found = exhaustive((12, 10, 4), WIDE)
    assert all(12 % x == 0 and 10 % y == 0 and 4 % z == 0 and 32 <= prod((x, y, z)) <= 256 for x, y, z in found)
    assert (12, 10, 2) in found
    assert set(found) < set(exhaustive((12, 10, 4), WIDE, loose=True))


def test_small_grids_fall_back_to_parts_and_then_to_small_groups():
    assert exhaustive((5, 3, 1), WIDE) == [(x, y, 1) for y in (1, 2, 3) for x in (2, 3, 5)]
    assert exhaustive((5, 3, 1), Limits(1, (1, 1, 1))) == [(1, 1, 1)]


def test_device_that_allows_nothing_is_an_error():
    with pytest.raises(StretchError, match="no work-group at all"):
        exhaustive((4, 4, 4), Limits(0, (1, 1, 1)))


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4), (0, 1)])
def test_what_is_no_grid_is_refused(grid):
    with pytest.raises(ValueError, match="no grid"):
        three(grid)
