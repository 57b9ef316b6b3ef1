"""The exact search equals brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.search import layers as search
from stretch.planning.search.layers import Layer, shortest_path, undominated


@st.composite
def problems(draw):
    states = draw(st.integers(1, 3))
    state = st.integers(0, states - 1)
    largest = draw(st.sampled_from([3, 50, 10**6]))
    built = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.lists(st.tuples(state, state, st.integers(0, largest), st.integers(0, 60)), min_size=1, max_size=8))
        source, target, macs, ms = (np.array(column) for column in zip(*rows, strict=True))
        built.append(Layer(source, target, macs, ms / 7, np.arange(len(rows))))
    final = np.array([draw(st.sampled_from([0.0, 1.5, np.inf])) for _ in range(states)])
    low = draw(st.integers(0, 2 * largest))
    return built, states, final, low, low + draw(st.integers(0, largest))


def brute_force(layers, final, low, high):
    best = None
    for choice in product(*(range(len(layer.ms)) for layer in layers)):
        state, macs, ms = 0, 0, 0.0
        for layer, i in zip(layers, choice, strict=True):
            if layer.source[i] != state:
                break
            state, macs, ms = layer.target[i], macs + layer.macs[i], ms + layer.ms[i]
        else:
            ms += final[state]
            if low <= macs <= high and np.isfinite(ms) and (best is None or ms < best):
                best = ms
    return best


@given(problems())
def test_shortest_path_equals_brute_force(problem):
    layers, states, final, low, high = problem
    found = shortest_path(layers, states, 0, final, low, high)
    best = brute_force(layers, final, low, high)
    assert (found is None) == (best is None)
    if found is not None:
        assert found.ms == pytest.approx(best)
        assert found.optimal
        assert found.gap == 0
        assert low <= found.macs <= high


@given(problems())
def test_path_is_what_its_options_add_up_to(problem):
    layers, states, final, low, high = problem
    found = shortest_path(layers, states, 0, final, low, high)
    if found is None:
        return
    state, macs, ms = 0, 0, 0.0
    for layer, option in zip(layers, found.options, strict=True):
        assert layer.source[option] == state
        state, macs, ms = layer.target[option], macs + layer.macs[option], ms + layer.ms[option]
    assert macs == found.macs
    assert ms + final[state] == pytest.approx(found.ms)


def random_layers(seed, count, options):
    rng = np.random.default_rng(seed)
    built = []
    for _ in range(count):
        macs = rng.integers(10**6, 10**7, options)
        zeros = np.zeros(options, np.int64)
        built.append(Layer(zeros, zeros, macs, macs / 1e6 * rng.uniform(0.5, 1.5, options), np.arange(options)))
    return built


def test_search_that_is_cut_off_states_a_gap_that_holds(monkeypatch):
    layers = random_layers(3, 4, 40)
    low, high = 22 * 10**6, 22 * 10**6 + 100_000
    exact = shortest_path(layers, 1, 0, np.zeros(1), low, high)
    assert exact.optimal
    monkeypatch.setattr(search, "MAX_LABELS", 0)
    monkeypatch.setattr(search, "BEAM", 3)
    monkeypatch.setattr(search, "BUCKETS", 50)
    cut = shortest_path(layers, 1, 0, np.zeros(1), low, high)
    assert not cut.optimal
    assert cut.ms >= exact.ms
    assert cut.bound <= exact.ms <= cut.ms
    assert cut.gap == pytest.approx(cut.ms / cut.bound - 1)


def test_narrow_range_between_two_sums_has_no_path():
    layers = [Layer(np.zeros(2, int), np.zeros(2, int), np.array([10, 20]), np.array([1.0, 2.0]), np.arange(2)) for _ in range(2)]
    assert shortest_path(layers, 1, 0, np.zeros(1), 21, 29) is None
    assert shortest_path(layers, 1, 0, np.zeros(1), 21, 30).macs == 30


def test_undominated_keeps_the_fastest_of_equal_states_and_macs():
    layer = Layer(
        np.array([0, 0, 0, 1]), np.array([0, 0, 1, 0]), np.array([5, 5, 5, 5]), np.array([2.0, 1.0, 3.0, 4.0]), np.array([10, 11, 12, 13])
    )
    assert sorted(undominated(layer).option.tolist()) == [11, 12, 13]
