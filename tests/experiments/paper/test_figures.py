"""Numbers of single figures: where they come from, and how they are summed up."""

import pytest

from experiments.paper.p000_memory_planners.run import EXAMPLE
from experiments.paper.p000_memory_planners.run import HERE as PLANNERS
from experiments.paper.p000_memory_planners.run import rows as planner_rows
from experiments.paper.p001_convolutions.draw import kind_of
from experiments.paper.picture import published
from experiments.records import read_record

pytest.importorskip("torch")
pytest.importorskip("pyopencl")

from experiments.lossless.run import MODELS
from experiments.paper.fig10_energy.run import ALONE, HERE, TOGETHER, compared


def rows(energy):
    """Every network takes 10 ms, and so many mJ on these processors."""
    return [
        {
            "network and processors": f"{words}, {name}",
            "ms": 10.0,
            "mJ": energy(at, name),
            "W": None if energy(at, name) is None else energy(at, name) / 10,
        }
        for at, words in enumerate(MODELS.values())
        for name in (*ALONE, *TOGETHER)
    ]


def test_mean_and_ends_are_over_networks_that_have_a_design():
    table = {
        row["processors"]: row
        for row in compared(rows(lambda at, name: None if (at, name) == (0, "cpu,gpu") else 50.0 + at if name != "cpu" else 100.0))
    }
    assert table["cpu"] | {"processors": ""} == {"processors": "", "networks": 6} | dict.fromkeys(list(table["cpu"])[2:], 0.0)
    assert table["gpu"]["energy %"] == -47.5
    assert (table["gpu"]["energy %, least"], table["gpu"]["energy %, largest"]) == (-50.0, -45.0)
    assert table["cpu,gpu"]["networks"] == 5
    assert table["cpu,gpu"]["energy %"] == -47.0


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


@pytest.mark.parametrize(
    ("convolution", "kernels", "kind"),
    [
        ("resnet50: 512×14×14 → 512, 3×3 / 2, relu", "conv", "3×3"),
        ("resnet50: 512×28×28 → 128, 1×1, relu", "conv", "1×1"),
        ("mobilenet_v2: 96×112×112 → 96, 3×3 / 2, 96 groups, clip", "depthwise", "depthwise"),
        ("regnet_x_1_6gf: 168×28×28 → 168, 3×3, 7 groups, relu", "conv", ""),
        ("resnet50: 3×224×224 → 64, 7×7 / 2, relu", "stem", ""),
    ],
)
def test_kind_is_told_by_kernel_and_groups(convolution, kernels, kind):
    assert kind_of({"convolution": convolution, "kernels": kernels}) == kind
