"""Images to train with: arrays, folders, made-up sets."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402
from stretch.train.images import (  # noqa: E402
    ImageSet,
    load_arrays,
    load_data,
    synthetic,
)
from stretch.train.recipe import DataConfig  # noqa: E402
from tests.stretch.train.test_stream import folder  # noqa: E402

pytestmark = pytest.mark.torch


def test_moments_are_those_of_numpy():
    images = synthetic(4, 16, 50)[0]
    mean, deviation = images.moments()
    values = images.images.numpy().astype(np.float64)
    np.testing.assert_allclose(mean, values.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(deviation, values.std((0, 2, 3)), rtol=1e-5)


def test_shuffled_batches_are_full_and_hold_no_image_twice():
    data = ImageSet(torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 3, 2, 2), torch.arange(10))
    seen = torch.cat([labels for _, labels in data.epoch(1, 3, 0)])
    assert len(seen) == 9
    assert len(seen.unique()) == 9
    assert [len(labels) for _, labels in data.batches(3)] == [3, 3, 3, 1]


def save(path, **changes):
    arrays = {
        "train_images": np.zeros((4, 8, 8, 3), np.uint8),
        "train_labels": np.arange(4),
        "test_images": np.zeros((2, 8, 8, 3), np.uint8),
        "test_labels": np.arange(2),
    } | changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def test_arrays_are_read_as_channels_first(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 6, 3), dtype=np.uint8)
    train, test = load_arrays(save(tmp_path / "a.npz", train_images=images), 10)
    np.testing.assert_array_equal(train.images.numpy(), images.transpose(0, 3, 1, 2))
    assert len(test) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"test_labels": None}, "test_labels"),
        ({"train_images": np.zeros((4, 8, 8), np.uint8)}, "uint8 of shape"),
        ({"train_images": np.zeros((4, 8, 8, 3), np.float32)}, "float32"),
        ({"train_labels": np.array([0, 1, 2, 10])}, "0 to 10, the model has 10 classes"),
        ({"train_labels": np.arange(3)}, "is int64 of shape"),
        ({"train_images": np.zeros((0, 8, 8, 3), np.uint8), "train_labels": np.arange(0)}, "empty"),
        ({"train_images": np.array([{"a": 1}])}, "damaged or no plain arrays"),
        ({"train_labels": np.array([0.5, 1, 2, 3])}, "float64"),
        ({"train_labels": None}, "has no `train_labels`"),
    ],
)
def test_file_that_is_no_image_set_is_refused(tmp_path, changes, reason):
    with pytest.raises(StretchError, match=reason):
        load_arrays(save(tmp_path / "a.npz", **changes), 10)


@pytest.mark.parametrize(
    "damage", [lambda whole: b"no archive", lambda whole: whole[:40], lambda whole: whole[:60] + b"?" * 40 + whole[100:]]
)
def test_damaged_file_is_refused_in_a_sentence_of_ours(tmp_path, damage):
    path = save(tmp_path / "a.npz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StretchError, match=r"a\.npz") as error:
        load_arrays(path, 10)
    assert "allow_pickle" not in error.value.message
    assert "train_images" in error.value.hint


@pytest.mark.parametrize(("classes", "size", "count"), [(10, 2048, 2048), (65536, 224, 16), (10, 32, 10**9)])
def test_made_up_images_that_fit_no_memory_are_refused_before_any_is_drawn(classes, size, count):
    with pytest.raises(StretchError, match="are allowed"):
        synthetic(classes, size, count)


def test_folder_of_images_is_read_in_its_two_parts(tmp_path):
    for split in ("train", "val"):
        folder(tmp_path / split, 3)
    train, test = load_data(DataConfig(name="images", path=str(tmp_path), workers=0), 2, 16)
    assert (len(train), len(test)) == (6, 6)
    with pytest.raises(StretchError, match="2 classes, the model has 10") as error:
        load_data(DataConfig(name="imagenet", path=str(tmp_path)), 10, 16)
    assert "--set classes=2" in error.value.hint


@pytest.mark.parametrize(
    ("name", "reason"), [("cifar10", "does not hold cifar10"), ("shards", "no shards"), ("images", "no folder of images")]
)
def test_data_that_is_not_there_is_named(tmp_path, name, reason):
    with pytest.raises(StretchError, match=reason):
        load_data(DataConfig(name=name, path=str(tmp_path)), 10, 32)
