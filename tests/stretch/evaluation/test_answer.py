"""What an evaluation answers, against what was counted."""

import numpy as np
import pytest

from scheduler.bundle.preprocessing import Preprocessing
from scheduler.runtime.session import Session
from stretch.evaluation.answer import evaluate_answer, images_answer
from stretch.evaluation.labels import find_images
from stretch.evaluation.measure import evaluate
from tests.scheduler.bundles import two_branches


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return two_branches(tmp_path_factory.mktemp("answer") / "b")


@pytest.fixture
def images(tmp_path):
    for name in "01":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "some.npy", np.zeros((1, 3, 8, 8), np.float32))
    return tmp_path


def answer(bundle, images, labels, original=None, preprocessing=None, warnings=()):
    """The answer for images of the classes `labels`, on ten scores of which the last is the best."""
    with Session(bundle, {"gpu": "reference"}) as session:
        numbered = [(str(i), np.zeros(1), label) for i, label in enumerate(labels)]
        result = evaluate(lambda x: np.arange(10.0), original, numbered, 10)
        taken = images_answer(images, find_images(images, 10), 2, result.images)
        return evaluate_answer(session, taken, preprocessing or Preprocessing(), result, list(warnings))


def test_shares_are_those_that_were_counted(bundle, images):
    found = answer(bundle, images, [9, 5, 0, 9], lambda x: -np.arange(10.0))
    assert (found.top1.value, found.top5.value, found.top1.images) == (0.5, 0.75, 4)
    assert (found.original.top1.value, found.original.top5.value) == (0.25, 0.25)
    # the original answers class 0 alone
    assert (found.agreement, found.top5_overlap, found.original_classes) == (None, None, 1)
    turns = iter([-np.arange(10.0), np.arange(10.0)] * 2)
    found = answer(bundle, images, [9, 5, 0, 9], lambda x: next(turns))
    assert (found.agreement.value, found.top5_overlap.value, found.original_classes) == (0.5, 0.5, 2)


def test_preprocessing_is_what_pictures_went_through(bundle, images):
    found = answer(bundle, images, [1], preprocessing=Preprocessing(size=20))
    assert (found.preprocessing["size"], found.preprocessing["crop"]) == (20, None)
