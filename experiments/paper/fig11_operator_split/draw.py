"""Paper 003, figure 11: branches beside operators that are split."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, Point, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture, published
from experiments.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Columns of a network as series.
WAYS = {"cpu ms": "CPU alone", "gpu ms": "GPU alone", "split ms": "operators split", "branches ms": "branches"}
#: Largest published ratios, the smaller first.
PUBLISHED_OVER = {"Fig. 11, largest over CoDL": "over CoDL", "Fig. 11, largest over the GPU": "over the GPU"}
#: Published exchanges of this network and phone.
PUBLISHED = "ResNet-50, Xiaomi Mi 11"
MOVED = {"split": "Fig. 11, ResNet-50 on Mi 11, exchanges of CoDL", "branches": "Fig. 11, ResNet-50 on Mi 11, exchanges of NN-Stretch"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Latency of each way, ratios over what they are compared with, and what exchanges take."""
    table, paper = tables["split"], tables["paper"]
    latencies = tuple(
        Line(_short(row), found(*(point_of(table.record, "networks", row, column, words) for column, words in WAYS.items())))
        for row in table.rows
    )
    panels = [Panel("Latency", "ms an inference", latencies, start=0.0)]
    ratios = {"branches over the GPU": "gpu ms", "branches over split": "split ms"}
    lines = [
        Line(_short(row), found(*(point_of(table.record, "networks", row, column, WAYS[way]) for column, way in ratios.items())))
        for row in table.rows
    ]
    over = tuple((Point(paper.value(cell), "paper"), words) for cell, words in PUBLISHED_OVER.items())
    panels.append(Panel("Speed of branches over one of them", "times", tuple(lines), over))
    moved = []
    for way, cell in MOVED.items():
        row = table.row(PUBLISHED)
        moved.append(
            Line(
                WAYS[f"{way} ms"],
                found(
                    point_of(table.record, "networks", row, f"{way}, exchanges ms", WAYS[f"{way} ms"]), Point(paper.value(cell), "paper")
                ),
            )
        )
    panels.append(Panel("Exchanges, ResNet-50 on Mi 11", "ms an inference", tuple(moved), start=0.0))
    return rows_figure(panels)


def _short(row: Row) -> str:
    return str(row["network and phone"]).replace("Xiaomi ", "")


PICTURE = Picture(
    "Branches beside operators that are split, CPU and GPU (paper 003, figure 11)",
    "Predicted latency of two networks on two phones with one processor, with operators split over two and with branches; ratios and exchanges beside those of the paper's text.",
    {
        "split": Need(
            "experiments/paper/fig11_operator_split/results/split.json", "networks", "python -m experiments.paper.fig11_operator_split.run"
        ),
        "paper": published("stretch"),
    },
    draw,
)
