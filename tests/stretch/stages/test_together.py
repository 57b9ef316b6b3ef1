import pytest

pytest.importorskip("torch")

from predictors.errors import UnknownNameError
from stretch.planning.config import PlanConfig
from stretch.stages.together import pair_of
from tests.predictors.specified import specified

pytestmark = pytest.mark.torch

REQUEST = PlanConfig(processors=("cpu", "gpu"), alpha=5, beta=5)


@pytest.mark.slow
def test_one_network_for_two_users_is_a_pair_too():
    found = pair_of(("tiny_resnet", "tiny_resnet"), specified("pixel6"), REQUEST, top=1)
    assert [row.model for row in found.designs] == ["tiny_resnet", "tiny_resnet"]
    assert found.candidates[0] == found.candidates[1]
    assert set(found.seconds) == {"capture", "search", "pairs"}


def test_network_that_there_is_not_is_refused():
    with pytest.raises(UnknownNameError):
        pair_of(("tiny_resnet", "tiny_resnut"), specified("pixel6"), REQUEST)
