import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.evaluation.measure import evaluate
from stretch.quantize.images import fingerprint


def run(scores, originals, labels):
    """The shares, as dictionaries, of scores that are looked up by the image's number."""
    images = [(str(i), np.array([i]), label) for i, label in enumerate(labels)]
    original = None if originals is None else lambda x: originals[int(x[0])][None]
    found = evaluate(lambda x: scores[int(x[0])][None], original, images, scores.shape[1])
    compared = {name: getattr(found, name) for name in ("original", "agreement", "top5_overlap", "error")}
    return msgspec.to_builtins(found.branched) | msgspec.to_builtins(compared)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(6, 12))
def test_shares_are_those_of_sorted_scores(seed, count, classes):
    rng = np.random.default_rng(seed)
    scores, originals = rng.standard_normal((2, count, classes))
    labels = rng.integers(0, classes, count)
    found = run(scores, originals, [int(label) for label in labels])
    assert found["error"] == pytest.approx(np.linalg.norm(scores - originals) / np.linalg.norm(originals))
    best, theirs = np.argsort(scores)[:, ::-1][:, :5], np.argsort(originals)[:, ::-1][:, :5]
    assert found["top1"]["value"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert found["top5"]["value"] == pytest.approx(np.mean((best == labels[:, None]).any(1)))
    assert found["original"]["top1"]["value"] == pytest.approx(np.mean(originals.argmax(1) == labels))
    assert found["original"]["top5"]["value"] == pytest.approx(np.mean((theirs == labels[:, None]).any(1)))
    if np.bincount(originals.argmax(1)).max() >= 0.9 * count:
        assert (found["agreement"], found["top5_overlap"]) == (None, None)
        return
    assert found["agreement"]["value"] == pytest.approx(np.mean(scores.argmax(1) == originals.argmax(1)))
    overlap = [len(np.intersect1d(a, b)) / 5 for a, b in zip(best, theirs, strict=True)]
    assert found["top5_overlap"]["value"] == pytest.approx(np.mean(overlap))


def test_without_labels_there_is_no_accuracy_and_without_an_original_no_agreement():
    found = run(np.eye(6), None, [None] * 6)
    assert found == {"top1": None, "top5": None, "original": None, "agreement": None, "top5_overlap": None, "error": None}


def test_images_that_calibrated_the_bundle_are_counted():
    images = [(str(i), np.array([i]), None) for i in range(6)]
    known = [fingerprint(x) for _, x, _ in images[:4]]
    scores = np.eye(6)
    found = evaluate(lambda x: scores[int(x[0])][None], None, images, 6, known)
    assert (found.calibrated_on, found.images) == (4, 6)


def test_five_best_of_five_classes_say_nothing():
    found = run(np.eye(5), np.eye(5), [0, 1, 2, 3, 4])
    assert found["top1"]["value"] == 1.0
    assert (found["top5"], found["top5_overlap"], found["original"]["top5"]) == (None, None, None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("of", ["the bundle", "the original"])
def test_output_that_is_no_number_is_refused_with_the_image(value, of):
    right, wrong = np.eye(6), np.where(np.arange(6)[:, None] == 3, value, np.eye(6))
    scores = (wrong, right) if of == "the bundle" else (right, wrong)
    with pytest.raises(StretchError, match=f"output of {of} for 3 contains NaN or infinity"):
        run(*scores, [0] * 6)
