import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from predictors.errors import StretchError
from scheduler.runtime.session import Session
from stretch.planning.cost.accuracy import FEATURES, segment_features
from stretch.train.extract import LEAST, extract, fit, rank
from stretch.train.recipe import load_recipe
from stretch.train.session import train_recipe
from stretch.train.supernet import random_designs
from tests.predictors.specified import specified
from tests.stretch.train.recipes import network, supernet


def trained(tmp_path, make):
    path = make(tmp_path)
    return train_recipe(load_recipe(path, ("train.epochs=1",)), path.parent, tmp_path / "run").run


@pytest.mark.slow
def test_subnet_taken_out_has_the_accuracy_it_had_inside(tmp_path):
    run = trained(tmp_path, supernet)
    done = extract(run, tmp_path / "out", design=tmp_path / "b.toml", bundle=False)
    assert done.extracted == done.inside
    assert done.design.segments[2].branches[0].depth == 2
    weights = load_file(done.checkpoint)
    assert weights.keys() == done.model.state_dict().keys()


@pytest.mark.slow
def test_bands_of_a_trained_network_have_its_weights(tmp_path):
    """Trained in one piece, run in bands."""

    def bands(folder):
        path = network(folder)
        text = 'model = "tiny_resnet"\n[[segments]]\nname = "s1"\nbranches = [{ processor = "cpu", rows = [0, 5] }, { processor = "gpu", rows = [5, 16] }]\n'
        (folder / "d.toml").write_text(text)
        return path

    done = extract(trained(tmp_path, bands), tmp_path / "out", controls=False)
    assert done.extracted == done.inside
    upper, lower = (done.model.branch("s1", p).state_dict() for p in ("cpu", "gpu"))
    assert all(torch.equal(value, lower[name]) for name, value in upper.items())
    assert done.bundle is not None
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad(), Session(done.bundle) as session:
        torch.testing.assert_close(torch.from_numpy(session.run(x.numpy())), done.model(x), atol=1e-4, rtol=1e-4)


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
        assert predictor.value(predictor.loss(graph, design)) == pytest.approx(accuracy, abs=0.005)


def test_held_out_prediction_ignores_the_accuracy_of_its_design(drawn):
    graph, designs = drawn[0], drawn[1][:12]
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
