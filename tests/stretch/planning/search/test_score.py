"""Scores of designs are what their timelines say."""

from functools import cache

import numpy as np
import pytest

from stretch.planning.cost.draws import kept_ms, uncertain_run
from stretch.planning.cost.makespan import timeline
from stretch.planning.cost.rates import busiest_ms
from stretch.planning.cost.uncertain import drawn
from stretch.planning.objective import read_objective
from stretch.planning.search.exact import search_exact
from stretch.planning.search.goal import Goal
from stretch.planning.search.score import score_of
from tests.stretch.planning.search.test_goal import GRAPHS, spaced
from tests.stretch.planning.spaces import as_design

KINDS = [("resnet", ("stretch", "rows")), ("paths", ("stretch", "channels", "graph")), ("cells", ("graph",))]


@cache
def searched(name, kinds):
    graph, space = GRAPHS[name], spaced(name, kinds, ("cpu", "gpu", "dsp"))
    found = search_exact(space, round(0.9 * graph.macs), round(1.2 * graph.macs), 1)
    return space, found, timeline(graph, as_design(graph, found.segments(space.costs)), space.costs)


@pytest.mark.parametrize(("name", "kinds"), KINDS)
def test_score_is_that_of_the_timeline(name, kinds):
    space, found, run = searched(name, kinds)
    robust = uncertain_run(run.segments, space.costs.predictor.device, run.output)
    expected = {
        "latency": run.makespan_ms,
        "throughput": busiest_ms(run, space.costs.host),
        "robust": kept_ms(robust.drawn_ms(drawn(robust.unknowns))),
    }
    for text, value in expected.items():
        score = score_of(read_objective(text), Goal(), space)
        assert score(found.picks) == pytest.approx(value)
        assert score(found.picks) == score(found.picks)


def test_nine_in_ten_draws_keep_the_robust_time():
    space, _, run = searched(*KINDS[0])
    robust = uncertain_run(run.segments, space.costs.predictor.device, run.output)
    draws = robust.drawn_ms(drawn(robust.unknowns))
    assert np.mean(draws <= kept_ms(draws)) == pytest.approx(0.9, abs=0.01)
