"""Which run is faster, and how likely that is, by what the numbers of the profile may be off."""

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.cost import uncertain
from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER, Branch, PredictedRun, certainty, recommend, single_run
from stretch.planning.cost.uncertain import Unknown
from stretch.planning.plan import evaluate, plan
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.designs import identity_design

MI9 = specified("mi9")

CPU, GPU = Unknown("the cpu", 1 / 1.4, 1.4), Unknown("the gpu", 1 / 1.4, 1.4)


def run(*segments, fixed=0.0):
    """Segments as lists of branches, each a mapping of ms by number."""
    return PredictedRun([[Branch(parts) for parts in segment] for segment in segments], fixed)


def only(branched, control):
    [rival] = recommend(branched, {"control": control}).rivals
    return rival


def test_same_numbers_err_alike_in_both_runs():
    rival = only(run([{CPU: 10.0}]), run([{CPU: 10.1}]))
    assert (rival.ratio, rival.low, rival.high) == pytest.approx((1.01, 1.01, 1.01))
    assert 0.999 < rival.probability < 1
    assert rival.low_ms < 10.1 / 1.3 < 10.1 * 1.3 < rival.high_ms


def test_numbers_of_two_processors_err_independently():
    rival = only(run([{CPU: 10.0}]), run([{GPU: 10.0}]))
    # two intervals of 1.4 either way, their squares added
    assert rival.low == pytest.approx(1 / 1.4**2**0.5, rel=0.05)
    assert rival.high == pytest.approx(1.4**2**0.5, rel=0.05)
    assert rival.probability == pytest.approx(0.5, abs=0.05)


def test_branches_that_wait_for_each_other_lose_when_one_is_slower_and_gain_nothing_when_it_is_faster():
    together = recommend(run([{CPU: 7.0}, {GPU: 7.0}]), {"cpu": run([{CPU: 7.0}])})
    [rival] = together.rivals
    assert rival.high == pytest.approx(1.0)
    assert rival.low < 0.8
    # the longer of two is longer on average than each
    assert together.low_ms > 7 / 1.4


@pytest.mark.parametrize(
    ("branched", "controls", "recommended"),
    [
        (39.82, {"single:gpu": {CPU: 39.86}}, "single:gpu"),
        (9.0, {"single:gpu": {CPU: 9.26}}, "single:gpu"),
        (9.0, {"single:gpu": {CPU: 9.28}}, BRANCHED),
        (9.0, {"single:gpu": {CPU: 9.28}, "a": {CPU: 9.1}}, "a"),
        (3.0, {"a": {GPU: 4.2}}, NO_CLEAR_WINNER),
        (3.19, {"sequential_same_macs": {GPU: 3.20}}, NO_CLEAR_WINNER),
        (3.0, {"a": {GPU: 9.0}, "b": {GPU: 10.0}}, BRANCHED),
        (3.0, {"a": {GPU: 9.0}, "b": {GPU: 3.1}}, NO_CLEAR_WINNER),
        (9.0, {"a": {GPU: 3.0}, "b": {GPU: 9.0}}, "a"),
        (9.0, {"a": {GPU: 8.7}}, NO_CLEAR_WINNER),
        (9.0, {"a": {CPU: 8.0}}, "a"),
    ],
)
def test_branches_are_recommended_only_where_their_gain_is_sure_and_worth_it(branched, controls, recommended):
    found = recommend(run([{CPU: branched}, {CPU: branched}]), {name: run([parts]) for name, parts in controls.items()})
    assert found.recommended == recommended


