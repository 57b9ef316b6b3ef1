"""Paper 003, table 3: accuracy and latency by the number of meeting points."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERVAL = "95 % interval ±"


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Accuracy above, latency and what exchanges take of it below."""
    table = tables["meeting points"]

    def lines(*columns: tuple[str, str, tuple[str, str] | None]) -> tuple[Line, ...]:
        return tuple(
            Line(
                str(row["design"]),
                found(*(point_of(table.record, table.table, row, column, series, ends) for column, series, ends in columns)),
            )
            for row in table.rows
        )

    accuracy = Panel("Accuracy, 95 % interval", "top-1 %", lines(("top-1 %", "", (INTERVAL, INTERVAL))))
    latency = Panel(
        "Latency on the Mi 9, CPU + GPU",
        "ms an inference",
        lines(("predicted ms", "an inference", None), ("of it exchange ms", "its exchanges", None)),
        start=0.0,
    )
    return rows_figure([accuracy, latency])


PICTURE = Picture(
    "Number of meeting points, ResNet-56 on CIFAR-10 (paper 003, table 3)",
    "Measured accuracy of designs with one to nine meeting points, which differ within their intervals, and their predicted latency, which grows with every meeting point.",
    {
        "meeting points": Need(
            "experiments/cifar_accuracy/results/latency.json", "meeting_points", "python -m experiments.cifar_accuracy.latency"
        )
    },
    draw,
)
