import os

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.runtime.sequential import Sequential, max_error
from tests import onnx_runtime


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_computes_what_onnx_runtime_computes_on_any_number_of_cores(bundle_dir, threads):
    cores = tuple(sorted(os.sched_getaffinity(0))[:threads])
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = onnx_runtime.output(bundle_dir / "model.onnx", x)
    model = Sequential(bundle_dir / "model.onnx", cores)
    before = os.sched_getaffinity(0)
    assert np.allclose(model.run(x), expected, atol=1e-6)
    assert model.time() > 0
    assert os.sched_getaffinity(0) == before


def test_input_of_another_shape_is_refused(bundle_dir):
    with pytest.raises(StretchError, match="the model takes"):
        Sequential(bundle_dir / "model.onnx").run(np.zeros((1, 3, 9, 9), np.float32))


def test_max_error_is_relative_to_the_largest_expected_element():
    assert max_error(np.array([1.0, -4.5]), np.array([1.0, -4.0])) == pytest.approx(0.125)
    assert max_error(np.array([0.5]), np.array([0.0])) == pytest.approx(0.5)


def test_last_places_of_numbers_around_one_are_no_difference_of_what_lies_between_0_and_1():
    tiny = np.array([1e-5, 0.0])
    assert max_error(tiny + 4e-7, tiny) == 0
    assert max_error(tiny * 1.2, tiny) == pytest.approx(0.2, abs=0.05)
    assert max_error(tiny - 1e-5 + 4e-7, tiny - 1e-5) > 0.01
    assert np.isnan(max_error(np.array([np.nan, 0.0]), tiny))
