"""Properties of every constraint, and a bound in general."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.config import PlanConfig
from stretch.planning.constraints import (
    constraints,
)
from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.network.segments import split_segments
from stretch.planning.search.space import Rules
from tests.predictors.networks import efficientnet_b5, resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import make_space

SEGMENT = next(segment for segment in split_segments(small_resnet()) if segment.branchable)


def combinations_of(branches=2, **figures):
    """Combinations of branches with the given figures, one value per combination; every other figure is 1."""
    count = len(next(iter(figures.values())))
    result = {name: np.ones(count) for name in ("macs", "params", "slowest_ms", "fastest_ms", "peak_bytes")}
    result |= {name: np.ones((1, count)) for name in ("ms", "exchange_ms")}
    for name, values in figures.items():
        result[name] = np.array(values).reshape(result[name].shape)
    return SegmentOptions(SEGMENT, "project", ((),) * branches, **result)


@given(st.lists(st.floats(0.01, 100), min_size=1), st.floats(0.01, 10), st.floats(0.1, 50))
def test_miss_is_explained_exactly_where_no_combination_keeps_the_bound(exchanges, alpha, segment_ms):
    result = combinations_of(exchange_ms=exchanges)
    missed = constraints["alpha"].explain_miss(alpha, [result], [segment_ms])
    if abs(min(exchanges) / segment_ms / alpha - 1) > 1e-9:
        assert (missed is None) == constraints["alpha"].mask(alpha, result, segment_ms).any()


def test_explanation_of_a_miss_states_the_best_share_and_the_bound():
    rows = [combinations_of(exchange_ms=[5.0, 3.0]), combinations_of(exchange_ms=[4.0])]
    assert constraints["alpha"].explain_miss(0.1, rows, [10.0, 20.0]) == "a transfer takes at least 0.2 of the segment; the maximum is 0.1"
    unlike = combinations_of(fastest_ms=[1.0, 2.0], slowest_ms=[10.0, 10.0])
    assert (
        constraints["balance"].explain_miss(0.5, [unlike], [1.0])
        == "the fastest branch takes at most 0.2 of the slowest; the minimum is 0.5"
    )


@pytest.mark.parametrize(
    ("constraint", "value", "loosened", "ladder"),
    [
        (constraints["alpha"], 0.2, [1e6], None),
        (constraints["min_depth"], 0.1, [0.075], (0.075,)),
        (constraints["min_depth"], 0.15, [0.075], (0.125, 0.1, 0.075)),
        (constraints["n_meet"], 4, [1], (3, 2, 1)),
        (constraints["n_meet"], 1, [], None),
        (constraints["peak_memory"], 7, [30], None),
        (constraints["macs"], (0.97, 1.03), [(0.01, 1.03), (0.97, 100.0)], None),
    ],
)
def test_each_number_of_a_rule_is_loosened_alone_until_it_excludes_nothing(constraint, value, loosened, ladder):
    rows = [combinations_of(peak_bytes=[10, 20, 30], exchange_ms=[1.0, 1e5, 1.0]), combinations_of(peak_bytes=[5])]
    limits = constraint.limits(value, rows)
    assert [limit.with_number(value, limit.loosest) for limit in limits] == loosened
    assert all(limit.ladder == ladder for limit in limits)
    for limit in limits:
        mask = constraint.mask(limit.with_number(value, limit.loosest), rows[0], 1.0)
        assert mask is None or mask.all()


S4 = next(s for s in split_segments(resnet50()) if s.name == "s4")
B5 = next(s for s in split_segments(efficientnet_b5()) if s.name == "s5")


@pytest.mark.parametrize(
    ("segment", "floor", "depths"),
    [(B5, 0.5, [4, 5, 6, 7]), (B5, 4 / 7, [4, 5, 6, 7]), (B5, 0.58, [5, 6, 7]), (B5, 1.0, [7]), (S4, 0.01, [1, 2, 3])],
)
def test_depths_start_at_the_floor_and_the_entry_block_is_never_removed(segment, floor, depths):
    assert Rules.of(PlanConfig(min_depth=floor).resolve(specified("pixel6"))).depths(segment) == depths


def test_memory_is_bounded_only_on_request_and_also_for_whole_segments():
    assert "peak_memory" not in Rules.of(PlanConfig().resolve(specified("pixel6"))).values
    result = combinations_of(peak_bytes=[10, 20, 30])
    for rules, allowed in (({}, [True, True, True]), ({"peak_memory": 20}, [True, True, False])):
        assert Rules(rules).allowed(result, 1.0).tolist() == [allowed]
    whole = combinations_of(branches=1, peak_bytes=[20, 21])
    assert Rules({"peak_memory": 20, "alpha": 1e-6}).allowed(whole, 1.0).tolist() == [[True, False]]


@pytest.mark.parametrize("floor", [0.25, 0.375, 0.5, 1 / 3])
def test_widths_are_offered_from_the_floor_up(floor):
    edge = floor * SEGMENT.width
    offered = [constraints["min_width"].offers_scale(floor, SEGMENT, "width", width) for width in (edge - 0.01, edge, SEGMENT.width)]
    assert offered == [False, True, True]


@pytest.mark.parametrize("share", [0.5, 0.75, 1.0])
def test_one_branch_keeps_the_requested_share_of_blocks_at_full_width(share):
    space = make_space(intact=share)
    kept = []
    for options in (o for stage in space.options for o in stage if o.branched):
        for index in range(len(options.macs)):
            most = max(b.depth if b.width == options.segment.width else 0 for b in options.branches_of(index))
            kept.append(most >= share * options.segment.depth)
            assert options.allowed[:, index].any() <= kept[-1]
    assert 0 < sum(kept) < len(kept)
