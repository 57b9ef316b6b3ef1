"""The report of a file on a runtime."""

from pathlib import Path

from scheduler.tools.explain.model import Fix, RuntimeExplanation, RuntimeOperator, UnsupportedReason
from stretch.tools.explain.report import runtime_lines

FOUND = RuntimeExplanation(
    file=Path("m.onnx"),
    runtime="qnn 2",
    device="htp",
    operators=[
        RuntimeOperator(name="conv", op="Conv", target="QNN", taken=True, partition=0, macs=1000, reason="taken by QNN"),
        RuntimeOperator(name="best", op="ArgMax", target="CPU", taken=False, partition=None, macs=0, reason="axis is not the last"),
        RuntimeOperator(name="shape", op="Shape", target=None, taken=None, partition=None, macs=0, reason="folded"),
    ],
    partitions=1,
    obstacles=[UnsupportedReason(operator="best", op="ArgMax", cause="axis = 1", words="axis is not the last", change="another axis")],
    copies=1,
    share=1.0,
    fix=Fix(steps=("compute constants",), operators=(1, 0)),
    log="",
    warnings=[],
)


def test_counts_first_unsupported_operator_and_fix_are_shown():
    assert runtime_lines(FOUND) == [
        "qnn 2, htp: takes 1 of 2 operators, 100 % of the MACs, in 1 partition, copies 1",
        "first unsupported operator: best (ArgMax), axis = 1",
        "  qnn says: axis is not the last",
        "  another axis",
        "helps, operators off it 1 -> 0: compute constants",
    ]
