"""Numbers of single figures: where they come from, and how they are summed up."""

import pytest

from experiments.paper.p000_memory_planners.run import EXAMPLE
from experiments.paper.p000_memory_planners.run import HERE as PLANNERS
from experiments.paper.p000_memory_planners.run import rows as planner_rows
from experiments.paper.picture import published
from experiments.records import read_record

pytest.importorskip("torch")
pytest.importorskip("pyopencl")

from experiments.paper.fig10_energy.run import HERE, compared


def test_summary_of_the_record_is_that_of_its_networks():
    record = read_record(HERE / "results" / "energy.json")
    assert compared(record.tables["networks"]) == record.tables["compared"]


def test_record_is_what_the_planners_give():
    assert read_record(PLANNERS / "results" / "example.json").tables["example"] == planner_rows()


def test_planners_of_the_paper_have_its_totals():
    mapping, paper = {row["planner"]: row["units"] for row in planner_rows()}, published("tflite_gpu").read()
    assert mapping["greedy"] == paper.value("Fig. 5, greedy by size")
    assert mapping["flow"] == paper.value("Fig. 5, min-cost flow")
    assert mapping["naive"] == sum(size for _, size, _ in EXAMPLE)
