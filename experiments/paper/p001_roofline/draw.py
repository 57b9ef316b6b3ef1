"""Paper 001, figure 2: the roofline of a Raspberry Pi, and ours of a core here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import COLOURS, WIDTH, handle, legend, marked, plain_log
from experiments.paper.picture import Found, Need, Picture, published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Convolutions of the paper, before and after.
KINDS = ("3×3", "depthwise", "1×1")
PEAK, MEMORY, CACHE = "multiply-adds in registers, OpenCL", "reads from the memory, OpenCL", "reads from the third cache, OpenCL"


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Above the paper's roof and what its algorithms can reach below it; below ours, and launches as they were timed."""
    from matplotlib.figure import Figure

    paper, peaks, launches = tables["paper"], tables["peaks"], tables["launches"]
    figure = Figure(figsize=(WIDTH, 8.2), layout="constrained")
    above, below = figure.subplots(2, 1)
    roof = paper.value("Raspberry Pi 4B, one core, arithmetic"), paper.value("Raspberry Pi 4B, memory")
    _roof(above, *roof, (0.05, 20), "paper")
    for kind in KINDS:
        before, after = (paper.value(f"{kind} convolution, {when}") for when in ("before", "after"))
        top = [min(roof[0], roof[1] * at) for at in (before, after)]
        marked(above, before, top[0], "paper", "none")
        marked(above, after, top[1], "paper")
        beside = kind == "depthwise"
        above.annotate(f"{kind}, before", (before, top[0]), xytext=(9, -3 if beside else -12), textcoords="offset points", fontsize=9)
        above.annotate(
            f"{kind}, after",
            (after, top[1]),
            xytext=(-9, 5 if beside else -3 if kind == "3×3" else 5),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    above.set_title("Raspberry Pi 4B, one core: theoretical", loc="left", fontsize=11, fontweight="bold")
    _roof(below, peaks.value(PEAK, "GFLOP_per_s"), peaks.value(MEMORY, "GB_per_s"), (0.05, 300), "measured")
    cache = peaks.value(CACHE, "GB_per_s")
    top = peaks.value(PEAK, "GFLOP_per_s")
    below.plot([0.05, top / cache], [0.05 * cache, top], color=COLOURS["measured"], linewidth=1.4, linestyle=(0, (5, 3)))
    below.annotate(f"{cache:g} GB/s,\nthird cache", (0.12, 0.12 * cache), xytext=(-34, 18), textcoords="offset points", fontsize=9)
    fillings = {"resnet50": "full", "mobilenet_v2": "none", "efficientnet_b0": "left"}
    for row in launches.rows:
        network = str(row["launch"]).partition(":")[0]
        if row["FLOP_per_byte"] and row["GFLOP_per_s"]:
            marked(below, float(row["FLOP_per_byte"]), float(row["GFLOP_per_s"]), "measured", fillings[network])
    below.set_title("A core of a server, our OpenCL kernels", loc="left", fontsize=11, fontweight="bold")
    for axes in (above, below):
        axes.set(xlabel="FLOP per byte moved (logarithmic)", ylabel="GFLOP/s (logarithmic)")
        axes.grid(color="#e4e4e4")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [handle(below, "measured", network, filling) for network, filling in fillings.items()]
    legend(figure, [*handles, handle(above, "paper", "algorithm before", "none"), handle(above, "paper", "algorithm after")])
    return figure


def _roof(axes: "Axes", arithmetic: float, memory: float, span: tuple[float, float], source: str) -> None:
    """The least of what arithmetic and memory allow."""
    ridge = arithmetic / memory
    for which in "xy":
        plain_log(axes, which)
    colour = COLOURS["paper" if source == "paper" else "measured"]
    axes.plot([span[0], ridge, span[1]], [span[0] * memory, arithmetic, arithmetic], color=colour, linewidth=1.6)
    axes.annotate(f"{arithmetic:g} GFLOP/s", (span[1], arithmetic), xytext=(0, 4), textcoords="offset points", ha="right", fontsize=9)
    axes.annotate(f"{memory:g} GB/s,\nmemory", (span[0], span[0] * memory), xytext=(-6, 30), textcoords="offset points", fontsize=9)


PICTURE = Picture(
    "Rooflines (paper 001, figure 2)",
    "Above, the paper's theoretical roof of a Raspberry Pi 4B with the arithmetic intensity of its three convolutions before and after; below, the measured roof of a core with the launches of our OpenCL kernels.",
    {
        "paper": published("raspberry_pi"),
        "peaks": Need("experiments/opencl_roofline/results/host.json", "peaks", "python -m experiments.opencl_roofline.run"),
        "launches": Need("experiments/opencl_roofline/results/host.json", "launches", "python -m experiments.opencl_roofline.run"),
    },
    draw,
)
