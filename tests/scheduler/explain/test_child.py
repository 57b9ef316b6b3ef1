"""Runtimes in a process of its own."""

import pytest

from predictors.errors import StretchError
from scheduler.explain.child import in_child


def test_process_that_ends_before_it_answers_is_told_with_its_last_line(foreign):
    with pytest.raises(StretchError, match="ended with code 1: KeyError: 'no such work'"):
        in_child("no such work", str(foreign["plain"]), "onnxruntime")
