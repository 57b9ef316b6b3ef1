"""Paper 001, tables 1 to 3, and what its steps are worth in our kernels."""

from collections.abc import Mapping
from math import exp, log
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, Point, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture, published
from experiments.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"3×3": "3×3", "depthwise": "depthwise", "1×1": "1×1"}
SIZES, MIDDLE, OTHERS = (800, 512, 400), 512, ("ncnn", "ppl.nn", "MNN")
#: Switches of our kernels that are steps of the paper, in its words.
STEPS = {
    "bounds checked everywhere": "borders apart, not checked everywhere",
    "each pixel loads for itself": "loads shared by neighbours",
    "loops not unrolled": "loops unrolled",
    "nothing fused": "operators fused",
    "padded copies instead of border checks": "no padded copies",
}


def kind_of(row: Row) -> str:
    """The paper's kind of one of our convolutions; empty for what it has not, and where the image is one pixel, so that the call is timed.

    Args:
        row: Of the record.
    """
    name = str(row["convolution"])
    if "×1×1 →" in name:
        return ""
    if row["kernels"] == "depthwise":
        return "depthwise" if ", 3×3" in name else ""
    return next((kind for kind in ("3×3", "1×1") if f", {kind}" in name and "groups" not in name), "")


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Speed over other libraries by kind of convolution; then what each step gives."""
    paper, current, switches, variants = (tables[name] for name in ("paper", "convolutions", "switches", "variants"))
    lines = []
    for kind, words in KINDS.items():
        for other in OTHERS:
            ratios = {
                size: paper.value(f"{kind} convolution at {size}, {other}") / paper.value(f"{kind} convolution at {size}, theirs")
                for size in SIZES
            }
            point = Point(ratios[MIDDLE], "paper", "images of 512 pixels, ends of three sizes", min(ratios.values()), max(ratios.values()))
            lines.append(Line(f"{words}, over {other}", (point,)))
        over = [float(row["speed_over_ONNX_Runtime"] or 1) for row in current.rows if kind_of(row) == kind]
        ours = Point(exp(sum(map(log, over)) / len(over)), "measured", "geometric mean, ends of all", min(over), max(over))
        lines.append(Line(f"{words}, ours over ONNX Runtime", (ours,)))
    steps: dict[str, list[Point]] = {}
    for own_table, column, first in ((switches, "speed_switched", ": "), (variants, "speed_over_as_it_is", ", ")):
        for row in own_table.rows:
            name, _, switch = str(next(iter(row.values()))).partition(first)
            if switch in STEPS:
                point = point_of(own_table.record, own_table.table, row, column)
                assert point is not None
                steps.setdefault(STEPS[switch], []).append(Point(1 / point.value, point.source, name.partition(",")[0]))
    return rows_figure(
        [
            Panel("Convolutions over other libraries", "times as fast (logarithmic)", tuple(lines), logarithmic=True),
            Panel(
                "Steps of the paper in our kernels",
                "times as fast with it as without it",
                tuple(Line(words, tuple(points)) for words, points in steps.items()),
            ),
        ]
    )


PICTURE = Picture(
    "Convolutions over other libraries, and what each step gives (paper 001, tables 1 to 3)",
    "Above, speed of the paper's convolutions on a Raspberry Pi over three libraries, and of ours on a server's core over ONNX Runtime; below, what fusion, borders apart, shared loads and unrolling give in our kernels.",
    {
        "paper": published("raspberry_pi"),
        "convolutions": Need(
            "experiments/opencl_convolutions/results/host.json", "convolutions", "python -m experiments.opencl_convolutions.run"
        ),
        "switches": Need("experiments/opencl_switches/results/host.json", "switches", "python -m experiments.opencl_switches.run"),
        "variants": Need("experiments/opencl_networks/results/host.json", "variants", "python -m experiments.opencl_networks.run"),
    },
    draw,
)
