"""The best design in what adds up equals brute force, and its value is what the timeline of the design says."""

from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.energy import EnergyModel
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.objective import read_objective
from stretch.planning.search.banded import with_exact_kinds, without_stretched
from stretch.planning.search.evolve import evolve
from stretch.planning.search.goal import Goal, search_best
from stretch.planning.search.measures import LATENCY
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.result import SearchResult
from stretch.planning.search.score import Added
from stretch.planning.strategies.grid import search as search_grid
from tests.effort import examples
from tests.predictors.networks import small_resnet
from tests.stretch.planning.search.test_channelled import small_network
from tests.stretch.planning.search.test_placed import cells
from tests.stretch.planning.spaces import as_design, every_design, make_space, waiting

TINY = small_resnet(96, blocks=(1, 1), mids=(64, 64))
GRAPHS = {"resnet": TINY, "paths": small_network(), "cells": cells(2)}
DEVICE = waiting()
OBJECTIVES = ("latency", "energy", "0.7*latency+0.3*energy", "0*latency+2*energy")


@cache
def spaced(name, kinds, processors, merged=False):
    graph = GRAPHS[name]
    space = make_space(graph, DEVICE, processors, min_width=0.9, min_depth=1.0)
    if merged:
        space = merge_stages(graph, space)
    exact = [kind for kind in kinds if kind != "stretch"]
    if not exact:
        return space
    return with_exact_kinds(graph, PlanConfig(kinds=tuple(kinds)), space if "stretch" in kinds else without_stretched(space))


def energy_of(space, busy, ms):
    return EnergyModel(space.costs.predictor.device).plan_mj({name: each for name, each in busy.items() if each}, ms)


def goal_of(text, space):
    return Goal.of(read_objective(text), space.costs.predictor.device, space.processors)


def value(text, space, ms, busy):
    objective = read_objective(text)
    return objective.latency * ms + (objective.energy * energy_of(space, busy, ms) if objective.energy else 0.0)


@pytest.mark.representatives(12)
@pytest.mark.parametrize("text", OBJECTIVES)
@pytest.mark.parametrize(
    ("name", "kinds", "processors", "merged"),
    [
        ("resnet", ("stretch",), ("cpu", "gpu"), False),
        ("resnet", ("stretch",), ("cpu", "gpu", "dsp"), False),
        ("resnet", ("stretch",), ("cpu", "gpu"), True),
        ("resnet", ("stretch", "rows"), ("cpu", "dsp"), False),
        ("paths", ("stretch", "channels"), ("gpu", "dsp"), False),
        ("paths", ("channels", "graph"), ("cpu", "gpu"), False),
        ("cells", ("graph",), ("cpu", "gpu", "dsp"), False),
    ],
)
def test_best_design_equals_brute_force(text, name, kinds, processors, merged):
    space = spaced(name, kinds, processors, merged)
    assert space.size_log10 <= 5
    low, high = round(0.9 * GRAPHS[name].macs), round(1.9 * GRAPHS[name].macs)
    every = list(every_design(space, low, high, 1))
    assert every
    found = search_best(space, low, high, 1, goal_of(text, space))
    assert found.optimal
    assert found.value == pytest.approx(min(value(text, space, ms, busy) for _, ms, busy in every))


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_energy_of_a_design_is_that_of_its_timeline(data):
    name, kinds = data.draw(
        st.sampled_from(
            [("resnet", ("stretch", "rows")), ("paths", ("stretch", "channels", "graph")), ("cells", ("graph",)), ("paths", ("rows",))]
        )
    )
    processors = data.draw(st.sampled_from([("cpu", "gpu"), ("cpu", "gpu", "dsp")]))
    graph, space = GRAPHS[name], spaced(name, kinds, processors)
    picks, at, holder = [], 0, space.costs.host
    while at < len(space.segments):
        row = space.holders.index(holder)
        able = [(o, i) for o in space.options[at] for i in range(len(o.macs)) if o.ms[row, i] < float("inf")]
        picks.append(data.draw(st.sampled_from(able)))
        at += picks[-1][0].span
        holder = picks[-1][0].holder(space.costs.host)
    found = SearchResult(tuple(picks), LATENCY.total(space, picks), 0, False, 0.0, 0)
    run = timeline(graph, as_design(graph, found.segments(space.costs)), space.costs)
    busy = {}
    for segment in run.segments:
        for branch in segment.branches:
            busy[branch.scale.processor] = busy.get(branch.scale.processor, 0.0) + branch.ms + branch.contention_ms
    told = EnergyModel(space.costs.predictor.device).plan_mj(busy, run.makespan_ms)
    goal = goal_of("energy", space)
    assert goal.value(space, picks) == pytest.approx(told)
    assert Added(goal, space)(picks) == pytest.approx(told)


@pytest.mark.parametrize("text", OBJECTIVES)
def test_no_other_search_finds_a_better_design(text):
    space = make_space(small_resnet(), DEVICE, ("cpu", "gpu"))
    macs = sum(segment.graph.macs for segment in space.segments)
    low, high, goal = round(0.9 * macs), round(1.1 * macs), goal_of(text, space)
    best = search_best(space, low, high, 1, goal)
    grid = search_grid(space, low, high, 1)
    tried = evolve(space, low, high, 1, Added(goal, space), [grid], evaluations=300)
    assert best.value <= goal.value(space, grid.picks) + 1e-9
    assert best.value <= tried.value + 1e-9


def test_processor_that_only_waits_takes_no_power_where_it_has_no_work():
    space = spaced("resnet", ("stretch",), ("cpu", "gpu", "dsp"))
    goal = goal_of("energy", space)
    groups = goal.groups(space)
    assert len(groups) == 7
    assert goal_of("latency", space).groups(space) == [space.processors]
    without = make_space(TINY, processors=("cpu", "gpu", "dsp"))
    assert goal_of("energy", without).groups(without) == [without.processors]


def test_objective_that_does_not_add_up_is_searched_from_latency():
    assert Goal.of(read_objective("throughput"), SimpleNamespace(), ("cpu", "gpu")) == Goal()
