import pytest

pytest.importorskip("torch")

from predictors.errors import UnknownNameError
from stretch.planning.config import PlanConfig
from stretch.stages.together import pair_of
from tests.predictors.specified import specified

pytestmark = pytest.mark.torch

REQUEST = PlanConfig(processors=("cpu", "gpu"), alpha=5, beta=5)


def test_network_that_there_is_not_is_refused():
    with pytest.raises(UnknownNameError):
        pair_of(("tiny_resnet", "tiny_resnut"), specified("pixel6"), REQUEST)
