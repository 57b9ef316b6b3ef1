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


def test_more_budget_never_gives_less_accuracy():
    own = predictor()
    _, fastest = bounds()
    accuracies = []
    for slack in (1.0, 1.05, 1.3, 2.0):
        made, fastest = bounds(objective="accuracy", accuracy="x", latency_budget=fastest.ms * slack)
        accuracies.append(accuracy_of(made.most_accurate(fastest, own), own))
    assert accuracies == sorted(accuracies)


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
