"""Shares of right and equal answers, their intervals, and the answer that tells them."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from stretch.evaluation.agreement import share_of
from stretch.evaluation.measure import evaluate
from stretch.quantize.images import fingerprint


def run(scores, originals, labels):
    """The shares, as dictionaries, of scores that are looked up by the image's number."""
    images = [(str(i), np.array([i]), label) for i, label in enumerate(labels)]
    original = None if originals is None else lambda x: originals[int(x[0])][None]
    evaluation = evaluate(lambda x: scores[int(x[0])][None], original, images, scores.shape[1])
    compared = {name: getattr(evaluation, name) for name in ("original", "agreement", "top5_overlap", "error")}
    return msgspec.to_builtins(evaluation.branched) | msgspec.to_builtins(compared)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(6, 12))
def test_shares_are_those_of_sorted_scores(seed, count, classes):
    rng = np.random.default_rng(seed)
    scores, originals = rng.standard_normal((2, count, classes))
    labels = rng.integers(0, classes, count)
    run_result = run(scores, originals, [int(label) for label in labels])
    assert run_result["error"] == pytest.approx(np.linalg.norm(scores - originals) / np.linalg.norm(originals))
    best, theirs = np.argsort(scores)[:, ::-1][:, :5], np.argsort(originals)[:, ::-1][:, :5]
    assert run_result["top1"]["value"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert run_result["top5"]["value"] == pytest.approx(np.mean((best == labels[:, None]).any(1)))
    assert run_result["original"]["top1"]["value"] == pytest.approx(np.mean(originals.argmax(1) == labels))
    assert run_result["original"]["top5"]["value"] == pytest.approx(np.mean((theirs == labels[:, None]).any(1)))
    if np.bincount(originals.argmax(1)).max() >= 0.9 * count:
        assert (run_result["agreement"], run_result["top5_overlap"]) == (None, None)
        return
    assert run_result["agreement"]["value"] == pytest.approx(np.mean(scores.argmax(1) == originals.argmax(1)))
    overlap = [len(np.intersect1d(a, b)) / 5 for a, b in zip(best, theirs, strict=True)]
    assert run_result["top5_overlap"]["value"] == pytest.approx(np.mean(overlap))


def test_images_that_calibrated_the_bundle_are_counted():
    images = [(str(i), np.array([i]), None) for i in range(6)]
    known = [fingerprint(x) for _, x, _ in images[:4]]
    scores = np.eye(6)
    evaluation = evaluate(lambda x: scores[int(x[0])][None], None, images, 6, known)
    assert (evaluation.calibrated_on, evaluation.images) == (4, 6)


def test_five_best_of_five_classes_say_nothing():
    run_result = run(np.eye(5), np.eye(5), [0, 1, 2, 3, 4])
    assert run_result["top1"]["value"] == 1.0
    assert (run_result["top5"], run_result["top5_overlap"], run_result["original"]["top5"]) == (None, None, None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("of", ["the bundle", "the original"])
def test_output_that_is_no_number_is_refused_with_the_image(value, of):
    right, wrong = np.eye(6), np.where(np.arange(6)[:, None] == 3, value, np.eye(6))
    scores = (wrong, right) if of == "the bundle" else (right, wrong)
    with pytest.raises(StretchError, match=f"output of {of} for 3 contains NaN or infinity"):
        run(*scores, [0] * 6)


@pytest.mark.parametrize(("right", "images"), [(0, 1), (20, 20), (3, 10), (49_998, 50_000)])
def test_interval_of_whole_images_is_scipys(right, images):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, images).proportion_ci(method="wilson")
    share = share_of(right, images)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.floats(0, n))))
def test_interval_holds_the_share_and_stays_a_share(counted):
    images, total = counted
    share = share_of(total, images)
    assert 0 <= share.low <= share.value == total / images <= share.high <= 1
    assert share.images == images


def counted(labels, original):
    """The shares of images of the classes `labels`, on ten scores of which the last is the best."""
    return evaluate(lambda x: np.arange(10.0), original, [(str(i), np.zeros(1), label) for i, label in enumerate(labels)], 10)


def test_shares_are_those_that_were_counted():
    result = counted([9, 5, 0, 9], lambda x: -np.arange(10.0))
    assert (result.branched.top1.value, result.branched.top5.value, result.branched.top1.images) == (0.5, 0.75, 4)
    assert (result.original.top1.value, result.original.top5.value) == (0.25, 0.25)
    # the original answers class 0 alone
    assert (result.agreement, result.top5_overlap, len(result.sums.classes)) == (None, None, 1)
    turns = iter([-np.arange(10.0), np.arange(10.0)] * 2)
    result = counted([9, 5, 0, 9], lambda x: next(turns))
    assert (result.agreement.value, result.top5_overlap.value, len(result.sums.classes)) == (0.5, 0.5, 2)
