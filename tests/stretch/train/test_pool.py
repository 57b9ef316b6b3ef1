"""Designs of a pool, and how they are ranked by what was trained."""

import msgspec
import numpy as np
import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.design.scale import scaled_graph
from stretch.planning.plan import evaluate, plan
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import small_resnet

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402
from stretch.planning.cost.accuracy import FEATURES, segment_features  # noqa: E402
from stretch.train.extract import LEAST, fit, rank  # noqa: E402
from stretch.train.recipe import load_recipe  # noqa: E402
from stretch.train.session import train_recipe  # noqa: E402
from stretch.train.supernet import designs_between, fastest_designs, random_designs  # noqa: E402
from tests.stretch.train.recipes import network  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu", "dsp")])
def test_drawn_designs_differ_and_cost_what_was_asked_for(captured, processors):
    graph = captured("tiny_resnet").graph
    designs = random_designs(graph, specified("mi9"), processors, 4, (0.9, 1.1))
    assert len(set(designs)) == 4
    for design in designs:
        assert 0.9 <= scaled_graph(graph, design).macs / graph.macs <= 1.1
        assert {p for s in design.segments if not s.whole for p in (b.processor for b in s.branches)} == set(processors)


def test_designs_between_stay_within_the_pool(captured):
    graph = captured("tiny_resnet").graph
    pool = random_designs(graph, specified("mi9"), ("cpu", "gpu"), 4, (0.8, 1.2), seed=3)
    result = designs_between(graph, pool, 5, (0.8, 1.2), seed=1)
    assert len(set(result)) == 5
    assert result == designs_between(graph, pool, 5, (0.8, 1.2), seed=1)
    for design in result:
        for number, part in enumerate(design.segments):
            assert (part.start, part.end, part.join) == (
                pool[0].segments[number].start,
                pool[0].segments[number].end,
                pool[0].segments[number].join,
            )
            for index, branch in enumerate(part.branches):
                rows = [d.segments[number].branches[index] for d in pool]
                assert min(b.depth for b in rows) <= branch.depth <= max(b.depth for b in rows)
                assert min(b.width for b in rows) <= branch.width <= max(b.width for b in rows)


def test_fastest_designs_are_the_planners_and_share_their_meeting_points():
    graph = small_resnet()
    profile = specified("mi9")
    config = PlanConfig(processors=("cpu", "gpu"), alpha=5.0, beta=5.0, balance=0.01, segment_macs=0.1)
    designs = fastest_designs(graph, profile, config, 3, (0.9, 1.1))
    assert len(set(designs)) == 3
    times = [evaluate(graph, profile, design, config).run.makespan_ms for design in designs]
    assert times == sorted(times)
    best = plan(graph, profile, msgspec.structs.replace(config, macs=(0.9, 1.1))).run.makespan_ms
    assert times[0] >= best - 1e-9
    assert len({tuple((s.start, s.end, s.join) for s in d.segments) for d in designs}) == 1


@pytest.fixture(scope="module")
def drawn(captured):
    graph = captured("tiny_resnet").graph
    return graph, random_designs(graph, specified("mi9"), ("cpu", "gpu"), 30, (0.7, 1.3), seed=1)


@pytest.mark.slow
def test_linear_truth_is_found_and_ranked_on_designs_left_out(drawn):
    graph, designs = drawn
    truth = np.random.default_rng(0).normal(size=len(FEATURES)) * 0.02
    accuracies = [0.9 + sum(float(row @ truth) for row in segment_features(graph, d).values()) for d in designs]
    predictor, held_out = fit(graph, designs, accuracies)
    assert predictor.rank_correlation > 0.95
    assert predictor.p_value < 0.01
    assert np.allclose(held_out, accuracies, atol=0.01)
    for design, accuracy in zip(designs, accuracies, strict=True):
        assert predictor.predict(graph, design) == pytest.approx(accuracy, abs=0.005)


def test_held_out_prediction_ignores_the_accuracy_of_its_design(drawn):
    graph, designs = drawn
    accuracies = list(np.random.default_rng(3).normal(0.9, 0.01, len(designs)))
    before = fit(graph, designs, accuracies)[1]
    accuracies[7] += 0.5
    after = fit(graph, designs, accuracies)[1]
    assert after[7] == pytest.approx(before[7], abs=1e-12)


def test_equal_accuracies_cannot_be_ranked(drawn):
    graph, designs = drawn
    with pytest.raises(StretchError, match="nothing to rank"):
        fit(graph, designs, [0.9] * len(designs))


@pytest.mark.slow
def test_run_of_one_network_and_too_few_designs_cannot_be_ranked(tmp_path):
    path = network(tmp_path)
    run = train_recipe(load_recipe(path, ("train.epochs=1",)), tmp_path, tmp_path / "run").run
    with pytest.raises(StretchError, match="nothing to rank"):
        rank(run, LEAST)
    with pytest.raises(StretchError, match="too few to rank"):
        rank(run, LEAST - 1)
