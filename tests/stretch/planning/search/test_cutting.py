"""Segments that begin and end at blocks are more designs of the same network, with the costs they state."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.scale import scaled_graph
from stretch.planning.plan import plan
from stretch.planning.search.banded import BandedSpace
from stretch.planning.search.cutting import cut_blocks, with_cuts
from stretch.planning.search.exact import search_exact
from stretch.planning.search.goal import Goal, search_best
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.rules import Rules
from stretch.planning.search.seams import without_seams
from tests.effort import examples
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE, as_design, fastest_by_brute_force, make_space

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


@pytest.mark.slow
def test_merged_segments_go_on_over_the_ends_of_stages_and_of_the_stem():
    space, cut = spaces(merged=True)
    assert {"stem_to_s1", "stem_to_s2", "s1_to_s2", "s1_2_to_s2_1", "stem_to_s1_1"} <= names(cut)
    ends = {part.name: (part.start, part.end) for part in cut.segments}
    for first, offers in enumerate(cut.offers):
        for offer in offers:
            run = cut.segments[first : first + offer.span]
            assert (offer.segment.start, offer.segment.end) == (ends[run[0].name][0], ends[run[-1].name][1])
            assert offer.segment.graph.macs == sum(part.graph.macs for part in run)
    assert cut.size_log10 > space.size_log10


def test_stages_that_are_kept_are_in_no_stretched_segment():
    space = make_space(GRAPH, **FREE)
    space.kept = frozenset({"s1"})
    banded = BandedSpace(GRAPH, space)
    cut = with_cuts(GRAPH, banded, banded.mixed(()), merged=True)
    assert not any("s1" in name for name in names(cut) if name != "s1")
    assert "stem" in names(cut)


@pytest.mark.slow
def test_segment_is_left_out_only_where_no_way_keeps_to_the_rule_on_communication():
    _, every = spaces(merged=True)
    _, some = spaces(merged=True, alpha=2.0)
    rule = Rules({**every.rules.values, "alpha": 2.0})
    dropped = 0
    for first, offers in enumerate(every.offers):
        left = {(offer.segment.name, offer.subset) for offer in some.offers[first]}
        for offer in offers:
            if (offer.segment.name, offer.subset) not in left:
                ways = offer.full.ways(every.holders)
                assert not rule.allowed(ways, every.alone_ms(ways)).any()
                dropped += 1
    assert dropped > 0
    assert names(some)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
@pytest.mark.parametrize("merged", [False, True])
def test_cutting_never_makes_the_fastest_design_slower(processors, merged):
    space, cut = spaces(processors, merged, min_width=0.5)
    for low, high in ((0.97, 1.03), (0.8, 1.2)):
        macs = round(low * GRAPH.macs), round(high * GRAPH.macs)
        whole, best = search_best(space, *macs, 1, Goal()), search_best(cut, *macs, 1, Goal())
        assert best is not None
        assert whole is None or best.ms <= whole.ms + 1e-9


@pytest.mark.slow
@given(st.data(), st.sampled_from(["project", "sum"]))
@settings(max_examples=examples(40), deadline=None)
def test_option_of_a_cut_segment_costs_what_the_timeline_of_its_design_says(data, join):
    _, cut = spaces(("cpu", "gpu", "dsp"), True, join=join)
    first = data.draw(st.sampled_from([i for i, offers in enumerate(cut.offers) if offers]))
    offer = data.draw(st.sampled_from(cut.offers[first])).full
    number = data.draw(st.integers(0, offer.count - 1))
    ways = offer.ways(cut.holders, np.array([number]))
    wholes = [cut.ready[i][0].design(0, cut.costs) for i in range(len(cut.segments))]
    design = as_design(GRAPH, [*wholes[:first], ways.design(0, cut.costs), *wholes[first + offer.span :]])
    run = timeline(GRAPH, design, cut.costs)
    row = run.segments[first]
    assert row.design.join == join
    assert row.macs == ways.macs[0]
    assert row.params == ways.params[0]
    assert row.ms == pytest.approx(ways.ms[cut.holders.index("cpu"), 0])
    assert scaled_graph(GRAPH, design).macs == run.macs


@pytest.mark.slow
def test_predicted_makespan_of_cut_segments_is_that_of_the_design():
    space, cut = spaces(("cpu", "gpu", "dsp"), True, min_width=0.5)
    macs = round(0.97 * GRAPH.macs), round(1.03 * GRAPH.macs)
    found = search_best(cut, *macs, 2, Goal())
    parts = without_seams(GRAPH, space.segments, found.segments(cut.costs))
    run = timeline(GRAPH, as_design(GRAPH, parts), cut.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert (run.macs, run.params) == (found.macs, found.params)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kinds", [("stretch",), ("stretch", "rows"), ("stretch", "rows", "channels", "graph")])
@pytest.mark.parametrize("merge", ["never", "auto", "always"])
def test_plan_that_may_cut_at_blocks_is_never_slower(kinds, merge):
    stages, blocks = (
        plan(GRAPH, specified("mi9"), PlanConfig(processors=("cpu", "gpu"), kinds=kinds, merge=merge, cuts=cuts, **LOOSE))
        for cuts in ("stages", "blocks")
    )
    assert blocks.run.makespan_ms <= stages.run.makespan_ms + 1e-9
    assert blocks.design.n_meet >= 1
    assert blocks.sequential.single.ms == stages.sequential.single.ms


@pytest.mark.slow
def test_exact_kinds_beside_cut_segments_are_those_without_cuts():
    _, cut = spaces(kinds=("stretch", "rows"))
    _, plain = spaces()
    space = make_space(GRAPH, **FREE)
    mixed = BandedSpace(GRAPH, space, merged=False).mixed(("rows",))
    assert [len(ready) for ready in cut.ready] == [len(ready) for ready in mixed.ready]
    assert names(cut) == names(plain)
    low, high = round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs)
    assert search_best(cut, low, high, 1, Goal()).ms <= search_exact(mixed, low, high, 1).ms + 1e-9
