import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.quantize.compare import loss, top1_agreement

A = np.random.default_rng(0).normal(size=(1, 8, 4, 4)).astype(np.float32)


def test_cosine_and_snr_are_those_of_all_pairs_as_one_vector():
    b = A + 0.1
    got = loss([(A[:, :3], b[:, :3]), (A[:, 3:], b[:, 3:])])
    x, y = A.ravel().astype(float), b.ravel().astype(float)
    assert got.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert got.snr_db == pytest.approx(20 * np.log10(np.linalg.norm(x) / np.linalg.norm(x - y)))


@given(st.floats(0.1, 10).filter(lambda factor: abs(factor - 1) > 0.2))
def test_wrong_scale_is_too_much_although_the_cosine_is_one(factor):
    got = loss([(A, A * np.float32(factor))])
    assert got.cosine == pytest.approx(1, abs=1e-6)
    assert got.exceeds(0.99)


@pytest.mark.parametrize("bad", [np.full_like(A, np.nan), np.full_like(A, np.inf), np.zeros_like(A)])
def test_results_without_a_number_or_without_content_exceed_any_bound(bad):
    assert loss([(A, bad)]).exceeds(0.1)


def test_top1_agreement_counts_images_with_the_same_best_class():
    a, b = np.array([[1.0, 2.0, 0.0]]), np.array([[5.0, 2.0, 0.0]])
    assert top1_agreement([(a, a), (a, a * 3), (a, b), (b, b)]) == 0.75