def test_what_does_not_run_side_by_side_is_never_recommended_as_branches():
    alone = {"single:gpu": run([{CPU: 20.0}])}
    for branches in ([Branch({CPU: 5.0})], [Branch({CPU: 5.0}), Branch({})], [Branch({CPU: 5.0}), Branch({CPU: 2.0}, (0,))]):
        assert not PredictedRun([branches]).overlaps
        assert recommend(PredictedRun([branches]), alone).recommended == NO_CLEAR_WINNER
    chain = [Branch({CPU: 5.0}), Branch({}, (0,)), Branch({GPU: 5.0}, (1,))]
    assert not PredictedRun([chain]).overlaps
    beside = [Branch({CPU: 5.0}), Branch({CPU: 1.0}, (0,)), Branch({CPU: 1.0}, (0,))]
    assert recommend(PredictedRun([beside]), alone).recommended == BRANCHED


def test_number_to_measure_next_is_the_one_that_moves_the_ratio_most():
    wide = Unknown("the link", 0.5, 2.0)
    rival = only(run([{CPU: 8.0, wide: 1.0}]), run([{GPU: 9.0}]))
    assert rival.measure in ("the cpu", "the gpu")
    assert only(run([{CPU: 5.0, wide: 4.0}]), run([{CPU: 9.0}])).measure == "the link"
    assert only(run([{CPU: 5.0}]), run([{CPU: 9.0}])).measure is None


def test_links_are_stated_at_half_and_twice_their_time():
    moving = uncertain.link("gpu")
    branched, single = run([{CPU: 5.0, moving: 2.0}]), run([{GPU: 9.0, moving: 1.0}])
    sure = certainty(recommend(branched, {"single:gpu": single}), branched, single)
    assert [row.factor for row in sure.links] == [0.5, 1.0, 2.0]
    assert [row.makespan_ms for row in sure.links] == pytest.approx([6.0, 7.0, 9.0])
    assert [row.speedup for row in sure.links] == pytest.approx([9.5 / 6.0, 10.0 / 7.0, 11.0 / 9.0])
    assert sure.probability_faster.keys() == {"single", "all"}
    assert sure.makespan_low_ms < 7.0 < sure.makespan_high_ms


@pytest.mark.slow
def test_runs_of_a_plan_take_what_the_plan_says():
    result = plan(resnet50(), MI9)
    assert result.predicted_run.ms() == pytest.approx(result.run.makespan_ms)
    expected = {
        f"single:{result.best_single.processor}": result.best_single.ms,
        f"whole_graph:{result.whole_graph.processor}": result.whole_graph.ms,
        "sequential_same_macs": result.sequential.single.ms,
    }
    assert {rival.name: rival.ms for rival in result.recommendation.rivals} == pytest.approx(expected)
    for rival in result.recommendation.rivals:
        assert rival.ratio == pytest.approx(rival.ms / result.run.makespan_ms)
    at_one = next(row for row in result.certainty.links if row.factor == 1.0)
    assert (at_one.makespan_ms, at_one.speedup) == pytest.approx((result.run.makespan_ms, result.speedup))


def test_network_beside_itself_is_left_as_it_is():
    result = evaluate(small_resnet(), MI9, identity_design(small_resnet()))
    graph, predictor = small_resnet(), LatencyPredictor(MI9)
    ms = predictor.predict(graph, "cpu", "fp32").computing_ms
    one = single_run(graph, "cpu", "fp32", ms, predictor)
    assert one.ms() == pytest.approx(ms)
    assert recommend(one, {"again": one}).recommended == "again"
    assert result.recommended != BRANCHED
    assert not result.changes_network


def test_control_that_is_only_told_is_compared_and_neither_beaten_nor_recommended():
    branched, controls = run([{CPU: 5.0}, {CPU: 5.0}]), {"single": run([{CPU: 6.0}]), "sequential_same_macs": run([{CPU: 4.0}])}
    assert recommend(branched, controls).recommended == "sequential_same_macs"
    found = recommend(branched, controls, told=["sequential_same_macs"])
    assert found.recommended == BRANCHED
    assert 0.999 < found.probability < 1
    assert [rival.name for rival in found.rivals] == ["single", "sequential_same_macs"]
    assert [rival.name for rival in found.beatable] == ["single"]
