"""Paper 003, table 8: segments replicated, before they are scaled."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Panel, Point, rows_figure
from experiments.paper.picture import Found, Picture, published
from experiments.paper.trained import accuracies, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAIN = "Table 8, replicated before scaling"
REPLICATED = "replicated, not scaled"


def draw(tables: Mapping[str, Found]) -> "Figure":
    """A row for each design, and the published gain on top of our original's accuracy."""
    table = tables["replication"]
    gained = Point(table.value("sequential", "top-1 %") + tables["paper"].value(GAIN), "paper", "gain on ImageNet, on top of our original")
    return rows_figure([Panel("Replicated and scaled, 95 % interval", "top-1 %", accuracies(table, {REPLICATED: gained}))])


PICTURE = Picture(
    "Replicated before scaling, ResNet-56 on CIFAR-10 (paper 003, table 8)",
    "Measured accuracy of the original, of two copies of every segment and of two branches of half the depth; the paper's gain on ImageNet is larger than ours on CIFAR-10.",
    {"replication": trained("replication"), "paper": published("stretch")},
    draw,
)
