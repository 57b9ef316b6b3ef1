"""Each rule at its edge."""

import numpy as np
import pytest

from predictors.devices import load_device
from stretch.planning.config import PlanConfig
from stretch.planning.constraints import ConstraintFilter
from stretch.planning.network.segments import split_segments
from tests.predictors.networks import efficientnet_b5, resnet50

RULES = ConstraintFilter.of(PlanConfig().checked(load_device("pixel6")))
S4 = next(s for s in split_segments(resnet50()) if s.name == "s4")
B5 = next(s for s in split_segments(efficientnet_b5()) if s.name == "s5")


def test_communication_is_at_most_alpha_of_the_segment():
    assert RULES.communication(np.array([1.999, 2.0, 2.001]), 10.0).tolist() == [True, True, False]


def test_slowest_branch_takes_at_most_beta_times_the_segment():
    assert RULES.straggler(np.array([10.99, 11.0, 11.01]), 10.0).tolist() == [True, True, False]


def test_branches_are_balanced_up_to_the_bound():
    assert RULES.balanced(np.array([4.99, 5.0, 10.0]), np.array([10.0, 10.0, 10.0])).tolist() == [False, True, True]


def test_segment_keeps_its_share_of_the_computation():
    assert RULES.capacity(np.array([899, 900, 2000]), 1000).tolist() == [False, True, True]


def test_memory_is_bounded_only_on_request():
    peaks = np.array([10, 20, 30])
    assert RULES.memory(peaks).tolist() == [True, True, True]
    bounded = ConstraintFilter.of(PlanConfig(peak_memory=20).checked(load_device("pixel6")))
    assert bounded.memory(peaks).tolist() == [True, True, False]


@pytest.mark.parametrize(("floor", "depths"), [(0.5, [4, 5, 6, 7]), (4 / 7, [4, 5, 6, 7]), (0.58, [5, 6, 7]), (1.0, [7])])
def test_depths_start_at_the_floor(floor, depths):
    rules = ConstraintFilter.of(PlanConfig(min_depth=floor).checked(load_device("pixel6")))
    assert rules.depths(B5) == depths


def test_entry_block_is_never_removed_whatever_the_floor():
    rules = ConstraintFilter.of(PlanConfig(min_depth=0.01).checked(load_device("pixel6")))
    assert rules.depths(S4)[0] == S4.min_depth >= 1


def test_few_widths_are_all_offered():
    assert RULES.widths(B5, [64, 88, 120, 176]) == [88, 120, 176]


def test_many_widths_are_thinned_to_even_ratios_with_floor_and_original_kept():
    legal = list(range(8, 2049, 8))
    offered = RULES.widths(S4, legal)
    assert set(offered) <= set(legal)
    assert (offered[0], offered[-1]) == (1024, 2048)
    assert len(offered) == 17
    assert max(np.diff(offered)) <= 2048 / 32 + 8
