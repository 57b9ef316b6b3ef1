"""Training without labels: from any folder, by the original alone, and told what it cannot do."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from predictors.errors import StretchError, UsageError  # noqa: E402 - torch may be missing
from scheduler.bundle.load import load_bundle  # noqa: E402
from stretch.evaluation.agreement import compare  # noqa: E402
from stretch.train.extract import extract, open_run  # noqa: E402
from stretch.train.images import (  # noqa: E402
    divided,
    unlabelled_items,
)
from stretch.train.prepare import check_recipe  # noqa: E402
from stretch.train.recipe import load_recipe  # noqa: E402
from stretch.train.session import make_run, train_recipe  # noqa: E402
from tests.stretch.train.recipes import network  # noqa: E402
from tests.stretch.train.test_stream import encoded  # noqa: E402

pytestmark = pytest.mark.torch

NONE = ("data.labels=none", "train.distill=1")


def pictures(folder, *names):
    """Pictures of different colours at the paths `names` below a folder."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded((37 * number % 256, 91 * number % 256, 150)))
    return folder


def names(items, folder):
    return [str(item.path.relative_to(folder)) for item in items]


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


@given(st.integers(2, 400), st.floats(0.001, 0.5))
def test_every_item_is_trained_on_or_held_back_and_both_are_spread_over_all(count, share):
    train, back = divided(range(count), share, Path("there"))
    assert sorted(train + back) == list(range(count))
    assert len(back) == min(max(1, round(count * share)), count - 1)
    assert max(b - a for a, b in zip([*back, count], [*back[1:], count, count], strict=True)) <= -(-count // len(back))


@pytest.mark.parametrize("layout", [["a.png", "b.png", "c.png"], ["x/a.png", "x/y/b.png", "z/c.png", "d.jpg"]])
def test_images_are_taken_from_any_folder(tmp_path, layout):
    pictures(tmp_path, *layout, ".hidden/e.png")
    (tmp_path / "notes.txt").write_text("no image")
    train, back = unlabelled_items(tmp_path, 0.3)
    assert sorted(names([*train, *back], tmp_path)) == sorted(layout)
    assert len(back) == 1


def test_folder_that_is_divided_already_stays_so(tmp_path):
    pictures(tmp_path, "train/a.png", "train/cat/b.png", "val/c.png")
    train, back = unlabelled_items(tmp_path, 0.5)
    assert (names(train, tmp_path), names(back, tmp_path)) == (["train/a.png", "train/cat/b.png"], ["val/c.png"])
    (tmp_path / "val" / "c.png").unlink()
    with pytest.raises(StretchError, match="no images in `val`"):
        unlabelled_items(tmp_path, 0.5)


@pytest.mark.parametrize("there", [[], ["a.png"]])
def test_too_few_images_are_named(tmp_path, there):
    pictures(tmp_path, *there)
    with pytest.raises(StretchError, match=f"{tmp_path} has {'1 image' if there else 'no images'}"):
        unlabelled_items(tmp_path, 0.1)
    with pytest.raises(StretchError, match="no folder of images"):
        unlabelled_items(tmp_path / "gone", 0.1)


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
