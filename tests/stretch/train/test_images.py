"""Training images from arrays, folders, streams and synthetic sets, and the shifting and normalising of batches."""

import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from predictors.errors import StretchError
from stretch.train.images import (
    ImageSet,
    ImageStream,
    Normalise,
    crop_and_flip,
    folder_items,
    load_arrays,
    load_data,
    shard_items,
    split_items,
    stored_size,
    synthetic,
    unlabelled_items,
)
from stretch.train.recipe import DataConfig


def test_shuffled_batches_are_full_and_hold_no_image_twice():
    data = ImageSet(torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 3, 2, 2), torch.arange(10))
    seen = torch.cat([labels for _, labels in data.epoch(1, 3, 0)])
    assert len(seen) == len(seen.unique()) == 9
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
        *((damage, r"a\.npz") for damage in (lambda whole: b"no archive", lambda whole: whole[:40])),
        (lambda whole: whole[:60] + b"?" * 40 + whole[100:], r"a\.npz"),
        (lambda whole: re.sub(rb"(PK\x03\x04..|PK\x01\x02....).", lambda header: header[1] + b"\1", whole, flags=re.DOTALL), "encrypted"),
    ],
)
def test_file_that_is_no_image_set_is_refused(tmp_path, changes, reason):
    path = save(tmp_path / "a.npz", **({} if callable(changes) else changes))
    if callable(changes):
        path.write_bytes(changes(path.read_bytes()))
    with pytest.raises(StretchError, match=reason) as error:
        load_arrays(path, 10)
    assert stored_size(DataConfig(name="arrays", path=str(path))) in (None, (8, 8))
    assert not callable(changes) or ("allow_pickle" not in error.value.message and "train_images" in error.value.hint)


def test_folder_of_images_is_read_as_training_and_evaluation_part(tmp_path):
    for split in ("train", "val"):
        folder(tmp_path / split, 3)
    train, test = load_data(DataConfig(name="images", path=str(tmp_path), workers=0), 2, 16)
    assert (len(train), len(test)) == (6, 6)
    with pytest.raises(StretchError, match="2 classes, the model has 10") as error:
        load_data(DataConfig(name="imagenet", path=str(tmp_path)), 10, 16)
    assert "--set classes=2" in error.value.hint


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda at: load_data(DataConfig(name="cifar10", path=str(at)), 10, 32), "does not hold cifar10"),
        (lambda at: load_data(DataConfig(name="shards", path=str(at)), 10, 32), "no shards"),
        (lambda at: load_data(DataConfig(name="images", path=str(at)), 10, 32), "no folder of images"),
        (lambda at: folder_items(at / "nowhere"), "no folder of images"),
        (lambda at: folder_items(at / "two", ["cat"]), "class `dog`"),
        (lambda at: ImageStream.of(folder_items(at / "two")[0], 16, 1), "from 0 to 1, the model has 1"),
        (lambda at: ImageStream.of([], 16, 1), "empty"),
        (lambda at: shard_items([shard(at / "a.tar", {"0.png": b""})]), r"no `0\.cls`"),
        (lambda at: shard_items([shard(at / "a.tar", {"0.png": b"", "0.cls": b"cat"})]), "no class number"),
        (lambda at: shard_items([at / "two/cat/0.png"]), "cannot read the shard"),
        (lambda at: unlabelled_items(at / "none", 0.1), "none has no images"),
        (lambda at: unlabelled_items(at / "one", 0.1), "one has 1 image"),
        (lambda at: unlabelled_items(at / "gone", 0.1), "no folder of images"),
        (lambda at: load_data(DataConfig(name="images", path=str(at / "half"), labels="none"), 2, 16), "no images in `val`"),
        # too many synthetic images for the memory are refused before the first is drawn
        *((lambda at, size=size: synthetic(*size), "are allowed") for size in ((10, 2048, 2048), (65536, 224, 16), (10, 32, 10**9))),
    ],
)
def test_missing_images_or_images_that_do_not_fit_the_model_are_refused(tmp_path, read, reason):
    folder(tmp_path / "two", 1)
    for name in ("none", "half/val"):
        (tmp_path / name).mkdir(parents=True)
    pictures(tmp_path, "one/a.png", "half/train/a.png")
    with pytest.raises(StretchError, match=reason):
        read(tmp_path)


def encoded(value, size=(20, 24)):
    buffer = io.BytesIO()
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def folder(path, count=6):
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for number in range(count):
            (path / label / f"{number}.png").write_bytes(encoded(100 * (label == "dog") + number))
    return path


def values(batches):
    return [sorted(int(i.max()) for i in images) for images, _ in batches]


def labelled(batches):
    return [(int(i.max()), int(label)) for images, labels in batches for i, label in zip(images, labels, strict=True)]


def test_epoch_has_every_image_once_in_a_new_order_also_when_resumed_or_shared(tmp_path):
    stream = ImageStream.of(folder_items(folder(tmp_path))[0], 16, 2)
    first, second = (labelled(stream.epoch(number, 4, 0)) for number in (1, 2))
    assert sorted(first) == sorted(second) == [(n, 0) for n in range(6)] + [(100 + n, 1) for n in range(6)]
    assert first != second
    whole, resumed = list(stream.epoch(1, 4, 0)), list(stream.epoch(1, 4, 0, skip=1))
    assert len(resumed) == len(whole) - 1
    for (a, _), (b, _) in zip(whole[1:], resumed, strict=True):
        assert torch.equal(a, b)
    parts = [values(stream.epoch(1, 4, 0, share=(k, 2))) for k in range(2)]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == values(whole)


