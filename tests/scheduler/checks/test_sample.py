import msgspec
import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.checks.sample import KEPT, KEY, Sample, read_sample

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 5, 64, 65, 1000])
def test_output_of_before_has_no_problem_and_survives_json(size):
    y = np.random.default_rng(size).standard_normal((1, size)).astype(np.float32)
    sample = read_sample({KEY: msgspec.json.decode(msgspec.json.encode(Sample.of(X, y, 0)))})
    assert len(sample.values) == min(size, KEPT)
    assert sample.problem(X, y) is None
    assert sample.problem(X, y * np.float32(1 + 1e-5)) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda y: y * 1.01, "differs by 0.01 of the largest number"),
        (lambda y: y * np.nan, "differs by nan"),
        (lambda y: y[:, ::-1], "differs by"),
        (lambda y: y[:, :-1], "has an output of 999 numbers, 1000 when"),
    ],
)
def test_other_output_is_a_problem(change, told):
    y = np.random.default_rng(1).standard_normal((1, 1000)).astype(np.float32)
    assert told in Sample.of(X, y, 0).problem(X, change(y))


def test_bundle_without_a_sample_has_none_and_garbage_is_one_sentence():
    assert read_sample({}) is None
    for garbage in (1, {"seed": "x"}, {"seed": 0, "input_sha256": "", "size": 1, "values": ["a"]}):
        with pytest.raises(StretchError, match=r"`checks\.sample` of the bundle is damaged"):
            read_sample({KEY: garbage})
