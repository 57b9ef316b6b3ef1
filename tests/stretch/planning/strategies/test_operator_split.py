"""The strategy `operator_split` divides every part by itself, and nothing else."""

import pytest

from predictors.errors import UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.strategies.operator_split import search
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import make_space

GRAPH = small_resnet(64)
HOST = specified("host")


def test_space_without_exact_kinds_has_no_such_design():
    assert search(make_space(GRAPH), 0, 2 * GRAPH.macs, 1) is None


def test_stretched_segments_are_refused():
    with pytest.raises(UsageError, match="divides a network exactly, and `stretch` segments make another one"):
        PlanConfig(strategy="operator_split", kinds=("stretch", "rows")).checked(HOST)
