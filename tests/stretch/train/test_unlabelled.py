"""Training without labels: from any folder, by the original alone, and told what it cannot do."""

import json

import numpy as np
import pytest
import torch

from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from stretch.evaluation.agreement import compare
from stretch.train.extract import extract, open_run
from stretch.train.prepare import check_recipe
from stretch.train.recipe import load_recipe
from stretch.train.session import make_run, train_recipe
from tests.stretch.train.recipes import network
from tests.stretch.train.test_images import pictures

NONE = ("data.labels=none", "train.distill=1")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (("train.distill_kind=weighted",), "train.distill_kind = weighted needs labels"),
        (("train.label_smoothing=0.1",), "train.label_smoothing needs labels"),
        (("classes=7",), "a last layer of 7 new classes needs labels"),
        (("train.distill=0",), "only the original to learn from"),
    ],
)
def test_what_needs_labels_is_refused_before_anything_is_loaded(tmp_path, changes, why):
    recipe = load_recipe(network(tmp_path), (*NONE, *changes, "model=nothing_like_that"))
    with pytest.raises(UsageError, match=why):
        train_recipe(recipe, tmp_path, tmp_path / "run")
    check_recipe(load_recipe(network(tmp_path), changes))


def test_labels_have_no_part_in_what_is_learned(tmp_path):
    """The same steps with other labels end at the same weights, and with labels given they do not."""
    from stretch.train.distributed import World
    from stretch.train.images import ImageSet
    from stretch.train.prepare import prepare

    def weights(labels, *changes):
        recipe = load_recipe(network(tmp_path), ("train.epochs=1", "train.distill=0.5", *changes))
        images = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        some = ImageSet(images, labels)
        run = make_run(prepare(recipe, tmp_path), some, some, World())
        (row,) = [row for row in run.steps() if row is not None]
        return torch.cat([p.detach().flatten() for p in run.model.parameters()]), row

    ones, others = torch.ones(32, dtype=torch.int64), torch.arange(32) % 10
    (first, row), (second, _) = (weights(labels, "data.labels=none") for labels in (ones, others))
    assert torch.equal(first, second)
    assert row.accuracy is None
    assert 0 <= row.agreement <= 1
    assert not torch.equal(weights(ones)[0], weights(others)[0])


@pytest.mark.slow
def test_run_without_labels_learns_to_agree_and_its_bundle_says_how_often(tmp_path):
    rng = np.random.default_rng(0)
    pictures(tmp_path / "images", *(f"{number % 3}/{number}.png" for number in range(96)))
    changes = (*NONE, "data.name=images", f"data.path={tmp_path / 'images'}", "data.workers=0", "data.held_back=0.25", "start=calibrate")
    done = train_recipe(load_recipe(network(tmp_path), (*changes, "train.epochs=2")), tmp_path, tmp_path / "run")
    assert done.metrics["accuracy"] is None
    assert 0 <= done.metrics["agreement"] <= done.metrics["best_agreement"] <= 1
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert rows[0].endswith(",agreement")
    assert float(rows[-1].rpartition(",")[2]) == done.metrics["agreement"]
    taken = extract(tmp_path / "run", tmp_path / "out", controls=False)
    assert not taken.labelled
    assert taken.extracted == pytest.approx(done.metrics["best_agreement"], abs=0.05)
    ready, _ = open_run(tmp_path / "run")
    _, held_back = ready.images()
    assert len(held_back) == 24
    manifest = load_bundle(taken.bundle).manifest
    assert manifest.agreement == taken.agreement
    assert (taken.agreement.images, taken.agreement.bundle.images) == (24, 24)
    images = torch.from_numpy(rng.standard_normal((8, 3, 16, 16)).astype(np.float32))
    assert compare(taken.model, ready.captured, [images]).agreement.images == 8
    assert json.loads((tmp_path / "out" / "bundle" / "bundle.json").read_bytes())["agreement"]["bundle"]["source"] == "measured"
