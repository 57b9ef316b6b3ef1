"""Features of ways and of designs are the same numbers, zero for the original."""

import numpy as np
import pytest

from stretch.planning.cost.features import FEATURES, changed_segments, features, way_features
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.search.exact import search_exact
from tests.stretch.planning.spaces import make_space, small_resnet

GRAPH = small_resnet()
NAMES = tuple(FEATURES)


def test_way_has_the_features_of_the_design_that_it_makes():
    space = make_space(GRAPH)
    found = search_exact(space, round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs), 1)
    design = BranchDesign(GRAPH.name, "mi9", found.segments(space.costs))
    changed = {segment.name: row for segment, row in changed_segments(GRAPH, design, NAMES)}
    ways = {options.segment.name: way_features(options, NAMES)[index] for options, index in found.picks if options.branched}
    assert changed.keys() == ways.keys() != set()
    for name, row in changed.items():
        assert row == pytest.approx(ways[name], abs=1e-12)


def test_features_of_two_branches_are_what_they_say():
    row = dict(zip(NAMES, features(np.array([[0.5], [1.0]]), np.array([[1.0], [0.25]]), np.array([0.9]), NAMES)[0], strict=True))
    assert row["log_deepest"] == row["log_widest"] == 0
    assert row["log_mean_depth"] == pytest.approx(np.log(0.5) / 2)
    assert row["log_largest"] == pytest.approx(np.log(0.5))
    assert row["log_branches"] == pytest.approx(np.log(2))
