"""Offers are the same ways whether all of them are worked out or some."""

from functools import cache

import pytest

from stretch.planning.search.offers import Thinning
from tests.predictors.networks import efficientnet, small_resnet
from tests.stretch.planning.spaces import make_space

PROCESSORS = ("cpu", "gpu", "dsp")


@cache
def offered(name, join):
    graph = (
        small_resnet(blocks=(2, 3))
        if name == "bottleneck"
        else efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 3)], 16, 48, 32, se=True, act="silu")
    )
    space = make_space(graph, processors=PROCESSORS, join=join, min_width=0.5)
    return space.holders, [offer for offers in space.offers for offer in offers]


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
