import json
from itertools import product

import pytest

from stretch.planning.config import PlanConfig
from stretch.stages.together import GOALS, best_pair, candidates, simulate_pair, together_answer
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

MI9 = specified("mi9")
PROCESSORS = ("cpu", "gpu")
CONFIG = PlanConfig(processors=PROCESSORS, **LOOSE)


@pytest.fixture(scope="module")
def both():
    return candidates(small_resnet(96), MI9, CONFIG, 3, 1.5), candidates(small_resnet(64), MI9, CONFIG, 3, 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
def test_pair_is_the_best_of_all_pairs_of_candidates(both, goal):
    result = best_pair(*both, MI9, PROCESSORS, goal)
    values = [simulate_pair(one, other, throughput=True).value(goal) for one, other in product(*both)]
    assert result.best.value(goal) == pytest.approx(min(values))
    assert result.candidates == (len(both[0]), len(both[1]))


def test_no_network_of_a_pair_is_faster_than_its_fastest_candidate_alone(both):
    result = best_pair(*both, MI9, PROCESSORS)
    for options, ms in zip(both, result.best.latencies_ms, strict=True):
        assert ms >= min(item.alone_ms for item in options) - 1e-9


def test_candidates_differ_and_include_the_whole_network_on_every_processor(both):
    for options in both:
        designs = [item.design for item in options if item.design is not None]
        assert len(set(designs)) == len(designs) > 1
        assert [item.processors for item in options if item.design is None] != []
        assert {item.processors[0] for item in options if item.design is None} == set(PROCESSORS)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("goal", ["makespan", "throughput", "latency"])
def test_ratios_are_in_the_goal_of_the_pair(both, goal):
    result = best_pair(*both, MI9, PROCESSORS, goal)
    answer = together_answer(result, {"search": 1.0})
    if goal == "makespan":
        assert answer.speedup_over_fixed == pytest.approx(answer.fixed_ms / answer.makespan_ms)
        assert answer.speedup_over_sequential == pytest.approx(answer.sequential_ms / answer.makespan_ms)
    elif goal == "latency":
        assert result.best.value(goal) == pytest.approx(sum(row.latency_ms for row in answer.designs) / 2)
    else:
        assert answer.speedup_over_fixed == pytest.approx(answer.pairs_per_second / answer.fixed_per_second)
    assert answer.sequential_ms == pytest.approx(sum(row.best_alone_ms for row in answer.designs))
    assert max(row.latency_ms for row in answer.designs) == pytest.approx(answer.makespan_ms)
    assert all(row.branches for row in answer.designs if len(row.processors) > 1)
    data = json.loads(json.dumps(answer.to_json()))
    assert (data["source"], data["candidates"]) == ("simulated", [len(options) for options in both])
