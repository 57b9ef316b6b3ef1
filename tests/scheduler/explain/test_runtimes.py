"""Which runtimes can be asked about which files."""

import pytest

from predictors.errors import UnknownNameError, UsageError
from scheduler.explain.model import open_model
from scheduler.explain.runtimes import check_runtime


def test_unknown_runtime_is_refused_with_the_closest_name(foreign):
    with pytest.raises(UnknownNameError) as error:
        check_runtime("openvin", open_model(foreign["plain"]))
    assert error.value.hint == "did you mean `openvino`?"


def test_kind_of_file_that_a_runtime_does_not_read_is_refused_with_others_that_do(foreign):
    with pytest.raises(UsageError) as error:
        check_runtime("litert", open_model(foreign["plain"]))
    assert "onnxruntime" in error.value.hint
