"""Exact search over real design spaces."""

from copy import copy
from itertools import product

import numpy as np
import pytest

from stretch.planning.cost.makespan import timeline
from stretch.planning.search.exact import Within, search_exact, search_least_loss
from stretch.planning.search.measures import told_by
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import as_design, make_space

GRAPH = small_resnet(blocks=(2, 2))


def brute_force(space, low, high, n_meet):
    """Fastest design by trying every one on the timeline's own arithmetic."""
    end = space.segments[-1].graph
    elements = int(np.prod(end.by_name[end.output].shape))
    best = np.inf
    every = [[(o, i) for o in options for i in range(len(o.macs))] for options in space.options]
    for picks in product(*every):
        macs = sum(int(o.macs[i]) for o, i in picks)
        if not low <= macs <= high or sum(len(o.candidates) > 1 for o, _ in picks) < n_meet:
            continue
        holder, ms = space.holders.index(space.costs.host), 0.0
        for options, index in picks:
            if not options.allowed[holder, index]:
                break
            ms += options.ms[holder, index]
            holder = space.holders.index(space.costs.host if len(options.candidates) > 1 else options.processors[0])
        else:
            best = min(best, ms + space.costs.transfer(space.holders[holder], space.costs.host, elements))
    return best


@pytest.mark.representatives(8)
@pytest.mark.parametrize("n_meet", [0, 1, 2])
@pytest.mark.parametrize("device", ["mi9", "pixel6", "host"])
def test_exact_search_equals_brute_force(device, n_meet):
    space = make_space(GRAPH, device, min_width=0.85)
    assert 100 < 10**space.size_log10 < 60_000
    low, high = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)
    found = search_exact(space, low, high, n_meet)
    assert found.ms == pytest.approx(brute_force(space, low, high, n_meet))
    assert found.optimal
    assert found.n_meet >= n_meet


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "dsp"), ("cpu", "gpu", "dsp")])
def test_predicted_makespan_is_that_of_the_built_design(processors):
    graph = small_resnet()
    space = make_space(graph, processors=processors)
    found = search_exact(space, round(0.97 * graph.macs), round(1.03 * graph.macs), 1)
    run = timeline(graph, as_design(graph, found.segments(space.costs)), space.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs == found.macs
    assert run.params == found.params


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_design_that_has_to_use_a_processor_is_the_fastest_of_those_that_do(processors):
    space = make_space(GRAPH, processors=processors, min_width=0.85)
    low, high = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)
    for name in processors:
        forced = []
        for at in range(len(space.options)):
            one = copy(space)
            one.options = [[o for o in group if name in o.processors] if i == at else group for i, group in enumerate(space.options)]
            found = search_exact(one, low, high, 1) if one.options[at] else None
            forced.append(np.inf if found is None else found.ms)
        found = search_exact(space, low, high, 1, using=name)
        assert found.ms == pytest.approx(min(forced))
        assert any(name in options.processors for options, _ in found.picks)


def losses(options):
    """What is narrow or shallow loses."""
    return (
        0.1 * (options.segment.graph.macs * 1.5 - options.macs) / options.segment.graph.macs
        if options.branched
        else np.zeros(len(options.macs))
    )


def every_design(space, low, high):
    """Time and loss of every design in the range."""
    found = []
    for picks in product(*[[(o, i) for o in options for i in range(len(o.macs))] for options in space.options]):
        holder, ms = space.costs.host, 0.0
        for options, index in picks:
            at = space.holders.index(holder)
            ms += options.ms[at, index] if options.allowed[at, index] else np.inf
            holder = options.holder(space.costs.host)
        if np.isfinite(ms) and low <= sum(int(o.macs[i]) for o, i in picks) <= high and any(o.branched for o, _ in picks):
            found.append((ms + space.leaving_ms(holder), sum(float(losses(o)[i]) for o, i in picks)))
    return np.array(found)


def test_search_within_a_loss_and_for_the_least_loss_equal_brute_force():
    space = make_space(GRAPH, min_width=0.85)
    low, high = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)
    every = every_design(space, low, high)
    for most in np.quantile(every[:, 1], [0.0, 0.1, 0.5, 0.9]):
        found = search_exact(space, low, high, 1, within=Within(told_by(losses), float(most)))
        assert found.optimal
        assert found.ms == pytest.approx(every[every[:, 1] <= most + 1e-9, 0].min())
    for budget in np.quantile(every[:, 0], [0.0, 0.2, 0.7]):
        found = search_least_loss(space, low, high, 1, losses, float(budget))
        assert sum(float(losses(o)[i]) for o, i in found.picks) == pytest.approx(every[every[:, 0] <= budget + 1e-9, 1].min())
        assert found.ms <= budget + 1e-9
    free = search_least_loss(space, low, high, 1, losses)
    assert sum(float(losses(o)[i]) for o, i in free.picks) == pytest.approx(every[:, 1].min())
    assert search_least_loss(space, low, high, 1, losses, float(every[:, 0].min()) * 0.99) is None
    assert search_exact(space, low, high, 1, within=Within(told_by(losses), float(every[:, 1].min()) - 1e-3)) is None
