"""What a plan says of itself: figures beside each other, and how sure they are."""

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified

MI9 = specified("mi9")


@pytest.fixture(scope="module")
def result():
    return plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu")))


def test_slower_links_make_the_branched_run_slower(result):
    times = [row.makespan_ms for row in result.predicted.links]
    assert times == sorted(times)
    assert times[1] == pytest.approx(result.run.makespan_ms)


@pytest.fixture(scope="module")
def lossless():
    return plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu"), lossless=True))


def test_halos_count_as_computed_and_not_as_a_larger_network(lossless):
    assert lossless.halo > 0
    assert lossless.macs_ratio == pytest.approx(1 + lossless.halo)
    assert not any("outside" in warning for warning in lossless.warnings)


def test_lossless_plan_has_the_original_as_its_rival(lossless):
    assert lossless.recommended in ("branched", "no clear winner", f"single:{lossless.best_single.processor}")
    assert "sequential_same_macs" in lossless.predicted.probability_faster
    assert lossless.predicted.told == ["sequential_same_macs"]
    assert "sequential_same_macs" not in {rival.name for rival in lossless.recommendation.beatable}
