"""Paper 003, figure 9: speed-ups over the fastest single processor."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.networks import MODELS
from experiments.paper.chart import Line, Panel, Point, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Device and processors, as the record and the panel call them, and what the paper says of all of its networks there.
PANELS = (
    ("mi9-release cpu,gpu", "Mi 9, CPU + GPU", ""),
    ("mi9-release cpu,dsp", "Mi 9, CPU + DSP", ""),
    ("mi9-release cpu,gpu,dsp", "Mi 9, CPU + GPU + DSP", "Fig. 9, largest over the fastest single processor, Mi 9"),
    ("pixel6 cpu,gpu", "Pixel 6, CPU + GPU", "Fig. 9, largest, Pixel 6"),
    ("mi11 cpu,gpu", "Mi 11, CPU + GPU", "Fig. 9, largest, Mi 11"),
)
#: The one bar of which the text has a number.
BAR = ("mi9-release cpu,dsp", "ResNet-50", "Fig. 9, ResNet-50 on Mi 9 with CPU and DSP")
#: Means of the designs that the authors published with their code.
RELEASED = {
    "mi9-release cpu,gpu": {
        "release, mean as measured": "Mi 9, geometric mean over the best single processor, CPU and GPU",
        "release, mean at equal cost": "the same at equal multiply-accumulates, CPU and GPU",
    },
    "mi9-release cpu,dsp": {
        "release, mean as measured": "the same, CPU and DSP",
        "release, mean at equal cost": "the same at equal multiply-accumulates, CPU and DSP",
    },
}
COLUMN, OURS = "mixed, merged", "ours, 90 % interval"
AXIS = "times the speed of the best single processor"


def draw(tables: Mapping[str, Found]) -> "Figure":
    """A panel for each phone and set of processors, a row for each network."""
    nets, means, paper = tables["networks"], tables["means"], tables["paper"]
    panels = []
    for place, title, most in PANELS:
        lines = []
        for words in MODELS.values():
            row = nets.row(f"{words}, {place}")
            point = point_of(nets.record, "networks", row, COLUMN, OURS, (f"{COLUMN}, low", f"{COLUMN}, high"))
            bar = Point(paper.value(BAR[2]), "paper", "as the text has it") if BAR[:2] == (place, words) else None
            lines.append(Line(words, found(point, bar)))
        point = point_of(means.record, "means", means.row(place), COLUMN, OURS)
        released = [Point(paper.value(row), "paper", series) for series, row in RELEASED.get(place, {}).items()]
        lines.append(Line("geometric mean", found(point, *released)))
        panels.append(_panel(title, lines, paper, most))
    return rows_figure(panels)


def _panel(title: str, lines: list[Line], paper: Found, most: str) -> Panel:
    bounds = ((Point(paper.value(most), "paper", "as the text has it"), "largest published"),) if most else ()
    return Panel(
        title, AXIS, tuple(line if line.points else Line(f"{line.name} (no design)", ()) for line in lines), bounds, span=(0.35, 2.8)
    )


PICTURE = Picture(
    "Speed-ups over the fastest single processor (paper 003, figure 9)",
    "Predicted speed-ups of designs for six networks on five sets of processors of three phones, beside the largest ones and the one bar that the paper's text states, and means of the authors' release.",
    {
        "networks": Need("experiments/simulated_speedup/results/speedup.json", "networks", "python -m experiments.simulated_speedup.run"),
        "means": Need("experiments/simulated_speedup/results/speedup.json", "means", "python -m experiments.simulated_speedup.run"),
        "paper": published("stretch"),
    },
    draw,
)
