"""The best design of a request and others that differ."""

import pytest

from predictors.errors import UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.several import several
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

GRAPH, MI9 = small_resnet(96), specified("mi9")
REQUEST = {"processors": ("cpu", "gpu"), **LOOSE}


@pytest.mark.parametrize("factor", [0.5, float("nan"), float("inf")])
def test_factor_below_one_is_refused(factor):
    with pytest.raises(UsageError, match="is not a factor from 1 up"):
        several(GRAPH, MI9, PlanConfig(**REQUEST), 3, factor)
