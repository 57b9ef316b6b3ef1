"""Offers are the same ways whether all of them are worked out or some."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretch.planning.cost.features import FEATURES, way_features
from stretch.planning.search.offers import Thinning
from tests.effort import examples
from tests.predictors.networks import efficientnet, small_resnet
from tests.stretch.planning.spaces import make_space

PROCESSORS = ("cpu", "gpu", "dsp")
ARRAYS = ("macs", "params", "depth", "slowest_ms", "fastest_ms", "peak_bytes")


@cache
def offered(name, join):
    graph = (
        small_resnet(blocks=(2, 3))
        if name == "bottleneck"
        else efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 3)], 16, 48, 32, se=True, act="silu")
    )
    space = make_space(graph, processors=PROCESSORS, join=join, min_width=0.5)
    return space.holders, [offer for offers in space.offers for offer in offers]


@pytest.mark.slow
@given(st.data(), st.sampled_from(["bottleneck", "inverted"]), st.sampled_from(["project", "sum"]))
@settings(max_examples=examples(40))
def test_ways_that_are_worked_out_alone_are_those_among_all(data, name, join):
    holders, offers = offered(name, join)
    offer = data.draw(st.sampled_from(offers))
    every = offer.ways(holders)
    numbers = np.array(sorted(data.draw(st.sets(st.integers(0, offer.count - 1), min_size=1, max_size=12))))
    some = offer.ways(holders, numbers)
    for column in ARRAYS:
        np.testing.assert_array_equal(getattr(some, column), getattr(every, column)[numbers])
    for column in ("ms", "exchange_ms", "allowed"):
        np.testing.assert_array_equal(getattr(some, column), getattr(every, column)[:, numbers])
    for processor, ms in some.busy().items():
        np.testing.assert_array_equal(ms, every.busy()[processor][numbers])
    np.testing.assert_array_equal(way_features(some, tuple(FEATURES)), way_features(every, tuple(FEATURES))[numbers])
    assert [some.chosen(i) for i in range(len(numbers))] == [every.chosen(n) for n in numbers]
    assert [some.design(i, offer.costs) for i in range(len(numbers))] == [every.design(n, offer.costs) for n in numbers]


@pytest.mark.parametrize("name", ["bottleneck", "inverted"])
def test_fewer_scales_are_among_all_with_the_first_and_the_last(name):
    holders, offers = offered(name, "project")
    for offer in offers:
        few = offer.thinned(Thinning(3, 2))
        assert few is offer.thinned(Thinning(3, 2))
        assert few.full.scales == offer.scales
        for (widths, depths), (all_widths, all_depths) in zip(few.scales, offer.scales, strict=True):
            assert len(widths) <= 3
            assert len(depths) <= 2
            assert set(widths) <= set(all_widths)
            assert set(depths) <= set(all_depths)
            assert (widths[0], widths[-1], depths[0], depths[-1]) == (all_widths[0], all_widths[-1], all_depths[0], all_depths[-1])
        assert few.count == len(few.ways(holders).macs)
        assert offer.count == len(offer.ways(holders).macs)
