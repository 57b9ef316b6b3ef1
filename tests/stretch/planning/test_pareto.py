"""The front of a small network: each design is the fastest that loses so little, by trying all."""

from functools import cache

import numpy as np
import pytest

from predictors.errors import InfeasibleError, UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.pareto import front
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.cost.measured import GRAPH, made
from tests.stretch.planning.spaces import LOOSE, make_space

MI9 = specified("mi9")
REQUEST = {"processors": ("cpu", "gpu"), "macs": (0.9, 1.1), "min_width": 0.75, **LOOSE}


@cache
def predictor():
    return made()


def every_design(space, source, low, high):
    """Time and loss of every design within the range of multiply-accumulates, merged stages among them."""
    losses = {id(o): source.losses(o) for options in space.options for o in options}
    found = []
    open_paths = [(0, space.holders.index(space.costs.host), 0, 0, 0.0, 0.0)]
    while open_paths:
        at, holder, macs, met, ms, loss = open_paths.pop()
        if macs > high:
            continue
        if at == len(space.segments):
            if macs >= low:
                found.append((ms + space.leaving_ms(space.holders[holder]), loss, met))
            continue
        for options in space.options[at]:
            after = space.holders.index(options.holder(space.costs.host))
            open_paths += [
                (
                    at + options.span,
                    after,
                    macs + int(options.macs[i]),
                    met + options.branched,
                    ms + float(options.ms[holder, i]),
                    loss + float(losses[id(options)][i]),
                )
                for i in np.flatnonzero(options.allowed[holder])
            ]
    return found


def test_each_design_of_the_front_is_the_fastest_that_loses_no_more():
    from stretch.planning.search.merging import merge_stages

    found = front(GRAPH, MI9, PlanConfig(**REQUEST), "agreement", 6, predictor())
    space = merge_stages(GRAPH, make_space(GRAPH, min_width=0.75))
    every = every_design(space, predictor(), round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs))
    assert len(every) > 1000
    assert len(found.designs) >= 3
    for each in found.designs:
        assert each.optimal
        assert each.ms == pytest.approx(min(ms for ms, loss, met in every if loss <= each.loss + 1e-9 and (met or not each.n_meet)))


def test_front_goes_from_what_loses_nothing_to_what_is_fastest_without_a_design_that_another_beats():
    found = front(GRAPH, MI9, PlanConfig(**REQUEST, kinds=("stretch", "rows")), "agreement", 6, predictor())
    times, losses = [each.ms for each in found.designs], [each.loss for each in found.designs]
    assert times == sorted(times, reverse=True)
    assert losses == sorted(losses)
    assert len(set(losses)) == len(losses)
    assert losses[0] == 0
    assert found.designs[0].exact
    assert not found.designs[-1].exact
    for each in found.designs:
        assert predictor().loss(GRAPH, each.design) == pytest.approx(each.loss)


def test_where_branches_do_not_pay_the_front_is_the_original_alone():
    graph = small_resnet()
    found = front(graph, MI9, PlanConfig(**REQUEST), "agreement", 6, made())
    assert [(each.n_meet, each.exact, each.loss) for each in found.designs] == [(0, True, 0)]


def test_multiply_accumulates_are_weighed_without_any_predictor():
    found = front(GRAPH, MI9, PlanConfig(**REQUEST | {"macs": (0.7, 1.1)}), "macs", 5)
    assert len(found.designs) >= 2
    assert all(each.loss is None for each in found.designs)


def test_agreement_that_nothing_predicts_is_refused():
    with pytest.raises(UsageError, match="nothing predicts the agreement"):
        front(GRAPH, MI9, PlanConfig(**REQUEST), "agreement", 5)


def test_request_without_designs_names_the_tightest_rule():
    with pytest.raises(InfeasibleError) as caught:
        front(small_resnet(), MI9, PlanConfig(processors=("cpu", "gpu"), alpha=1e-6, macs=(1.05, 1.1)), "agreement", 5, predictor())
    assert caught.value.rules


def test_other_searches_are_refused():
    with pytest.raises(UsageError, match="fronts are searched by the exact search"):
        front(GRAPH, MI9, PlanConfig(**REQUEST, strategy="grid"), "macs", 5)
