"""ONNX Runtime asked about foreign files; its own exception, caught without us, is the witness."""

import pytest

from scheduler.explain.foreign import explain_file
from scheduler.explain.model import open_model
from scheduler.explain.on_onnxruntime import find_named
from tests.scheduler.explain.files import FOREIGN

onnxruntime = pytest.importorskip("onnxruntime")

#: Files that its CPU provider does not run: the operator, and what stops it.
STOPPED = {"own_domain": ("swirl", "domain com.example"), "doubles": ("conv", "type double")}


def witness(path):
    """Its own words on a file that it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)
    return None


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", FOREIGN)
def test_first_unsupported_operator_is_the_one_of_its_own_message(foreign, name):
    found = explain_file(foreign[name], "onnxruntime", "cpu")
    said = witness(foreign[name])
    if name not in STOPPED:
        assert said is None
        assert not found.obstacles
        assert {op.target for op in found.operators if op.taken} == {"CPUExecutionProvider"}
        return
    first = found.obstacles[0]
    assert (first.operator, first.cause) == STOPPED[name]
    assert first.op in said
    assert first.words.split()[-1] in said
    assert found.partitions == 0


def test_operator_of_a_message_is_found_by_its_name_and_else_by_its_type(foreign):
    opened = open_model(foreign["own_domain"])
    assert find_named(opened, "Could not find an implementation for Relu(14) node with name 'relu'") == 2
    assert find_named(opened, "Fatal error: com.example:Swirl(-1) is not a registered function/op") == 1
    assert find_named(opened, "it is too large") is None
