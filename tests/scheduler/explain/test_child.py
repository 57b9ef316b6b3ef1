"""Runtimes in a process of its own."""

import pytest

from predictors.errors import StretchError, UnknownNameError
from scheduler.explain.child import ask_runtime, in_child


def test_errors_of_the_process_come_back_as_they_are(foreign):
    with pytest.raises(UnknownNameError) as error:
        ask_runtime(foreign["plain"], "onnxruntime", "cpuu")
    assert error.value.hint == "did you mean `cpu`?"


def test_process_that_ends_before_it_answers_is_told_with_its_last_line(foreign):
    with pytest.raises(StretchError, match="ended with code 1: KeyError: 'no such work'"):
        in_child("no such work", str(foreign["plain"]), "onnxruntime")


@pytest.mark.slow
def test_verdict_comes_back_by_places(foreign):
    pytest.importorskip("onnxruntime")
    verdict, _ = ask_runtime(foreign["plain"], "onnxruntime", "cpu")
    assert verdict.taken == dict.fromkeys(range(3), "CPUExecutionProvider")
