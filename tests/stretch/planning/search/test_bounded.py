"""The exact search within a bound on the loss equals brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.search import bounded
from stretch.planning.search.bounded import bounded_path, undominated_with_loss
from stretch.planning.search.layers import Layer, shortest_path


@st.composite
def problems(draw):
    states = draw(st.integers(1, 3))
    state = st.integers(0, states - 1)
    largest = draw(st.sampled_from([3, 50, 10**6]))
    built = []
    for _ in range(draw(st.integers(1, 4))):
        row = st.tuples(state, state, st.integers(0, largest), st.integers(0, 60), st.integers(-2, 12))
        source, target, macs, ms, loss = (np.array(column) for column in zip(*draw(st.lists(row, min_size=1, max_size=8)), strict=True))
        built.append(Layer(source, target, macs, ms / 7, np.arange(len(ms)), loss / 5))
    final = np.array([draw(st.sampled_from([0.0, 1.5, np.inf])) for _ in range(states)])
    low = draw(st.integers(0, 2 * largest))
    return built, states, final, low, low + draw(st.integers(0, largest)), draw(st.integers(-3, 30)) / 5


def brute_force(layers, final, low, high, most):
    best = None
    for choice in product(*(range(len(layer.ms)) for layer in layers)):
        state, macs, ms, loss = 0, 0, 0.0, 0.0
        for layer, i in zip(layers, choice, strict=True):
            if layer.source[i] != state:
                break
            state, macs, ms, loss = layer.target[i], macs + layer.macs[i], ms + layer.ms[i], loss + layer.loss[i]
        else:
            ms += final[state]
            if low <= macs <= high and loss <= most + 1e-9 and np.isfinite(ms) and (best is None or ms < best):
                best = ms
    return best


@given(problems())
def test_bounded_path_equals_brute_force(problem):
    layers, states, final, low, high, most = problem
    found = bounded_path(layers, states, 0, final, low, high, most)
    best = brute_force(layers, final, low, high, most)
    assert (found is None) == (best is None)
    if found is not None:
        assert found.ms == pytest.approx(best)
        assert found.optimal
        assert low <= found.macs <= high
        assert sum(layer.loss[i] for layer, i in zip(layers, found.options, strict=True)) <= most + 1e-9


@given(problems())
def test_bound_that_nothing_reaches_changes_nothing(problem):
    layers, states, final, low, high, _ = problem
    found, free = bounded_path(layers, states, 0, final, low, high, 1e3), shortest_path(layers, states, 0, final, low, high)
    assert (found is None) == (free is None)
    if found is not None:
        assert found.ms == pytest.approx(free.ms)


def random_layers(seed, count, options):
    rng = np.random.default_rng(seed)
    built = []
    for _ in range(count):
        macs = rng.integers(10**6, 10**7, options)
        ms, zeros = macs / 1e6 * rng.uniform(0.5, 1.5, options), np.zeros(options, np.int64)
        # what is slow loses little
        built.append(Layer(zeros, zeros, macs, ms, np.arange(options), np.exp(-ms / 4) * rng.uniform(0.5, 1.5, options)))
    return built


def test_search_that_is_cut_off_states_a_gap_that_holds(monkeypatch):
    layers = random_layers(3, 4, 18)
    low, high, most = 20 * 10**6, 24 * 10**6, 0.8
    exact = bounded_path(layers, 1, 0, np.zeros(1), low, high, most)
    monkeypatch.setattr(bounded, "MAX_LABELS", 0)
    monkeypatch.setattr(bounded, "BEAM", 2)
    cut = bounded_path(layers, 1, 0, np.zeros(1), low, high, most)
    assert cut.ms >= exact.ms
    assert cut.bound <= exact.ms + 1e-9
    assert cut.optimal or cut.gap == pytest.approx(cut.ms / cut.bound - 1)


def test_undominated_keeps_what_is_faster_or_loses_less():
    same = np.zeros(5, int)
    layer = Layer(
        same, same, np.array([5, 5, 5, 5, 6]), np.array([1.0, 2.0, 3.0, 2.0, 9.0]), np.arange(5), np.array([3.0, 1.0, 2.0, 1.0, 9.0])
    )
    assert sorted(undominated_with_loss(layer).option.tolist()) == [0, 1, 4]
