"""Places where bands are divided."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.search.splits import EVERY, bands, coarse, finer, orders


@given(st.integers(2, 120), st.integers(2, 4))
def test_places_divide_the_rows_into_bands_that_follow_each_other(rows, count):
    for split in coarse(rows, count) if rows >= count else []:
        found = bands(rows, split)
        assert (found[0][0], found[-1][1]) == (0, rows)
        assert all(a < b for a, b in found)
        assert [b for _, b in found[:-1]] == [a for a, _ in found[1:]]


@given(st.sampled_from([2, 3]), st.data())
def test_every_place_is_offered_where_there_are_few_rows(count, data):
    rows = data.draw(st.integers(count, EVERY[count]))
    assert coarse(rows, count) == list(combinations(range(1, rows), count - 1))
    assert finer(rows, count, coarse(rows, count), []) == []


@given(st.integers(18, 120), st.lists(st.tuples(st.floats(0, 2), st.floats(0.05, 1)), min_size=2, max_size=3))
def test_best_place_is_found_where_times_are_straight_lines(rows, lines):
    """Each band takes a fixed time and so much for each row."""
    count = len(lines)

    def slowest(split):
        return max(fixed + slope * (b - a) for (fixed, slope), (a, b) in zip(lines, bands(rows, split), strict=True))

    tried = coarse(rows, count)
    times = np.array(
        [[fixed + slope * (b - a) for (a, b) in [bands(rows, split)[i]]] for i, (fixed, slope) in enumerate(lines) for split in tried]
    )
    more = finer(rows, count, tried, [times.reshape(count, len(tried))])
    assert not set(more) & set(tried)
    least = min(b - a for split in tried for a, b in bands(rows, split))
    first, last = min(split[0] for split in tried), max(split[-1] for split in tried)
    every = combinations(range(first, last + 1), count - 1)
    best = min(slowest(split) for split in every if min(b - a for a, b in bands(rows, split)) >= least)
    assert min(map(slowest, [*tried, *more])) <= best + 1e-9


def test_each_of_three_processors_may_lie_in_the_middle():
    assert orders(("cpu", "gpu")) == [("cpu", "gpu")]
    three = orders(("cpu", "gpu", "dsp"))
    assert {order[1] for order in three} == {"cpu", "gpu", "dsp"}
    assert len(three) == 3
