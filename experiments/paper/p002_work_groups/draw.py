"""Paper 002: FAST and EXHAUSTIVE over work-groups."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, found, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODES = {"fast": "FAST", "exhaustive": "EXHAUSTIVE", "schedule": "schedules too (not in the paper)"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """What each mode gains, and how long it takes."""
    table = tables["modes"]
    kernels = table.value("fast", "kernels")

    def lines(column: str) -> tuple[Line, ...]:
        return tuple(Line(words, found(point_of(table.record, "modes", table.row(mode), column))) for mode, words in MODES.items())

    return rows_figure(
        [
            Panel("Kernels of a ResNet-50 branch, before over after", "times as fast", lines("before_over_after"), span=(1.0, 1.05)),
            Panel("Time that tuning takes", "s", lines("seconds"), start=0.0),
            Panel("Kernels whose choice was changed", f"of {kernels:g} kernels", lines("changed"), span=(-1.0, kernels + 1)),
        ]
    )


PICTURE = Picture(
    "FAST and EXHAUSTIVE over work-groups (paper 002)",
    "Measured on PoCL: FAST, EXHAUSTIVE and a search over schedules gain one to two per cent on kernels that start from a cost model's choice; the paper states no times.",
    {
        "modes": Need(
            "experiments/opencl_tuning/results/host.json", "modes", "python -m experiments.opencl_tuning.run resnet50_host --budget 45"
        )
    },
    draw,
)
