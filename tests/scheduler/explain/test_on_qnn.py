"""QNN's provider asked about foreign files; its log, whose lines name what failed, is the witness."""

import re

import pytest

from predictors.errors import UnknownNameError
from scheduler.delegates.qnn_library import missing
from scheduler.explain.answer import Verdict
from scheduler.explain.foreign import explain_file
from scheduler.explain.model import open_model
from scheduler.explain.on_qnn import read_log
from tests.scheduler.explain.files import FOREIGN

needs_qnn = pytest.mark.skipif(missing() is not None, reason="onnxruntime-qnn is not installed")


#: First operator that it leaves, and what stops it; it refuses doubles and volumes without naming one, and takes the others.
FIRST = {
    "own_domain": ("swirl", "domain com.example"),
    "open_batch": ("conv", "shape [?, 3, 8, 8]"),
    "determinant": ("det", "operator Det"),
    "doubles": ("conv", "the file as a whole"),
    "volumes": ("conv", "the file as a whole"),
}


@needs_qnn
@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_first_unsupported_operator_failed_in_its_own_log(foreign, name):
    found = explain_file(foreign[name], "qnn")
    first = (found.obstacles[0].operator, found.obstacles[0].cause) if found.obstacles else None
    assert first == FIRST.get(name)
    for op in found.operators:
        assert (op.target == "QNNExecutionProvider") == (op.taken is True)
    if found.obstacles and found.obstacles[0].words and any(op.target for op in found.operators):
        first = found.obstacles[0]
        assert re.search(rf"Validation FAILED for [^\n]*\n\tOperator type: \S+ Node name: {first.operator}\b", found.log)
        assert first.words in found.log


@needs_qnn
def test_other_devices_are_refused(foreign):
    with pytest.raises(UnknownNameError, match="device of qnn `gpu`"):
        explain_file(foreign["plain"], "qnn", "gpu")


def test_reasons_of_its_log_go_to_the_operators_that_it_left(foreign):
    log = (
        "Validation PASSED for nodes in NodeUnit (QNN graph):\n\tOperator type: Conv Node name: conv Node index: 0\n"
        "Validation FAILED for nodes in NodeUnit:\n\tOperator type: ArgMax Node name: best Node index: 1\n\tREASON : axis is not the last\n"
    )
    verdict = Verdict(
        runtime="qnn", device="htp", target="QNNExecutionProvider", taken={0: "QNNExecutionProvider", 1: "CPUExecutionProvider"}
    )
    read_log(open_model(foreign["best_places"]), log, verdict)
    assert verdict.said == {1: "axis is not the last"}
