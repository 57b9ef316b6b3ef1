"""What single segments lose, as a predictor of designs."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from predictors.errors import UsageError
from stretch.planning.cost.sensitivity import HELPS, SEEN
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.search.exact import search_exact
from tests.stretch.planning.cost.measured import GRAPH, made, merged_space
from tests.stretch.planning.spaces import make_space


@cache
def predictor():
    return made(merged_space())


def test_losses_of_options_add_up_to_that_of_the_design():
    space, own = merged_space(), predictor()
    found = search_exact(space, round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs), 2)
    design = BranchDesign(GRAPH.name, "mi9", found.segments(space.costs))
    total = sum(own.losses(options)[index] for options, index in found.picks)
    assert total > 0
    assert own.loss(GRAPH, design) == pytest.approx(total, rel=1e-9)


def test_what_stays_whole_or_is_divided_exactly_loses_nothing_and_agrees_always():
    own = predictor()
    for options in (o for group in make_space(GRAPH).options for o in group if not o.branched):
        assert not own.losses(options).any()
    stage = make_space(GRAPH).segments[1]
    bands = tuple(BranchScale(p, stage.depth, stage.width, rows=rows) for p, rows in (("cpu", (0, 40)), ("gpu", (40, 96))))
    others = [SegmentDesign(s.name, s.start, s.end, (BranchScale("cpu", s.depth, s.width),)) for s in make_space(GRAPH).segments]
    others[1] = SegmentDesign(stage.name, stage.start, stage.end, bands, "rows")
    design = BranchDesign(GRAPH.name, "mi9", tuple(others))
    found = own.answer(GRAPH, design)
    assert (found.agreement, found.low, found.high, found.basis, found.source) == (1.0, 1.0, 1.0, "sensitivity", "predicted")


@given(st.lists(st.floats(-3, 0), min_size=len(SEEN), max_size=len(SEEN)), st.integers(0, len(HELPS) - 1), st.floats(0.01, 1))
def test_more_depth_width_or_macs_never_loses_more(row, which, more):
    own, at = predictor(), SEEN.index(HELPS[which])
    helped = list(row)
    helped[at] += more
    less, same = own.loss_of(("s1",), np.array([helped, row]))
    assert 0 < less <= same


def test_agreement_of_one_allows_no_loss():
    own = predictor()
    assert own.most_loss(1.0) == 0
    assert own.value(0.0) == 1


def test_interval_holds_the_prediction_and_widens_with_the_spread():
    own = predictor()
    narrow, wide = replace(own, spread=0.1).told(0.3), replace(own, spread=1.0).told(0.3)
    assert wide.low < narrow.low < narrow.agreement < narrow.high < wide.high


def test_segment_early_in_the_network_counts_less_than_a_late_one():
    own = predictor()
    names = [stage.name for stage in own.stages]
    shares = [own.counts((name,)) for name in names]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_other_join_and_other_meeting_points_are_refused():
    own = predictor()
    branched = next(o for group in make_space(GRAPH, join="sum").options for o in group if o.branched)
    with pytest.raises(UsageError, match="says nothing of `sum`"):
        own.losses(branched)
    with pytest.raises(UsageError, match="begin and end where its stages do"):
        replace(own, stages=own.stages[:1]).losses(next(o for group in make_space(GRAPH).options for o in group if o.branched))
