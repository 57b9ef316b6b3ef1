"""Errors carry one sentence, a hint and the exit code of the command line."""

import pytest

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UnknownNameError, UsageError


@pytest.mark.parametrize(
    ("kind", "code"), [(StretchError, 1), (UsageError, 2), (UnknownNameError, 3), (InfeasibleError, 4), (MissingBackendError, 5)]
)
def test_each_kind_has_its_exit_code(kind, code):
    error = kind("it failed", "mend it")
    assert (error.exit_code, error.message, error.hint, str(error)) == (code, "it failed", "mend it", "it failed")


def test_unknown_name_hints_at_the_closest_one():
    error = UnknownNameError.among("device", "pixel7", ["mi9", "pixel6"])
    assert error.message == "unknown device `pixel7`"
    assert error.hint == "did you mean `pixel6`?"


def test_empty_list_says_that_nothing_is_registered():
    assert UnknownNameError.among("delegate", "cpu", []).hint == "no delegate is registered"
