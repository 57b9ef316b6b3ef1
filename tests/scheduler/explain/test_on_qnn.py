"""QNN's provider asked about foreign files; its log, whose lines name what failed, is the witness."""

from scheduler.explain.answer import Verdict
from scheduler.explain.model import open_model
from scheduler.explain.on_qnn import read_log


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
