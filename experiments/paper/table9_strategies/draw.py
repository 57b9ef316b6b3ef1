"""Paper 003, table 9: ways to scale."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Panel, rows_figure
from experiments.paper.picture import Found, Picture
from experiments.paper.trained import accuracies, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(tables: Mapping[str, Found]) -> "Figure":
    """A row for each design."""
    return rows_figure([Panel("Ways to scale branches, 95 % interval", "top-1 %", accuracies(tables["strategies"]))])


PICTURE = Picture(
    "Ways to scale branches, ResNet-56 on CIFAR-10 (paper 003, table 9)",
    "Measured accuracy of branches that are scaled in depth alone, in width alone and by processor: they differ within their intervals.",
    {"strategies": trained("strategies")},
    draw,
)
