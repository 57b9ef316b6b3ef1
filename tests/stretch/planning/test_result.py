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


def test_makespan_lies_in_its_interval_and_probabilities_are_of_each_control(result):
    predicted = result.predicted
    assert predicted.makespan_low_ms < predicted.makespan_ms < predicted.makespan_high_ms
    assert predicted.probability_faster.keys() == {"single", "whole_graph", "sequential_same_macs", "all"}
    assert predicted.probability_faster["all"] <= min(predicted.probability_faster.values())


def test_slower_links_make_the_branched_run_slower(result):
    times = [row.makespan_ms for row in result.predicted.links]
    assert times == sorted(times)
    assert times[1] == pytest.approx(result.run.makespan_ms)


def test_processors_without_a_fit_are_named(result):
    missing = [(name, at) for name, at in result.config.precision.items() if at not in MI9.processor(name).fits]
    assert [at for at, origin in result.origins.items() if origin != "fit"] == missing
    assert result.calibrated == (not missing)


def test_answer_has_the_figures_of_the_result(result):
    answer = result.answer()
    assert answer.predicted == result.predicted
    assert [rival.name for rival in answer.comparisons] == [rival.name for rival in result.recommendation.rivals]
    assert answer.calibrated == result.calibrated
