"""Which run is faster, as far as the profile's uncertainty lets one say."""

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER, Branch, PredictedRun, recommend, single_run
from stretch.planning.plan import evaluate, plan
from tests.predictors.networks import resnet50, small_resnet
from tests.stretch.designs import identity_design

MI9 = load_device("mi9")
U = 0.4  # stated in the profile for each of its processors


def run(*segments, fixed=0.0):
    """Segments as lists of branches, each a mapping of ms by (processor, kind)."""
    return PredictedRun([[Branch(0.0, kernels) for kernels in segment] for segment in segments], fixed)


CPU, GPU = ("cpu", "conv"), ("gpu", "conv")


def only(branched, control):
    [rival] = recommend(branched, {"control": control}, MI9).rivals
    return rival


def test_profile_states_the_uncertainty_that_these_tests_assume():
    assert {p.uncertainty.value for p in MI9.processors.values()} == {U}


def test_same_kernels_on_one_processor_share_their_error():
    rival = only(run([{CPU: 10.0}]), run([{CPU: 10.1}]))
    assert (rival.ratio, rival.low, rival.high) == pytest.approx((1.01, 1.01, 1.01))


def test_errors_of_two_processors_are_independent():
    rival = only(run([{CPU: 10.0}]), run([{GPU: 12.0}]))
    spread = exp(sqrt(2) * log(1 + U))
    assert (rival.ratio, rival.low, rival.high) == pytest.approx((1.2, 1.2 / spread, 1.2 * spread))


def test_branches_that_wait_for_each_other_lose_when_one_is_slower_and_gain_nothing_when_it_is_faster():
    rival = only(run([{CPU: 7.0}, {GPU: 7.0}]), run([{CPU: 10.0}]))
    # slower GPU: 7 → 9.8; a faster CPU helps the control alone
    assert rival.low == pytest.approx(10 / 7 / exp(sqrt(2) * log(1 + U)))
    assert rival.high == pytest.approx(10 / 7)


@pytest.mark.parametrize(
    ("branched", "controls", "choice"),
    [
        (3.19, {"sequential_same_macs": {GPU: 3.20}}, NO_CLEAR_WINNER),
        (3.0, {"a": {GPU: 9.0}, "b": {GPU: 10.0}}, BRANCHED),
        (3.0, {"a": {GPU: 9.0}, "b": {GPU: 3.1}}, NO_CLEAR_WINNER),
        (9.0, {"a": {GPU: 3.0}, "b": {GPU: 9.0}}, "a"),
        (9.0, {"a": {GPU: 8.0}}, NO_CLEAR_WINNER),
        (9.0, {"a": {CPU: 8.0}}, "a"),
    ],
)
def test_a_run_is_recommended_only_where_the_whole_interval_says_so(branched, controls, choice):
    found = recommend(run([{CPU: branched}]), {name: run([kernels]) for name, kernels in controls.items()}, MI9)
    assert found.choice == choice


@given(st.integers(0, 2**32 - 1))
def test_interval_covers_what_independent_errors_do_to_the_ratio(seed):
    rng = np.random.default_rng(seed)
    keys = [(p, k) for p in ("cpu", "gpu", "dsp") for k in ("conv1x1", "conv", "depthwise")]
    branched = run(*[[{k: float(rng.uniform(0, 3)) for k in keys if k[0] == p} for p in ("cpu", "gpu", "dsp")] for _ in range(3)])
    control = run([{k: float(rng.uniform(0, 5)) for k in keys if k[0] == "cpu"}])
    rival = only(branched, control)
    factors = np.exp(rng.normal(0, log(1 + U) / 1.96, (400, len(keys))))
    ratios = np.array([control.ms(f) / branched.ms(f) for f in (dict(zip(keys, row, strict=True)) for row in factors)])
    assert np.mean((rival.low <= ratios) & (ratios <= rival.high)) > 0.85
    assert rival.low <= rival.ratio <= rival.high


def test_runs_of_a_plan_take_what_the_plan_says():
    result = plan(resnet50(), MI9)
    assert result._run().ms() == pytest.approx(result.run.makespan_ms)
    expected = {
        f"single:{result.best_single.processor}": result.best_single.ms,
        f"whole_graph:{result.whole_graph.processor}": result.whole_graph.ms,
        "sequential_same_macs": result.sequential.single.ms,
    }
    assert {rival.name: rival.ms for rival in result.recommendation.rivals} == pytest.approx(expected)
    for rival in result.recommendation.rivals:
        assert rival.ratio == pytest.approx(rival.ms / result.run.makespan_ms)


def test_network_beside_itself_is_no_winner():
    result = evaluate(small_resnet(), MI9, identity_design(small_resnet()))
    graph, predictor = small_resnet(), LatencyPredictor(MI9)
    ms = predictor.predict(graph, "cpu", "fp32").ms
    one = single_run(graph, "cpu", "fp32", ms, predictor)
    assert one.ms() == pytest.approx(ms)
    assert recommend(one, {"again": one}, MI9).choice == NO_CLEAR_WINNER
    assert not result.changes_network
