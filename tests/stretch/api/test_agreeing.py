"""Networks that must agree with their original: refused, or repaired until they do."""

import numpy as np
import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from predictors.errors import InfeasibleError, UsageError  # noqa: E402 - torch may be missing
from scheduler.bundle.load import load_bundle  # noqa: E402
from stretch.api import branch  # noqa: E402
from stretch.planning.cost.accuracy import save_accuracy  # noqa: E402
from stretch.sensitivity.source import sensitivity_of  # noqa: E402
from stretch.stages.build import divide_images  # noqa: E402
from stretch.stages.network import read_network  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402
from tests.stretch.api.test_main_job import LOOSE  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Noise of many strengths, so that a network with random weights sees more than one class."""
    rng = np.random.default_rng(0)
    some = rng.standard_normal((96, 3, 32, 32)) * rng.uniform(0.2, 20, (96, 1, 1, 1)) + rng.standard_normal((96, 3, 1, 1)) * 5
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "some.npy", some.astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def measured(images):
    """What a tiny network loses segment by segment."""
    network = read_network("tiny_resnet", weights="none")
    result = divide_images(images, network.captured, 48)
    return sensitivity_of(network.captured, specified("pixel6"), LOOSE, result.fitted, result.held_back, 3.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"min_agreement": 0.9}, "measured on images, and there are none"),
        ({"min_agreement": 1.2, "images": "there"}, "out of range"),
        ({"min_agreement": 0.9, "images": "there", "dry_run": True}, "dry run"),
        ({"repair": True, "images": "there"}, "nothing to repair"),
        ({"run_images": -1, "images": "there"}, "no number of images"),
        ({"mapping": {"gpu": "cpu"}}, "there are no images"),
        ({"min_agreement": 0.9, "images": "there", "repair": True, "design": "there"}, "a design that is given is not changed"),
    ],
)
def test_requests_that_cannot_be_measured_are_refused_before_any_work(images, tmp_path, options, why):
    design = tmp_path / "same.toml"
    design.write_text('version = 1\n\n[[segments]]\nname = "s1"\nbranches = [{ processor = "gpu" }]\n')
    there = {"images": images, "design": design}
    with pytest.raises(UsageError, match=why):
        branch(
            "tiny_resnet", "pixel6", weights="none", **{key: there[key] if value == "there" else value for key, value in options.items()}
        )


@pytest.mark.slow
def test_network_that_agrees_less_often_than_predicted_is_refused_and_nothing_is_written(images, tmp_path, measured):
    hopeful = tmp_path / "hopeful.json"
    save_accuracy(hopeful, replace(measured, curve=(50.0, measured.curve[1])))
    request = {"config": LOOSE, "weights": "none", "images": images, "image_count": 48, "accuracy": str(hopeful)}
    with pytest.raises(InfeasibleError, match="sees the original's class in") as caught:
        branch("tiny_resnet", specified("pixel6"), out=tmp_path / "b", min_agreement=1.0 - 1e-6, **request)
    assert caught.value.exit_code == 4
    assert "repair" in caught.value.hint
    assert not (tmp_path / "b").exists()


def test_design_is_chosen_by_the_agreement_that_is_asked_for(images, tmp_path, measured):
    file = tmp_path / "sensitivity.json"
    save_accuracy(file, measured)
    request = {"config": LOOSE, "weights": "none", "accuracy": str(file), "dry_run": True, "kinds": ("stretch", "rows")}
    free = branch("tiny_resnet", specified("pixel6"), **request)
    assert free.plan.accuracy.basis == "sensitivity"
    agreement = (1 + free.plan.accuracy.agreement) / 2
    result = branch("tiny_resnet", specified("pixel6"), min_agreement=agreement, **request)
    assert result.plan.accuracy.agreement >= agreement
    assert result.plan.run.makespan_ms >= free.plan.run.makespan_ms


@pytest.mark.slow
def test_repaired_network_agrees_and_its_bundle_says_how_often(images, tmp_path):
    request = {"config": LOOSE, "weights": "none", "images": images, "image_count": 48}
    before = branch("tiny_resnet", specified("pixel6"), **request)
    result = branch("tiny_resnet", specified("pixel6"), out=tmp_path / "b", min_agreement=1.0, repair=True, budget_minutes=0.05, **request)
    assert before.agreement.value < result.agreement.value == 1.0
    assert result.plan.config.keep or result.plan.exact
    kept = [s for s in result.plan.answer().segments if s.name in result.plan.config.keep]
    assert all(s.kind != "stretch" for s in kept)
    assert load_bundle(tmp_path / "b").manifest.agreement == result.agreement
    assert result.agreement.bundle.images == 48  # of 96, those that calibration did not look at
    assert result.to_json()["agreement"]["value"] == 1.0


@pytest.mark.slow
def test_training_on_makes_what_was_measured_void(images, tmp_path):
    result = branch("tiny_resnet", specified("pixel6"), config=LOOSE, weights="none", images=images, image_count=48)
    assert result.agreement is not None
    with torch.no_grad():
        next(result.model.parameters()).add_(0.01)
    result.save(tmp_path / "b")
    assert result.agreement is None
    assert load_bundle(tmp_path / "b").manifest.agreement is None
