import json

import pytest

from stretch.planning.together import together
from stretch.planning.together_answer import together_answer
from tests.stretch.planning.test_together import MI9, PROCESSORS, both  # noqa: F401


@pytest.mark.representatives(1)
@pytest.mark.parametrize("goal", ["makespan", "throughput"])
def test_ratios_are_those_of_what_the_pair_is_best_in(both, goal):  # noqa: F811
    found = together(*both, MI9, PROCESSORS, goal)
    answer = together_answer(found, {"search": 1.0})
    if goal == "makespan":
        assert answer.speedup_over_fixed == pytest.approx(answer.fixed_ms / answer.makespan_ms)
        assert answer.speedup_over_sequential == pytest.approx(answer.sequential_ms / answer.makespan_ms)
    else:
        assert answer.speedup_over_fixed == pytest.approx(answer.pairs_per_second / answer.fixed_per_second)
    assert answer.sequential_ms == pytest.approx(sum(row.best_alone_ms for row in answer.designs))
    assert max(row.latency_ms for row in answer.designs) == pytest.approx(answer.makespan_ms)
    assert all(row.branches for row in answer.designs if len(row.processors) > 1)
    told = json.loads(json.dumps(answer.to_json()))
    assert told["source"] == "simulated"
    assert told["candidates"] == [len(some) for some in both]
