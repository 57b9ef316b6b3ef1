"""Paper 003, table 4: scaling ratios."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Panel, rows_figure
from experiments.paper.picture import Found, Picture
from experiments.paper.trained import accuracies, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(tables: Mapping[str, Found]) -> "Figure":
    """A row for each design."""
    return rows_figure([Panel("Scaling ratios at about equal cost, 95 % interval", "top-1 %", accuracies(tables["ratios"]))])


PICTURE = Picture(
    "Scaling ratios at about equal cost, ResNet-56 on CIFAR-10 (paper 003, table 4)",
    "Measured accuracy of designs whose branches have from a third of the depth to all of it, and of one with a branch of a quarter of the width: they differ within their intervals.",
    {"ratios": trained("ratios")},
    draw,
)
