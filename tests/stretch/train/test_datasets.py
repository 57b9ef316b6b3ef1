import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError  # noqa: E402 - torch may be missing
from stretch.train.datasets import load_data  # noqa: E402
from stretch.train.recipe import DataConfig  # noqa: E402
from tests.stretch.train.test_stream import folder  # noqa: E402

pytestmark = pytest.mark.torch


def test_synthetic_set_has_the_model_s_classes_and_size():
    train, test = load_data(DataConfig(count=40), 4, 16)
    images, labels = next(test.batches(1000))
    assert len(train) == 40
    assert images.shape[1:] == (3, 16, 16)
    assert set(labels.tolist()) == {0, 1, 2, 3}


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
