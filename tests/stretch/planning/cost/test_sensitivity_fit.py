"""Fits to measurements whose losses are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from stretch.planning.cost.sensitivity import HELPS, SEEN
from stretch.planning.cost.sensitivity_fit import fit, loss, loss_of_design, spearman
from stretch.planning.search.sampling import random_designs
from tests.stretch.planning.cost.measured import GRAPH, ON, agreement, alone, made, merged_space

SPACE = merged_space()


def test_agreement_that_is_predicted_is_that_of_the_curve():
    own = made(SPACE)
    for each in alone(SPACE):
        alone_loss = float(own.loss_of(each.segments[0].stages, np.array([each.segments[0].features]))[0])
        assert own.value(alone_loss) == pytest.approx(agreement(alone_loss), abs=0.08)
    assert own.rank_correlation > 0.9


def test_weights_of_what_helps_are_never_above_zero_however_noisy_the_measurements():
    for seed in range(5):
        own = made(SPACE, noise=2.0, seed=seed, each=2)
        assert all(weight <= 0 for name, weight in zip(SEEN, own.weights, strict=True) if name in HELPS)
        assert own.curve[1] > 0
        assert own.spread > 0


def test_one_measurement_is_enough_for_a_predictor():
    own = fit(GRAPH.name, "project", SPACE.segments, alone(SPACE)[:1], [], ON)
    assert 0 < own.value(0.3) < 1
    assert own.rank_correlation is None


def test_curve_follows_whole_designs_where_there_are_enough():
    own = made(SPACE)
    designs = random_designs(SPACE, GRAPH.name, "mi9", 6, (0.8, 1.2), 0)
    assert len(designs) == 6
    measured = []
    for each in alone(SPACE)[:6]:
        # designs that always agree more often than single segments let expect
        lost = loss_of_design(own, each.segments)
        measured.append(type(each)(segments=each.segments, error=each.error, agreement=0.5 + agreement(lost) / 2))
    other = fit(GRAPH.name, "project", SPACE.segments, alone(SPACE), measured, ON)
    for each in measured:
        lost = loss_of_design(other, each.segments)
        assert other.value(lost) == pytest.approx(each.agreement, abs=0.06)
        assert other.value(lost) > own.value(lost)


def test_loss_grows_with_the_error_and_has_an_end():
    losses = [loss(error) for error in (0.0, 0.1, 0.5, 0.9, 1.0, 1e30)]
    assert losses == sorted(losses)
    assert 0 < losses[0] < losses[-1] < 10


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20))
def test_rank_correlation_is_that_of_scipy(pairs):
    first, second = (np.array(side, float) for side in zip(*pairs, strict=True))
    found = spearman(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(first, second).statistic)
