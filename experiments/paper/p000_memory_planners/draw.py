"""Paper 000, figure 5 and table 3: memory of intermediate tensors by planner."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, Point, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Planners, and what the paper's text says of the example.
PLANNERS = {"naive": "", "greedy": "Fig. 5, greedy by size", "flow": "Fig. 5, min-cost flow", "offset": ""}
WORDS = {"naive": "naive", "greedy": "greedy by size", "flow": "min-cost flow", "offset": "offsets (not in the paper)"}
SHOWN = {"greedy": "greedy by size", "flow": "min-cost flow", "offset": "offsets"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """The paper's example, and networks over the naive plan."""
    example, nets, paper = tables["example"], tables["networks"], tables["paper"]
    lines = [
        Line(
            WORDS[name],
            found(
                point_of(example.record, "example", example.row(name), "units", "the example"),
                Point(paper.value(cell), "paper") if cell else None,
            ),
        )
        for name, cell in PLANNERS.items()
    ]
    shares = []
    for row in nets.rows:
        points = []
        for name, words in SHOWN.items():
            point = point_of(nets.record, "original", row, f"{name} MiB", words)
            assert point is not None
            points.append(Point(100 * point.value / float(row["naive MiB"] or 1), point.source, words))
        shares.append(Line(str(row["network"]), tuple(points)))
    return rows_figure(
        [
            Panel("The paper's example", "units of memory", tuple(lines), start=0.0),
            Panel("Networks, fp16 in slices of four channels", "% of the naive plan", tuple(shares), start=0.0),
        ]
    )


PICTURE = Picture(
    "Memory of intermediate tensors by planner (paper 000, figure 5 and table 3)",
    "Above, the totals of the paper's example: ours are the paper's. Below, ten networks: what three planners need of the naive plan; offsets need least everywhere.",
    {
        "example": Need(
            "experiments/paper/p000_memory_planners/results/example.json", "example", "python -m experiments.paper.p000_memory_planners.run"
        ),
        "networks": Need("experiments/memory_planning/results/planners.json", "original", "python -m experiments.memory_planning.run"),
        "paper": published("tflite_gpu"),
    },
    draw,
)
