"""Segments that begin and end at blocks are more designs of the same network, with the costs they state."""

from functools import cache

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.search.banded import BandedSpace
from stretch.planning.search.cutting import cut_blocks, with_cuts
from stretch.planning.search.goal import Goal, search_best
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.seams import without_seams
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import as_design, fastest_by_brute_force, make_space

GRAPH = small_resnet(16, blocks=(2, 3), mids=(8, 16))
#: Lets segments branch for which an exchange takes far longer than they do.
FREE = {"alpha": 1e6, "beta": 1e6}
#: So small that every design can be tried.
SMALL = small_resnet(blocks=(1, 2), mids=(4, 8))


@cache
def spaces(processors=("cpu", "gpu"), merged=False, kinds=(), **changes):
    space = make_space(GRAPH, processors=processors, **(FREE | changes))
    space = merge_stages(GRAPH, space) if merged else space
    return space, cut_blocks(GRAPH, PlanConfig(merge="always" if merged else "never"), space, kinds, merged=merged)


def names(space):
    return {offer.segment.name for offers in space.offers for offer in offers}


def test_segments_begin_and_end_at_every_block_of_their_stage():
    _, cut = spaces()
    assert [part.name for part in cut.segments] == ["stem", "s1_1", "s1_2", "s2_1", "s2_2", "s2_3", "head"]
    inner = {"s1_1", "s1_2", "s2_1", "s2_2", "s2_3", "s2_1_to_s2_2", "s2_2_to_s2_3"}
    assert names(cut) == {"stem", "s1", "s2", *inner}


def test_stages_that_are_kept_are_in_no_stretched_segment():
    space = make_space(GRAPH, **FREE)
    space.kept = frozenset({"s1"})
    banded = BandedSpace(GRAPH, space)
    cut = with_cuts(GRAPH, banded, banded.mixed(()), merged=True)
    assert not any("s1" in name for name in names(cut) if name != "s1")
    assert "stem" in names(cut)


@pytest.mark.parametrize("n_meet", [0, 1, 2])
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_exact_search_over_cut_segments_equals_brute_force(device, n_meet):
    space = merge_stages(SMALL, make_space(SMALL, device, min_width=0.9, min_depth=0.9, **FREE))
    cut = cut_blocks(SMALL, PlanConfig(merge="always"), space, merged=True)
    low, high = round(0.9 * SMALL.macs), round(2.0 * SMALL.macs)
    best, count = fastest_by_brute_force(cut, low, high, n_meet)
    found = search_best(cut, low, high, n_meet, Goal())
    assert count > 100
    assert found.optimal
    assert found.ms == pytest.approx(best)
    assert found.n_meet >= n_meet


def test_predicted_makespan_of_cut_segments_is_that_of_the_design():
    space, cut = spaces(("cpu", "gpu", "dsp"), True, min_width=0.5)
    macs = round(0.97 * GRAPH.macs), round(1.03 * GRAPH.macs)
    found = search_best(cut, *macs, 2, Goal())
    parts = without_seams(GRAPH, space.segments, found.segments(cut.costs))
    run = timeline(GRAPH, as_design(GRAPH, parts), cut.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert (run.macs, run.params) == (found.macs, found.params)
