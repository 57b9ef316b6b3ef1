"""What stops an operator."""

import pytest

from scheduler.explain.foreign import find_cause
from scheduler.explain.model import open_model


@pytest.mark.parametrize(
    ("name", "place", "words", "cause"),
    [
        ("own_domain", 1, "not a registered function", "domain com.example"),
        ("doubles", 0, None, "type double"),
        ("open_batch", 0, "dynamic shape is not supported", "shape [?, 3, 8, 8]"),
        ("plain", 0, "unsupported kernel_shape", "kernel_shape = [3, 3]"),
        ("plain", 0, "pads must be zero", "pads = [1, 1, 1, 1]"),
        ("plain", 1, None, "operator Relu"),
        ("volumes", 0, "only rank 4 is supported", "shape [1, 3, 4, 8, 8]"),
        ("upsample", 0, "the file uses opset 9", "opset 9"),
        ("foldable", 5, None, "operator Reshape"),
    ],
)
def test_cause_is_what_the_words_or_the_operator_tell(foreign, name, place, words, cause):
    found, change = find_cause(open_model(foreign[name]), place, words, ())
    assert found == cause
    assert change


def test_kind_that_is_taken_elsewhere_is_stopped_by_its_settings(foreign):
    cause, _ = find_cause(open_model(foreign["plain"]), 0, None, {"Conv"})
    assert cause.startswith("settings ")
    assert "kernel_shape = [3, 3]" in cause
