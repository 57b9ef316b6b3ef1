"""The shortest path through options, bounded or pruned, against brute force."""

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stretch.planning.search.exact as pruning
import stretch.planning.search.space as design_space
from stretch.planning.search import layers as search
from stretch.planning.search.exact import search_coarse, search_exact, search_pruned
from stretch.planning.search.layers import Layer, remove_dominated, shortest_path
from stretch.planning.search.parts import merge_stages
from stretch.planning.search.space import Totals
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import fastest_by_brute_force, make_space


@st.composite
def problems(draw, bounded=True):
    """Layers whose options span one or two layers, the cost of each final state, the range of multiply-accumulates and the maximum loss."""
    states = draw(st.integers(1, 3))
    state = st.integers(0, states - 1)
    largest = draw(st.sampled_from([3, 50, 10**6]))
    built = []
    for left in range(draw(st.integers(1, 4)), 0, -1):
        row = st.tuples(state, state, st.integers(0, largest), st.integers(0, 60), st.integers(-2, 12), st.integers(1, min(left, 2)))
        source, target, macs, ms, loss, span = (np.array(one) for one in zip(*draw(st.lists(row, min_size=1, max_size=8)), strict=True))
        built.append(Layer(source, target, macs, ms / 7, np.arange(len(ms)), loss / 5 if bounded else np.zeros(len(ms)), span))
    final = np.array([draw(st.sampled_from([0.0, 1.5, np.inf])) for _ in range(states)])
    low = draw(st.integers(0, 2 * largest))
    return built, final, low, low + draw(st.integers(0, largest)), draw(st.integers(-3, 30)) / 5 if bounded else np.inf


def brute_force(layers, final, low, high, most, at=0, state=0, macs=0, ms=0.0, loss=0.0):
    """The shortest time of all paths in the range and within the loss bound; infinite without such a path."""
    if at == len(layers):
        return ms + final[state] if low <= macs <= high and loss <= most + 1e-9 else np.inf
    rows = zip(*(column.tolist() for column in vars(layers[at]).values()), strict=True)
    return min(
        (
            brute_force(layers, final, low, high, most, at + span, target, macs + more, ms + took, loss + lost)
            for source, target, more, took, _, lost, span in rows
            if source == state
        ),
        default=np.inf,
    )


@given(st.one_of(problems(bounded=False), problems()))
def test_shortest_path_equals_brute_force_and_the_sum_of_its_options(problem):
    layers, final, low, high, most = problem
    result = shortest_path(layers, 0, final, low, high, most)
    best = brute_force(*problem)
    assert (result is None) == np.isinf(best)
    if result is None:
        return
    assert result.ms == pytest.approx(best)
    assert result.optimal
    assert result.gap == 0
    at, state, macs, ms, loss = 0, 0, 0, 0.0, 0.0
    for option in result.options:
        layer = layers[at].take(np.array([option]))
        assert layer.source == state
        at, state, macs, ms, loss = at + layer.span[0], layer.target[0], macs + layer.macs[0], ms + layer.ms[0], loss + layer.loss[0]
    assert at == len(layers)
    assert low <= macs == result.macs <= high
    assert ms + final[state] == pytest.approx(result.ms)
    assert loss <= most + 1e-9


def random_layers(seed, count, options, bounded):
    rng, built = np.random.default_rng(seed), []
    for _ in range(count):
        macs = rng.integers(10**6, 10**7, options)
        ms, zeros = macs / 1e6 * rng.uniform(0.5, 1.5, options), np.zeros(options, np.int64)
        # slow options lose little
        loss = np.exp(-ms / 4) * rng.uniform(0.5, 1.5, options) if bounded else np.zeros(options)
        built.append(Layer(zeros, zeros, macs, ms, np.arange(options), loss, zeros + 1))
    return built


@pytest.mark.parametrize(
    ("options", "low", "high", "most", "beam"),
    [(40, 22 * 10**6, 22 * 10**6 + 100_000, np.inf, 3), (18, 20 * 10**6, 24 * 10**6, 0.8, 2)],
    ids=["free", "bounded"],
)
def test_limited_search_states_a_valid_gap(monkeypatch, options, low, high, most, beam):
    layers = random_layers(3, 4, options, most < np.inf)
    exact = shortest_path(layers, 0, np.zeros(1), low, high, most)
    assert exact.optimal
    monkeypatch.setattr(search, "MAX_LABELS", 0)
    monkeypatch.setattr(search, "BEAM", beam)
    if most == np.inf:
        monkeypatch.setattr(search, "BUCKETS", 50)
    cut = shortest_path(layers, 0, np.zeros(1), low, high, most)
    assert not cut.optimal or most < np.inf
    assert cut.bound - 1e-9 <= exact.ms <= cut.ms
    assert cut.optimal or cut.gap == pytest.approx(cut.ms / cut.bound - 1)


