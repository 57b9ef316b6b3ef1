"""Paper 000, section 3.1: what the delegate takes, and what stays on the CPU."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, Point, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Shares of operators and of work on the GPU, and parts."""
    table = tables["partition"]
    shares, parts = [], []
    for row in table.rows:
        taken = point_of(table.record, "partition", row, "on the GPU")
        assert taken is not None
        every = float(row["operators"] or 1)
        left = point_of(table.record, "partition", row, "left after fusion")
        shares.append(
            Line(
                str(row["network"]),
                found(
                    Point(100 * taken.value / every, taken.source, "operators that run on the GPU"),
                    left and Point(100 * left.value / every, left.source, "operators left after fusion"),
                ),
            )
        )
        parts.append(Line(str(row["network"]), found(point_of(table.record, "partition", row, "parts on the GPU", "pieces"))))
    return rows_figure(
        [
            Panel("What becomes of the exported operators", "% of them", tuple(shares), span=(-3.0, 104.0)),
            Panel("Pieces of the network on the GPU", "number of pieces", tuple(parts), start=-3.0),
        ]
    )


PICTURE = Picture(
    "What the OpenCL delegate takes of exported networks (paper 000, section 3.1)",
    "Seven of nine networks run on the GPU in one piece, or all but one operator of them; a file with an operator of several outputs is refused as a whole, and tokens are cut into many pieces.",
    {
        "partition": Need(
            "experiments/paper/p000_delegate_partition/results/opencl.json",
            "partition",
            "python -m experiments.paper.p000_delegate_partition.run",
        )
    },
    draw,
)