def test_unreadable_images_are_skipped_counted_and_limited(tmp_path):
    folder(tmp_path)
    for name in ("1", "3"):
        (tmp_path / "cat" / f"{name}.png").write_bytes(b"no picture")
    items = folder_items(tmp_path)[0]
    stream = ImageStream.of(items, 16, 2, bad_limit=2)
    assert (sum(len(labels) for _, labels in stream.epoch(1, 4, 0)), len(stream.bad)) == (12, 2)
    with pytest.raises(StretchError, match=r"2 images cannot be read, such as .*1\.png"):
        list(ImageStream.of(items, 16, 2, bad_limit=1).epoch(1, 4, 0))


@pytest.mark.parametrize("workers", [0, 1])
def test_many_unreadable_images_in_a_row_are_refused_naming_one(tmp_path, workers):
    (tmp_path / "a").mkdir()
    for number in range(70):
        (tmp_path / "a" / f"{number:02d}.png").write_bytes(b"no picture")
    stream = ImageStream.of(folder_items(tmp_path)[0], 16, 1, workers, bad_limit=1000)
    with pytest.raises(StretchError, match=r"^64 images in a row cannot be read, the first is \S+\.png$"):
        list(stream.epoch(1, 4, 0))


def test_evaluation_takes_the_middle_of_every_image(tmp_path):
    (tmp_path / "a").mkdir()
    picture = np.zeros((256, 256, 3), np.uint8)
    picture[16:240, 16:240] = 200
    Image.fromarray(picture).save(tmp_path / "a" / "0.png")
    images, labels = next(ImageStream.of(folder_items(tmp_path)[0], 224, 1).batches(4))
    assert (images.shape, int(images.min()), labels.tolist()) == ((1, 3, 224, 224), 200, [0])


def shard(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_shards_have_the_items_of_a_folder(tmp_path):
    files = {f"{n}.{kind}": content for n in range(4) for kind, content in (("png", encoded(n)), ("cls", str(n % 2).encode()))}
    stream = ImageStream.of(shard_items([shard(tmp_path / "train-0.tar", files)]), 16, 2)
    assert sorted(labelled(stream.epoch(1, 2, 0))) == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_hidden_files_and_folders_are_ignored(tmp_path):
    folder(tmp_path)
    pictures(tmp_path, ".git/1.png", "cat/.ipynb_checkpoints/1.png")
    (tmp_path / "dog" / "._1.png").write_bytes(b"resource fork")
    items, names = folder_items(tmp_path)
    assert (names, len(items)) == (["cat", "dog"], 12)


def test_augmented_image_is_a_shift_or_mirrored_shift_and_all_shifts_occur():
    torch.manual_seed(0)
    images = torch.randn(20, 3, 6, 5)
    padded = torch.nn.functional.pad(images, (2,) * 4)
    for index, image in enumerate(crop_and_flip(images, 2)):
        crops = [padded[index, :, y : y + 6, x : x + 5] for y in range(5) for x in range(5)]
        assert any(torch.equal(image, c) or torch.equal(image, c.flip(2)) for c in crops)
    image = torch.arange(25.0).reshape(1, 1, 5, 5).expand(400, 3, 5, 5)
    assert len(torch.unique(crop_and_flip(image, 1), dim=0)) == 18


def test_images_normalised_by_their_moments_have_mean_zero_and_deviation_one():
    images = synthetic(4, 16, 50)[0]
    mean, deviation = images.moments()
    torch.testing.assert_close(mean, images.images.float().mean((0, 2, 3)))
    out = Normalise(mean, deviation, torch.device("cpu"))(images.images)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def pictures(folder, *names):
    """Save images of different colours at the paths `names` in a folder."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded((37 * number % 256, 91 * number % 256, 150)))
    return folder


@given(st.integers(2, 400), st.floats(0.001, 0.5))
def test_every_item_is_trained_on_or_held_back_and_both_parts_are_spread(count, share):
    train, back = split_items(range(count), share, Path("there"))
    assert (sorted(train + back), len(back)) == (list(range(count)), min(max(1, round(count * share)), count - 1))
    assert max(b - a for a, b in zip([*back, count], [*back[1:], count, count], strict=True)) <= -(-count // len(back))


@pytest.mark.parametrize(
    ("layout", "held_back"),
    [
        (["a.png", "b.png", "c.png"], None),
        (["x/a.png", "x/y/b.png", "z/c.png", "d.jpg"], None),
        # a folder that is already divided stays divided
        (["train/a.png", "train/cat/b.png", "val/c.png"], ["val/c.png"]),
    ],
)
def test_images_are_taken_from_any_folder_and_one_is_held_back(tmp_path, layout, held_back):
    pictures(tmp_path, *layout, ".hidden/e.png")
    (tmp_path / "notes.txt").write_text("no image")
    train, back = ([str(item.path.relative_to(tmp_path)) for item in items] for items in unlabelled_items(tmp_path, 0.3))
    assert (sorted([*train, *back]), len(back)) == (sorted(layout), 1)
    assert held_back is None or back == held_back
