"""What a plan says of itself: figures beside each other, and how sure they are."""

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.plan import evaluate, plan
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified

MI9 = specified("mi9")


@pytest.fixture(scope="module")
def result():
    return plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu")))


@pytest.mark.slow
def test_makespan_lies_in_its_interval_and_probabilities_are_of_each_control(result):
    predicted = result.predicted
    assert predicted.makespan_low_ms < predicted.makespan_ms < predicted.makespan_high_ms
    assert predicted.probability_faster.keys() == {"single", "whole_graph", "sequential_same_macs", "all"}
    assert predicted.probability_faster["all"] <= min(predicted.probability_faster.values())


def test_slower_links_make_the_branched_run_slower(result):
    times = [row.makespan_ms for row in result.predicted.links]
    assert times == sorted(times)
    assert times[1] == pytest.approx(result.run.makespan_ms)


def test_processors_without_a_fit_are_named(result):
    missing = [(name, at) for name, at in result.config.precision.items() if at not in MI9.processor(name).fits]
    assert [at for at, origin in result.origins.items() if origin != "fit"] == missing
    assert result.calibrated == (not missing)


def test_answer_has_the_figures_of_the_result(result):
    answer = result.answer()
    assert answer.predicted == result.predicted
    assert [rival.name for rival in answer.comparisons] == [rival.name for rival in result.recommendation.rivals]
    assert answer.calibrated == result.calibrated


@pytest.fixture(scope="module")
def lossless():
    return plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu"), lossless=True))


@pytest.mark.slow
def test_lossless_plan_is_the_original_divided(lossless):
    answer = lossless.answer()
    assert answer.exact
    assert not lossless.changes_network
    assert {segment.kind for segment in answer.segments} == {"whole", "rows"}
    assert answer.n_meet == sum(segment.kind == "rows" for segment in answer.segments) >= 1
    assert answer.params == lossless.graph.params
    for segment in answer.segments:
        rows = [branch.rows for branch in segment.branches]
        if segment.kind == "whole":
            assert (rows, segment.halo) == ([None], 0)
        else:
            assert [a for a, _ in rows] == [0, *(b for _, b in rows[:-1])]
            assert rows[-1][1] == segment.shape[2]
            assert sum(branch.macs for branch in segment.branches) == pytest.approx((1 + segment.halo) * segment.macs)


def test_halos_count_as_computed_and_not_as_a_larger_network(lossless):
    assert lossless.halo > 0
    assert lossless.macs_ratio == pytest.approx(1 + lossless.halo)
    assert not any("outside" in warning for warning in lossless.warnings)


def test_lossless_plan_has_the_original_as_its_rival(lossless):
    assert lossless.recommended in ("branched", "no clear winner", f"single:{lossless.best_single.processor}")
    assert "sequential_same_macs" in lossless.predicted.probability_faster
    assert lossless.predicted.told == ["sequential_same_macs"]
    assert "sequential_same_macs" not in {rival.name for rival in lossless.recommendation.beatable}


def test_stretched_plan_says_that_it_is_another_network(result):
    answer = result.answer()
    assert not answer.exact
    assert answer.predicted.told == []
    assert answer.halo == 0
    assert {segment.kind for segment in answer.segments} == {"whole", "stretch"}


@pytest.mark.slow
def test_mixed_plan_is_no_slower_than_either_kind(result, lossless):
    mixed = plan(resnet50(), MI9, PlanConfig(processors=("cpu", "gpu"), kinds=("stretch", "rows")))
    assert mixed.run.makespan_ms <= min(result.run.makespan_ms, lossless.run.makespan_ms) + 1e-9
    assert 0.97 <= mixed.macs_ratio - mixed.halo <= 1.03


@pytest.mark.slow
def test_design_of_bands_that_was_not_searched_for_is_judged_as_an_exact_one(lossless):
    again = evaluate(lossless.graph, MI9, lossless.design, PlanConfig(processors=("cpu", "gpu"), lossless=True))
    assert again.exact
    assert again.run.makespan_ms == pytest.approx(lossless.run.makespan_ms)
    assert again.recommended == lossless.recommended
