"""The search that works out few options finds what the search with all of them finds."""

from dataclasses import replace
from functools import cache

import pytest

import stretch.planning.search.sieve as sieve
import stretch.planning.search.space as design_space
from stretch.planning.search.exact import search_exact
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.sieve import search_sieved, search_some
from tests.predictors.networks import efficientnet, small_resnet
from tests.stretch.planning.spaces import fastest_by_brute_force, make_space

GRAPH = small_resnet(16, blocks=(2, 2, 2), mids=(8, 16, 32))
INVERTED = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2), (4, 5, 2, 40, 2)], 16, 64, 32, se=True, act="silu")


@cache
def spaces(name, device, processors, alpha):
    """A space whose merged stages have all their scales, and the same with all options worked out."""
    graph = {"bottleneck": GRAPH, "inverted": INVERTED}[name]
    space = merge_stages(graph, make_space(graph, device, processors, min_width=0.5, **({} if alpha is None else {"alpha": alpha})))
    every = merge_stages(graph, make_space(graph, device, processors, min_width=0.5, **({} if alpha is None else {"alpha": alpha})))
    every.offers = [[offer.full for offer in offers] for offers in every.offers]
    return graph, space, every


@pytest.fixture(autouse=True)
def always_sieve(monkeypatch):
    """Small spaces are sieved, too."""
    monkeypatch.setattr(sieve, "FEW", 0)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("n_meet", [0, 1, 2])
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_what_is_found_equals_brute_force(device, n_meet):
    graph = small_resnet(blocks=(2, 2))
    space = merge_stages(graph, make_space(graph, device, min_width=0.85))
    low, high = round(0.9 * graph.macs), round(1.6 * graph.macs)
    found = search_sieved(space, low, high, n_meet)
    assert found.optimal
    assert found.ms == pytest.approx(fastest_by_brute_force(space, low, high, n_meet)[0])


def test_too_many_options_within_the_slack_leave_a_gap_that_is_told(monkeypatch):
    graph, _, every = spaces("bottleneck", "mi9", ("cpu", "gpu", "dsp"), None)
    monkeypatch.setattr(design_space, "MOST_COMBINATIONS", 0)
    space = merge_stages(graph, make_space(graph, "mi9", ("cpu", "gpu", "dsp"), min_width=0.5))
    low, high = round(0.97 * graph.macs), round(1.03 * graph.macs)
    best = search_exact(every, low, high, 1)
    monkeypatch.setattr(sieve, "MOST", 0)
    found = search_sieved(space, low, high, 1)
    assert not found.optimal
    assert found.ms / (1 + found.gap) <= best.ms + 1e-9
    assert found.ms >= best.ms - 1e-9


def test_links_that_take_endless_time_are_not_used():
    graph, space, _ = spaces("bottleneck", "mi9", ("cpu", "gpu"), None)
    device = space.costs.predictor.device
    slow = {name: replace_link(link) for name, link in device.links.items()}
    far = make_space(graph, replace(device, links=slow), min_width=0.5)
    low, high = round(0.9 * graph.macs), round(1.1 * graph.macs)
    assert search_sieved(far, low, high, 0).ms == pytest.approx(search_exact(far, low, high, 0).ms)


def replace_link(link):
    """A link on which nothing arrives in any time that matters."""
    import msgspec

    return msgspec.structs.replace(link, map_ms=msgspec.structs.replace(link.map_ms, value=1e9))


@pytest.mark.parametrize("macs", [(0.97, 1.03), (2.0, 2.1), (9.0, 9.1)])
def test_some_design_is_found_where_there_is_one(macs):
    graph, space, every = spaces("bottleneck", "mi9", ("cpu", "gpu"), None)
    low, high = round(macs[0] * graph.macs), round(macs[1] * graph.macs)
    some, best = search_some(space, low, high, 1), search_exact(every, low, high, 1)
    assert (some is None) == (best is None)
    if some is not None:
        assert some.ms >= best.ms - 1e-9
