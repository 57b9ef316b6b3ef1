import pytest

from predictors.errors import InfeasibleError
from stretch.planning.config import PlanConfig
from stretch.planning.search.bounds import Bounds, loss_of
from stretch.planning.search.exact import search_exact
from tests.stretch.planning.cost.measured import GRAPH as MEASURED
from tests.stretch.planning.cost.measured import made, merged_space
from tests.stretch.planning.cost.test_accuracy import predictor
from tests.stretch.planning.spaces import make_space, small_resnet

GRAPH = small_resnet()


def accuracy_of(found, own):
    return own.value(loss_of(found, own))


MACS = (round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs))


def bounds(**request):
    space = make_space(GRAPH)
    return Bounds(GRAPH, space, PlanConfig(**request), MACS, 1), search_exact(space, *MACS, 1)


@pytest.mark.slow
def test_accuracy_floor_is_reached_at_a_price_in_latency():
    own = predictor()
    made, fastest = bounds(min_accuracy=0.5)
    floor = accuracy_of(fastest, own) + 0.002
    made, fastest = bounds(min_accuracy=floor)
    found = made.accurate_enough(fastest, own)
    assert accuracy_of(found, own) >= floor
    assert found.ms >= fastest.ms
    assert MACS[0] <= found.macs <= MACS[1]
    assert found.optimal
    assert found.gap == 0


def test_floor_that_the_fastest_design_meets_changes_nothing():
    made, fastest = bounds(min_accuracy=0.01)
    assert made.accurate_enough(fastest, predictor()) is fastest


@pytest.mark.slow
def test_floor_beyond_reach_names_the_highest_accuracy_that_is_not():
    made, fastest = bounds(min_accuracy=0.9999)
    with pytest.raises(InfeasibleError, match=r"0\.9999 top-1") as caught:
        made.accurate_enough(fastest, predictor(base=0.5))
    reachable = caught.value.rules[0].nearest
    made, fastest = bounds(min_accuracy=reachable)
    assert accuracy_of(made.accurate_enough(fastest, predictor(base=0.5)), predictor(base=0.5)) >= reachable


@pytest.mark.slow
def test_objective_accuracy_keeps_the_budget_and_is_never_less_accurate_than_the_fastest():
    own = predictor()
    _, fastest = bounds()
    for slack in (1.0, 1.02, 1.2, 3.0):
        made, fastest = bounds(objective="accuracy", accuracy="x", latency_budget=fastest.ms * slack)
        found = made.most_accurate(fastest, own)
        assert found.ms <= fastest.ms * slack + 1e-9
        assert accuracy_of(found, own) >= accuracy_of(fastest, own)


def test_more_budget_never_gives_less_accuracy():
    own = predictor()
    _, fastest = bounds()
    accuracies = []
    for slack in (1.0, 1.05, 1.3, 2.0):
        made, fastest = bounds(objective="accuracy", accuracy="x", latency_budget=fastest.ms * slack)
        accuracies.append(accuracy_of(made.most_accurate(fastest, own), own))
    assert accuracies == sorted(accuracies)


@pytest.mark.slow
def test_parameters_are_brought_into_range():
    _, fastest = bounds()
    ratio = fastest.params / GRAPH.params
    made, fastest = bounds(params=(0.01, ratio * 0.97))
    found = made.within_params(fastest)
    assert found.params <= ratio * 0.97 * GRAPH.params
    assert found.ms >= fastest.ms


def test_agreement_beyond_reach_names_the_highest_there_is_and_that_exact_segments_lose_nothing():
    own = made()
    space = merged_space()
    low, high = round(0.9 * space.segments[0].graph.macs), round(1.1 * sum(s.graph.macs for s in space.segments))
    fastest = search_exact(space, low, high, 1)
    bounds = Bounds(MEASURED, space, PlanConfig(min_agreement=0.9999), (low, high), 1)
    with pytest.raises(InfeasibleError, match="to see the original's class in 100") as caught:
        bounds.accurate_enough(fastest, own)
    nearest = caught.value.rules[0].nearest
    assert (caught.value.rules[0].rule, "kinds" in caught.value.hint) == ("min_agreement", True)
    found = Bounds(MEASURED, space, PlanConfig(min_agreement=nearest), (low, high), 1).accurate_enough(fastest, own)
    assert own.value(loss_of(found, own)) >= nearest
