"""What is timed: its kind, the hash of its bytes, shapes that are settled, numbers that a seed gives."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.measure.bench.subject import UNNAMED, End, digest, hash_of, random_arrays, settled

IMAGE = End("x", (None, 3, None, None), "float32")
FIXED = End("mask", (1, 4), "float32")


def test_hash_is_that_of_the_file_and_of_weights_beside_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "w").write_bytes(b"weights")
    assert digest("onnx", tmp_path / "m.onnx") == (hashlib.sha256(b"model").hexdigest(), 5)
    assert digest("onnx", tmp_path / "m.onnx", ["w"]) == (hashlib.sha256(b"modelweights").hexdigest(), 12)
    with pytest.raises(StretchError, match="cannot read"):
        digest("onnx", tmp_path / "m.onnx", ["gone"])


@pytest.mark.parametrize(
    ("ends", "asked", "found"),
    [
        ([IMAGE], {UNNAMED: (2, 3, 8, 8)}, {"x": (2, 3, 8, 8)}),
        ([IMAGE, FIXED], {UNNAMED: (1, 3, 8, 8)}, {"x": (1, 3, 8, 8), "mask": (1, 4)}),
        ([IMAGE, FIXED], {"x": (1, 3, 8, 8), "mask": (1, 4)}, {"x": (1, 3, 8, 8), "mask": (1, 4)}),
        ([FIXED], {}, {"mask": (1, 4)}),
        ([FIXED], {"other": (9, 9)}, {"mask": (1, 4)}),
    ],
)
def test_shapes_are_the_files_filled_in_by_what_is_asked(tmp_path, ends, asked, found):
    assert settled(tmp_path, ends, asked) == found


@pytest.mark.parametrize("asked", [{"x": (1, 4, 8, 8)}, {"x": (1, 3, 8)}])
def test_size_that_contradicts_the_file_is_refused(tmp_path, asked):
    with pytest.raises(UsageError, match="is requested"):
        settled(tmp_path, [IMAGE], asked)


@pytest.mark.parametrize("shape", [(1 << 15, 3, 1 << 15, 1 << 15)])
def test_huge_input_is_refused(tmp_path, shape):
    with pytest.raises(StretchError, match="has the shape"):
        settled(tmp_path, [IMAGE], {UNNAMED: shape})
    with pytest.raises(StretchError, match="has 0 inputs"):
        settled(tmp_path, [], {})


@given(st.sampled_from(["float32", "float16", "int8", "uint8", "int64", "bool"]), st.integers(0, 99))
def test_numbers_are_of_the_type_finite_and_those_of_the_seed(dtype, seed):
    first, again, other = (random_arrays({"x": (dtype, (4, 50))}, each) for each in (seed, seed, seed + 1))
    assert first["x"].dtype == np.dtype(dtype)
    assert np.isfinite(first["x"].astype(float)).all()
    assert hash_of(first) == hash_of(again) != hash_of(other)
    if dtype == "int64":
        assert set(np.unique(first["x"])) <= {0, 1}
