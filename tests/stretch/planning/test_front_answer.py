"""A front as plain data."""

import json

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.front_answer import front_answer
from stretch.planning.pareto import front
from tests.stretch.planning.cost.measured import GRAPH, ON, made
from tests.stretch.planning.test_pareto import MI9, REQUEST


@pytest.fixture(scope="module")
def answer():
    config = PlanConfig(**REQUEST, kinds=("stretch", "rows"))
    return front_answer(front(GRAPH, MI9, config, ("latency", "agreement"), 5, made()), {"search": 1.0})


def test_it_is_json_and_says_where_numbers_come_from(answer):
    told = json.loads(json.dumps(answer.to_json()))
    assert told["source"] == "predicted"
    assert told["pareto"] == ["latency", "agreement"]
    assert told["sensitivity"]["held_back"] == ON.held_back
    assert {row["accuracy"]["basis"] for row in told["designs"]} == {"sensitivity"}
