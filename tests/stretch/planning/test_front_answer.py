"""A front as plain data."""

import json

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.front_answer import front_answer
from stretch.planning.pareto import front
from stretch.planning.plan import evaluate
from tests.stretch.planning.cost.measured import GRAPH, ON, made
from tests.stretch.planning.test_pareto import MI9, REQUEST


@pytest.fixture(scope="module")
def answer():
    config = PlanConfig(**REQUEST, kinds=("stretch", "rows"))
    return front_answer(front(GRAPH, MI9, config, ("latency", "agreement"), 5, made()), {"search": 1.0})


@pytest.mark.slow
def test_rows_say_of_each_design_what_evaluating_it_says(answer):
    for row in answer.designs:
        alone = evaluate(GRAPH, MI9, row.design, PlanConfig(**REQUEST), made())
        assert row.predicted_ms == pytest.approx(alone.run.makespan_ms)
        assert row.speedup == pytest.approx(alone.speedup)
        assert row.macs_ratio == pytest.approx(alone.macs_ratio)
        assert row.exact == alone.exact
        assert row.accuracy.agreement == pytest.approx(alone.accuracy.agreement)
        assert len(row.branches) == row.n_meet == alone.design.n_meet
    assert answer.sequential_same_macs_ms / answer.designs[-1].predicted_ms == pytest.approx(answer.designs[-1].speedup_over_sequential)


def test_it_is_json_and_says_where_numbers_come_from(answer):
    told = json.loads(json.dumps(answer.to_json()))
    assert told["source"] == "predicted"
    assert told["pareto"] == ["latency", "agreement"]
    assert told["sensitivity"]["held_back"] == ON.held_back
    assert {row["accuracy"]["basis"] for row in told["designs"]} == {"sensitivity"}
