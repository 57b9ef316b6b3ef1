import pytest

from stretch.planning.config import OPERATOR_SPLIT, PlanConfig, read_objective
from stretch.planning.plan import plan
from stretch.planning.search.evolve import evolve, fastest_designs, score_of
from stretch.planning.search.exact import LATENCY
from stretch.planning.search.space import Totals
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE, make_space


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evolve", "exact", "grid", OPERATOR_SPLIT])
def test_every_strategy_finds_a_design_in_the_range(name):
    graph = small_resnet(64)
    kinds = {} if name == OPERATOR_SPLIT else LOOSE
    result = plan(graph, specified("mi9"), PlanConfig(processors=("cpu", "gpu"), strategy=name, macs=(0.9, 1.1), **kinds))
    assert 0.9 <= (result.run.macs - result.run.repeated_macs) / graph.macs <= 1.1
    assert result.design.n_meet >= 1
    assert result.optimal is (name in ("exact", "operator_split"))


EVOLVE_GRAPH = small_resnet(blocks=(2, 2))
LOW, HIGH = round(0.9 * EVOLVE_GRAPH.macs), round(1.2 * EVOLVE_GRAPH.macs)
SPACE = make_space(EVOLVE_GRAPH, processors=("cpu", "gpu", "dsp"))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("objective", ["latency", "throughput", "robust"])
def test_design_is_no_worse_than_those_it_began_with(objective):
    score = score_of(read_objective(objective), LATENCY, SPACE)
    starts = fastest_designs(SPACE, Totals(LOW, HIGH, 1))
    assert len(starts) >= 3
    result = evolve(SPACE, Totals(LOW, HIGH, 1), score, starts, evaluations=100)
    assert result.value <= min(score(start.picks) for start in starts)
    assert result.value == pytest.approx(score(result.picks))


def test_range_without_designs_has_none():
    assert evolve(SPACE, Totals(0, 10, 1), score_of(read_objective("latency"), LATENCY, SPACE), ()) is None
