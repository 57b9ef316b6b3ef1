"""The record of the example is what the planners give, and what the paper states."""

from experiments.paper.p000_memory_planners.run import EXAMPLE, HERE, rows
from experiments.paper.picture import published
from experiments.records import read_record


def test_record_is_what_the_planners_give():
    assert read_record(HERE / "results" / "example.json").tables["example"] == rows()


def test_planners_of_the_paper_have_its_totals():
    own, paper = {row["planner"]: row["units"] for row in rows()}, published("tflite_gpu").read()
    assert own["greedy"] == paper.value("Fig. 5, greedy by size")
    assert own["flow"] == paper.value("Fig. 5, min-cost flow")
    assert own["naive"] == sum(size for _, size, _ in EXAMPLE)
