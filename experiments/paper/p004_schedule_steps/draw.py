"""Paper 004: steps of a convolution's schedule, and networks end to end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import Line, Panel, Point, point_of, rows_figure
from experiments.paper.picture import Found, Need, Picture, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What is switched off in our kernels, as the step that it takes back.
STEPS = {
    "conv: loops not unrolled": "loops unrolled",
    "conv: vectors of inputs loaded and taken apart": "scalar inputs, channels in vectors",
    "tiles of paper 004 (VH 1, VW 4, VC 4 as half a vector)": "tiles by cost, not those of the example",
}
PUBLISHED = {"VGG-16": "VGG-16, over the Arm Compute Library", "MobileNet": "MobileNet, over the Arm Compute Library"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Steps within kernels, the choice of tiles, and networks over another library."""
    switches, variants, networks, paper = (tables[name] for name in ("switches", "variants", "networks", "paper"))
    steps: dict[str, list[Point]] = {}
    for current, column in ((switches, "speed_switched"), (variants, "speed_over_as_it_is")):
        for row in current.rows:
            name, _, switch = str(next(iter(row.values()))).partition(", ")
            if switch in STEPS:
                point = point_of(current.record, current.table, row, column)
                assert point is not None
                steps.setdefault(STEPS[switch], []).append(Point(1 / point.value, point.source, name))
    ends = [Line(words, (Point(paper.value(row), "paper", "Mali, over the Arm Compute Library"),)) for words, row in PUBLISHED.items()]
    for row in networks.rows:
        point = point_of(networks.record, "networks", row, "speed_over_ONNX_Runtime", "network over ONNX Runtime")
        assert point is not None
        ends.append(Line(str(row["network"]), (point,)))
    return rows_figure(
        [
            Panel(
                "What steps of the schedule give",
                "times as fast with it as without it",
                tuple(Line(words, tuple(points)) for words, points in steps.items()),
            ),
            Panel("Whole networks over another library", "times as fast", tuple(ends)),
        ]
    )


PICTURE = Picture(
    "Steps of a convolution's schedule, and whole networks (paper 004)",
    "Above, measured: unrolling gives little, keeping inputs scalar and channels in vectors more, and tiles chosen by cost most; below, networks over another library beside the paper's two numbers.",
    {
        "switches": Need("experiments/opencl_switches/results/host.json", "switches", "python -m experiments.opencl_switches.run"),
        "variants": Need("experiments/opencl_networks/results/host.json", "variants", "python -m experiments.opencl_networks.run"),
        "networks": Need("experiments/opencl_networks/results/host.json", "networks", "python -m experiments.opencl_networks.run"),
        "paper": published("mali"),
    },
    draw,
)
