"""Networks that must agree with their original: refused, or repaired until they do."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from predictors.errors import InfeasibleError, UsageError  # noqa: E402 - torch may be missing
from scheduler.bundle.load import load_bundle  # noqa: E402
from stretch.api import branch  # noqa: E402
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


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"min_agreement": 0.9}, "measured on images, and there are none"),
        ({"min_agreement": 1.2, "images": "there"}, "no share of images"),
        ({"min_agreement": 0.9, "images": "there", "dry_run": True}, "dry run"),
        ({"repair": True, "images": "there"}, "nothing to repair"),
        ({"run_images": -1, "images": "there"}, "no number of images"),
        ({"mapping": {"gpu": "cpu"}}, "there are no images"),
        ({"min_agreement": 0.9, "images": "there", "repair": True, "design": "there"}, "a design that is given is not changed"),
    ],
)
def test_requests_that_cannot_be_measured_are_refused_before_any_work(images, tmp_path, asked, why):
    design = tmp_path / "same.toml"
    design.write_text('version = 1\n\n[[segments]]\nname = "s1"\nbranches = [{ processor = "gpu" }]\n')
    there = {"images": images, "design": design}
    with pytest.raises(UsageError, match=why):
        branch("tiny_resnet", "pixel6", weights="none", **{key: there[key] if value == "there" else value for key, value in asked.items()})


def test_network_that_agrees_too_seldom_is_refused_and_nothing_is_written(images, tmp_path):
    with pytest.raises(InfeasibleError, match="sees the original's class in") as caught:
        branch(
            "tiny_resnet",
            specified("pixel6"),
            out=tmp_path / "b",
            config=LOOSE,
            weights="none",
            images=images,
            image_count=48,
            min_agreement=1.0,
        )
    assert caught.value.exit_code == 4
    assert "repair" in caught.value.hint
    assert not (tmp_path / "b").exists()


def test_repaired_network_agrees_and_its_bundle_says_how_often(images, tmp_path):
    request = {"config": LOOSE, "weights": "none", "images": images, "image_count": 48}
    before = branch("tiny_resnet", specified("pixel6"), **request)
    result = branch("tiny_resnet", specified("pixel6"), out=tmp_path / "b", min_agreement=1.0, repair=True, **request)
    assert before.agreement.value < result.agreement.value == 1.0
    assert result.plan.config.keep
    kept = [s for s in result.plan.answer().segments if s.name in result.plan.config.keep]
    assert all(s.kind != "stretch" for s in kept)
    assert load_bundle(tmp_path / "b").manifest.agreement == result.agreement
    assert result.agreement.bundle.images == 48  # of 96, those that calibration did not look at
    assert result.to_json()["agreement"]["value"] == 1.0


def test_training_on_makes_what_was_measured_void(images, tmp_path):
    result = branch("tiny_resnet", specified("pixel6"), config=LOOSE, weights="none", images=images, image_count=48)
    assert result.agreement is not None
    with torch.no_grad():
        next(result.model.parameters()).add_(0.01)
    result.save(tmp_path / "b")
    assert result.agreement is None
    assert load_bundle(tmp_path / "b").manifest.agreement is None
