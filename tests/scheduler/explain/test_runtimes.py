"""Which runtimes can be asked about which files."""

import pytest

from predictors.errors import MissingBackendError, UnknownNameError, UsageError
from scheduler.delegates import delegates
from scheduler.explain.model import open_model
from scheduler.explain.runtimes import RUNTIMES, asker, check_runtime


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_runtime_has_a_delegate_and_a_function_that_asks_it(name):
    assert RUNTIMES[name][0] in delegates
    assert asker(name).__doc__


def test_unknown_runtime_is_refused_with_the_closest_name(foreign):
    with pytest.raises(UnknownNameError) as error:
        check_runtime("openvin", open_model(foreign["plain"]))
    assert error.value.hint == "did you mean `openvino`?"


def test_kind_of_file_that_a_runtime_does_not_read_is_refused_with_others_that_do(foreign):
    with pytest.raises(UsageError) as error:
        check_runtime("litert", open_model(foreign["plain"]))
    assert "onnxruntime" in error.value.hint


def test_runtime_that_is_not_installed_has_its_own_exit_code(foreign):
    model = open_model(foreign["plain"])
    for name in RUNTIMES:
        if "ONNX" in RUNTIMES[name][1] and delegates.get(RUNTIMES[name][0]).unavailable():
            with pytest.raises(MissingBackendError, match=name):
                check_runtime(name, model)
