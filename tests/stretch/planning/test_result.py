"""What a result says of a plan, as an answer, as JSON and beside others."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from predictors.devices import Spread
from stretch.planning.config import PlanConfig
from stretch.planning.pareto import front, front_answer
from stretch.planning.plan import plan
from stretch.planning.result import plain
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.cost.measured import GRAPH, ON, made
from tests.stretch.planning.spaces import LOOSE
from tests.stretch.planning.test_pareto import REQUEST

MI9 = specified("mi9")


@pytest.fixture(scope="module")
def result():
    return plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu")))


def test_slower_links_make_the_branched_run_slower(result):
    times = [row.makespan_ms for row in result.predicted.links]
    assert times == sorted(times)
    assert times[1] == pytest.approx(result.run.makespan_ms)


def test_a_plan_states_its_answer_at_the_ends_of_its_own_links():
    wide = msgspec.structs.replace(MI9.links["gpu"], spread=Spread((0.5, 4.0), "link_gpu"))
    devices = MI9, replace(MI9, links=MI9.links | {"gpu": wide})
    usual, result = (plan(resnet50(), device, PlanConfig(processors=("cpu", "gpu"))) for device in devices)
    assert [row.factor for row in usual.predicted.links] == [0.5, 1.0, 2.0]
    assert [row.factor for row in result.predicted.links] == [0.5, 1.0, 4.0]
    slow = result.predicted.links[2].makespan_ms
    moved = sum(sum(branch.links.values()) for row in result.run.segments for branch in row.branches) + result.run.output_ms
    assert usual.predicted.links[2].makespan_ms < slow == result.at_links(4.0).makespan_ms <= result.run.makespan_ms + 3 * moved
    assert result.recommendation.high_ms > usual.recommendation.high_ms


@pytest.fixture(scope="module")
def lossless():
    return plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu"), lossless=True))


def test_halos_count_as_computed_and_not_as_a_larger_network(lossless):
    halo = lossless.run.halo_macs / lossless.graph.macs
    assert halo > 0
    assert lossless.macs_ratio == pytest.approx(1 + halo)
    assert not any("outside" in warning for warning in lossless.warnings)


def test_lossless_plan_has_the_original_as_its_rival(lossless):
    assert lossless.recommended in ("branched", "no clear winner", f"single:{lossless.best_single.processor}")
    assert "sequential_same_macs" in lossless.predicted.probability_faster
    assert lossless.predicted.reference == ["sequential_same_macs"]
    assert "sequential_same_macs" not in {rival.name for rival in lossless.recommendation.beatable}


@pytest.fixture(scope="module")
def result_of_answer():
    return plan(small_resnet(), specified("mi9"), PlanConfig(**LOOSE))


def test_answer_says_what_the_result_is(result_of_answer):
    answer = result_of_answer.answer()
    assert answer.predicted.makespan_ms == result_of_answer.run.makespan_ms
    assert answer.predicted.speedup == pytest.approx(answer.predicted.best_single_ms / answer.predicted.makespan_ms)
    assert answer.macs == sum(branch.macs for segment in answer.segments for branch in segment.branches)
    ends = [segment.start_ms + segment.predicted_ms for segment in answer.segments]
    assert [segment.start_ms for segment in answer.segments[1:]] == pytest.approx(ends[:-1])


def test_numbers_of_arrays_become_plain_ones():
    class Some(msgspec.Struct):
        whole: int
        share: float

    outcome = plain(Some(np.int64(3), np.float64(0.5)))
    assert outcome == {"whole": 3, "share": 0.5}
    assert [type(value) for value in outcome.values()] == [int, float]


@pytest.fixture(scope="module")
def answer():
    config = PlanConfig(**REQUEST, kinds=("stretch", "rows"))
    return front_answer(front(GRAPH, MI9, config, ("latency", "agreement"), 5, made()), {"search": 1.0})


def test_it_is_json_and_says_where_numbers_come_from(answer):
    data = json.loads(json.dumps(answer.to_json()))
    assert data["source"] == "predicted"
    assert data["pareto"] == ["latency", "agreement"]
    assert data["sensitivity"]["held_back"] == ON.held_back
    assert {row["accuracy"]["basis"] for row in data["designs"]} == {"sensitivity"}
