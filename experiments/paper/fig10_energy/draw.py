"""Paper 003, figure 10: energy of an inference on the Mi 9."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, Point, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"cpu": "CPU", "gpu": "GPU", "dsp": "DSP"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Energy and power over those of the CPU alone."""
    table, paper = tables["compared"], tables["paper"]
    saved = Point(-paper.value("Fig. 10, energy saved over the CPU by CPU, GPU and DSP, at most"), "paper")
    more = Point(paper.value("Fig. 10, more power than the CPU alone, at most"), "paper")
    panels = []
    for what, extreme in (("energy", saved), ("power", more)):
        lines = []
        for row in table.rows:
            processors = str(row["processors"])
            words = " + ".join(WORDS[name] for name in processors.split(","))
            mean = point_of(
                table.record, "compared", row, f"{what} %", "mean and ends of the networks", (f"{what} %, least", f"{what} %, largest")
            )
            most = extreme if (what, processors) == ("energy", "cpu,gpu,dsp") else None
            lines.append(Line(f"{words} ({row['networks']})", found(mean, most)))
        bounds = ((more, "most published"),) if what == "power" else ()
        panels.append(
            Panel(f"{what.capitalize()} of an inference (number of networks)", f"% more {what} than the CPU alone", tuple(lines), bounds)
        )
    return rows_figure(panels)


PICTURE = Picture(
    "Energy and power on the Mi 9 over the CPU alone (paper 003, figure 10)",
    "Predicted energy and power of single processors and of branched networks on several, over those of the CPU alone, beside the two numbers of the paper's text.",
    {
        "compared": Need("experiments/paper/fig10_energy/results/energy.json", "compared", "python -m experiments.paper.fig10_energy.run"),
        "paper": published("stretch"),
    },
    draw,
)
