import io
import tarfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from PIL import Image  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from stretch.train.images import ImageStream, folder_items, shard_items  # noqa: E402

pytestmark = pytest.mark.torch


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


def test_epoch_shows_every_image_once_with_its_label_in_an_order_of_its_own(tmp_path):
    stream = ImageStream.of(folder_items(folder(tmp_path))[0], 16, 2)
    orders = []
    for number in (1, 2):
        seen = [
            (int(image.max()), int(label))
            for images, labels in stream.epoch(number, 4, 0)
            for image, label in zip(images, labels, strict=True)
        ]
        assert sorted(seen) == [(n, 0) for n in range(6)] + [(100 + n, 1) for n in range(6)]
        orders.append(seen)
    assert orders[0] != orders[1]


def test_batches_after_a_pause_are_those_that_would_have_come(tmp_path):
    stream = ImageStream.of(folder_items(folder(tmp_path))[0], 16, 2)
    whole, rest = list(stream.epoch(1, 4, 0)), list(stream.epoch(1, 4, 0, skip=1))
    assert len(rest) == len(whole) - 1
    for (a, _), (b, _) in zip(whole[1:], rest, strict=True):
        assert torch.equal(a, b)


def test_processes_share_every_batch(tmp_path):
    stream = ImageStream.of(folder_items(folder(tmp_path))[0], 16, 2)
    whole = values(stream.epoch(1, 4, 0))
    parts = [values(stream.epoch(1, 4, 0, share=(k, 2))) for k in range(2)]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == whole


def test_unreadable_images_are_skipped_counted_and_limited(tmp_path):
    folder(tmp_path)
    for name in ("1", "3"):
        (tmp_path / "cat" / f"{name}.png").write_bytes(b"no picture")
    items = folder_items(tmp_path)[0]
    stream = ImageStream.of(items, 16, 2, bad_limit=2)
    assert sum(len(labels) for _, labels in stream.epoch(1, 4, 0)) == 12
    assert len(stream.bad) == 2
    with pytest.raises(StretchError, match=r"2 images cannot be read, such as .*1\.png"):
        list(ImageStream.of(items, 16, 2, bad_limit=1).epoch(1, 4, 0))


@pytest.mark.parametrize("workers", [0, 1])
def test_many_unreadable_images_in_a_row_end_in_one_sentence_that_names_one(tmp_path, workers):
    for number in range(70):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number:02d}.png").write_bytes(b"no picture")
    stream = ImageStream.of(folder_items(tmp_path)[0], 16, 1, workers, bad_limit=1000)
    with pytest.raises(StretchError, match=r"^64 images in a row cannot be read, the first is \S+\.png$"):
        list(stream.epoch(1, 4, 0))


def test_evaluation_takes_the_middle_of_every_image(tmp_path):
    (tmp_path / "a").mkdir()
    picture = np.zeros((256, 256, 3), np.uint8)
    picture[16:240, 16:240] = 200
    Image.fromarray(picture).save(tmp_path / "a" / "0.png")
    stream = ImageStream.of(folder_items(tmp_path)[0], 224, 1)
    images, labels = next(stream.batches(4))
    assert images.shape == (1, 3, 224, 224)
    assert int(images.min()) == 200
    assert labels.tolist() == [0]


def shard(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_shards_hold_what_a_folder_would(tmp_path):
    files = {f"{n}.{kind}": content for n in range(4) for kind, content in (("png", encoded(n)), ("cls", str(n % 2).encode()))}
    stream = ImageStream.of(shard_items([shard(tmp_path / "train-0.tar", files)]), 16, 2)
    seen = sorted((int(i.max()), int(label)) for images, labels in stream.epoch(1, 2, 0) for i, label in zip(images, labels, strict=True))
    assert seen == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_shard_without_classes_or_that_is_no_tar_is_refused(tmp_path):
    with pytest.raises(StretchError, match=r"no `0\.cls`"):
        shard_items([shard(tmp_path / "a.tar", {"0.png": encoded(0)})])
    with pytest.raises(StretchError, match=r"0\.cls holds no class number"):
        shard_items([shard(tmp_path / "c.tar", {"0.png": encoded(0), "0.cls": b"cat"})])
    (tmp_path / "b.tar").write_bytes(b"x" * 600)
    with pytest.raises(StretchError, match="cannot read the shard"):
        shard_items([tmp_path / "b.tar"])


def test_missing_folder_foreign_class_and_too_many_classes_are_refused(tmp_path):
    with pytest.raises(StretchError, match="no folder of images"):
        folder_items(tmp_path / "nowhere")
    items, _ = folder_items(folder(tmp_path / "a", 1))
    with pytest.raises(StretchError, match="class `dog`"):
        folder_items(tmp_path / "a", ["cat"])
    with pytest.raises(StretchError, match="from 0 to 1, the model has 1"):
        ImageStream.of(items, 16, 1)
    with pytest.raises(StretchError, match="empty"):
        ImageStream.of([], 16, 1)


def test_what_is_hidden_is_neither_a_class_nor_an_image(tmp_path):
    folder(tmp_path)
    for hidden in (tmp_path / ".git", tmp_path / "cat" / ".ipynb_checkpoints"):
        hidden.mkdir()
        (hidden / "1.png").write_bytes(encoded(1))
    (tmp_path / "dog" / "._1.png").write_bytes(b"resource fork")
    items, names = folder_items(tmp_path)
    assert names == ["cat", "dog"]
    assert len(items) == 12
