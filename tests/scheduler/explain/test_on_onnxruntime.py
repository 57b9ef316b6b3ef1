"""ONNX Runtime asked about foreign files; its own exception, caught without us, is the witness."""

import onnx
import pytest

from scheduler.explain.foreign import explain_file
from scheduler.explain.model import open_model
from scheduler.explain.on_onnxruntime import find_named
from tests.scheduler.explain.files import FOREIGN, conv, model, node, weights

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


@pytest.mark.slow
def test_casts_that_it_adds_for_half_precision_are_counted(tmp_path):
    half = onnx.TensorProto.FLOAT16
    chain = [conv(), node("Erf", ["c"], ["e"], "erf"), node("Relu", ["e"], ["y"], "relu")]
    path = tmp_path / "half.onnx"
    onnx.save(model(chain, [weights("w", 4, 3, 3, 3, kind="float16")], out=(1, 4, 8, 8), kind=half), str(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    added = [each.name for each in onnx.load(str(tmp_path / "optimised.onnx")).graph.node if each.op_type == "Cast"]
    assert added
    assert explain_file(path, "onnxruntime", "cpu").copies == len(added)


def test_operator_of_a_message_is_found_by_its_name_and_else_by_its_type(foreign):
    opened = open_model(foreign["own_domain"])
    assert find_named(opened, "Could not find an implementation for Relu(14) node with name 'relu'") == 2
    assert find_named(opened, "Fatal error: com.example:Swirl(-1) is not a registered function/op") == 1
    assert find_named(opened, "it is too large") is None