@given(problems())
def test_loss_bound_above_every_path_changes_nothing(problem):
    layers, final, low, high, _ = problem
    result, free = shortest_path(layers, 0, final, low, high, 1e3), shortest_path(layers, 0, final, low, high)
    assert (result is None) == (free is None)
    if result is not None:
        assert result.ms == pytest.approx(free.ms)


def test_remove_dominated_keeps_options_that_are_faster_or_lose_less():
    same, macs = np.zeros(5, int), np.array([5, 5, 5, 5, 6])
    ms, loss = np.array([1.0, 2.0, 3.0, 2.0, 9.0]), np.array([3.0, 1.0, 2.0, 1.0, 9.0])
    layer = Layer(same, same, macs, ms, np.arange(5), loss, same + 1)
    assert sorted(remove_dominated(layer).option.tolist()) == [0, 1, 4]


GRAPH = small_resnet(16, blocks=(2, 2, 2), mids=(8, 16, 32))


@cache
def spaces(*processors):
    """A space of merged stages with all their scales, and the same space with all options enumerated."""
    space = merge_stages(GRAPH, make_space(GRAPH, processors=processors, min_width=0.5))
    return space, replace(space, offers=[[offer.full for offer in offers] for offers in space.offers])


def macs_of(low, high):
    return round(low * GRAPH.macs), round(high * GRAPH.macs)


@pytest.fixture(autouse=True)
def always_pruned(monkeypatch):
    """Small spaces are pruned too."""
    monkeypatch.setattr(pruning, "MAX_ENUMERATED", 0)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("n_meet", [0, 1, 2])
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_pruned_search_equals_brute_force(device, n_meet):
    graph = small_resnet(blocks=(2, 2))
    space = merge_stages(graph, make_space(graph, device, min_width=0.85))
    low, high = round(0.9 * graph.macs), round(1.6 * graph.macs)
    pruned = search_pruned(space, Totals(low, high, n_meet))[0]
    assert pruned.optimal
    assert pruned.ms == pytest.approx(fastest_by_brute_force(space, low, high, n_meet)[0])


def test_too_many_options_within_the_slack_leave_a_stated_gap(monkeypatch):
    _, every = spaces("cpu", "gpu", "dsp")
    monkeypatch.setattr(design_space, "MAX_COMBINATIONS", 0)
    space = merge_stages(GRAPH, make_space(GRAPH, processors=("cpu", "gpu", "dsp"), min_width=0.5))
    totals = Totals(*macs_of(0.97, 1.03), 1)
    best = search_exact(every, totals)
    monkeypatch.setattr(pruning, "MAX_OPTIONS", 0)
    pruned = search_pruned(space, totals)[0]
    assert not pruned.optimal
    assert pruned.ms / (1 + pruned.gap) <= best.ms + 1e-9
    assert pruned.ms >= best.ms - 1e-9


def test_very_slow_links_are_not_used():
    space, _ = spaces("cpu", "gpu")
    device, change = space.costs.predictor.device, msgspec.structs.replace
    slow = {name: change(link, map_ms=change(link.map_ms, value=1e9)) for name, link in device.links.items()}
    slow_space, totals = make_space(GRAPH, change(device, links=slow), min_width=0.5), Totals(*macs_of(0.9, 1.1), 0)
    assert search_pruned(slow_space, totals)[0].ms == pytest.approx(search_exact(slow_space, totals).ms)


@pytest.mark.parametrize("macs", [(0.97, 1.03), (2.0, 2.1), (9.0, 9.1)])
def test_coarse_search_finds_a_design_exactly_if_one_exists(macs):
    (space, every), totals = spaces("cpu", "gpu"), Totals(*macs_of(*macs), 1)
    coarse, best = search_coarse(space, totals), search_exact(every, totals)
    assert (coarse is None) == (best is None)
    if coarse is not None:
        assert coarse.ms >= best.ms - 1e-9
