"""A predictor of accuracy recovers a linear relation, ranks designs left out, and refuses data without a ranking."""

import numpy as np
import pytest

from predictors.errors import StretchError
from stretch.planning.cost.accuracy import FEATURES, segment_features
from stretch.tools.ranking.fit import MIN_SAMPLES, fit, rank
from stretch.train.supernet import random_designs
from tests.predictors.specified import specified
from tests.stretch.train.recipes import network
from tests.stretch.train.test_session import go

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def drawn(captured):
    graph = captured("tiny_resnet").graph
    return graph, random_designs(graph, specified("mi9"), ("cpu", "gpu"), 30, (0.7, 1.3), seed=1)


@pytest.mark.slow
def test_linear_relation_is_recovered_and_ranks_designs_left_out(drawn):
    graph, designs = drawn
    truth = np.random.default_rng(0).normal(size=len(FEATURES)) * 0.02
    accuracies = [0.9 + sum(float(row @ truth) for row in segment_features(graph, d).values()) for d in designs]
    predictor, held_out = fit(graph, designs, accuracies)
    assert predictor.rank_correlation > 0.95
    assert predictor.p_value < 0.01
    assert np.allclose(held_out, accuracies, atol=0.01)
    for design, accuracy in zip(designs, accuracies, strict=True):
        assert predictor.value(predictor.loss(graph, design)) == pytest.approx(accuracy, abs=0.005)


def test_held_out_prediction_ignores_the_accuracy_of_its_design(drawn):
    graph, designs = drawn[0], drawn[1][:12]
    accuracies = list(np.random.default_rng(3).normal(0.9, 0.01, len(designs)))
    before = fit(graph, designs, accuracies)[1]
    accuracies[7] += 0.5
    after = fit(graph, designs, accuracies)[1]
    assert after[7] == pytest.approx(before[7], abs=1e-12)


def test_equal_accuracies_cannot_be_ranked(drawn):
    graph, designs = drawn
    with pytest.raises(StretchError, match="nothing to rank"):
        fit(graph, designs, [0.9] * len(designs))


@pytest.mark.slow
def test_run_of_one_network_and_too_few_designs_cannot_be_ranked(tmp_path):
    run = go(network(tmp_path), tmp_path / "run", "train.epochs=1").run
    with pytest.raises(StretchError, match="nothing to rank"):
        rank(run, MIN_SAMPLES)
    with pytest.raises(StretchError, match="too few to rank"):
        rank(run, MIN_SAMPLES - 1)
