"""Paper 003, figure 12: accuracy against latency."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import COLOURS, WIDTH, handle, legend, marked
from experiments.paper.picture import Found, Need, Picture
from experiments.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Networks of the second and third panel, and the designs of them that are shown, by the ends of their names.
NETWORKS = {"mobilenet_v2": "MobileNetV2", "efficientnet_lite0": "EfficientNet-Lite0"}
DESIGNS = {"sum 300": "branched", "milder 300": "branched, milder", "default 300": "branched, `project`", "sequential 300": "sequential"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Three panels: accuracy after training, and agreement without."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 9.4), layout="constrained")
    first, *others = figure.subplots(3, 1, height_ratios=(1.25, 1, 1))
    trained = tables["trained"]
    for row in trained.rows:
        _mark(first, float(row["predicted ms"] or 0), float(row["top-1 %"] or 0), bool(row["branched"]), _half(row))
    twice = trained.row("replicated, not scaled")
    first.annotate(
        "twice the\ncost",
        (float(twice["predicted ms"] or 0), float(twice["top-1 %"] or 0)),
        xytext=(6, 6),
        textcoords="offset points",
        fontsize=9,
    )
    first.axhline(trained.value("sequential", "top-1 %"), color="#777777", linestyle=(0, (5, 3)), linewidth=1)
    first.set_title("ResNet-56, CIFAR-10, trained", loc="left", fontsize=11, fontweight="bold")
    first.set_ylabel("top-1 %, measured", fontsize=10)
    for axes, (network, words) in zip(others, NETWORKS.items(), strict=True):
        drawn = {end: tables["real"].row(f"{network} {end}") for end in DESIGNS}
        for end, row in drawn.items():
            value, low, high = (100 * float(row[f"calibrated_{part}"] or 0) for part in ("value", "low", "high"))
            _mark(axes, float(row["predicted_ms"] or 0), value, not end.startswith("sequential"), (value - low, high - value))
        _mark(axes, float(drawn["sum 300"]["best_single_ms"] or 0), 100.0, False, (0.0, 0.0))
        axes.annotate(
            "original",
            (float(drawn["sum 300"]["best_single_ms"] or 0), 100.0),
            xytext=(-8, -4),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
        axes.set_title(f"{words}, ImageNet, calibrated without labels", loc="left", fontsize=11, fontweight="bold")
        axes.set_ylabel("same class %, measured", fontsize=10)
        axes.set_ylim(top=106)
    for axes in (first, *others):
        axes.set_xlabel("ms on the Mi 9, CPU + GPU, predicted", fontsize=10)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    legend(figure, [handle(first, "measured", "branched"), handle(first, "measured", "sequential", "none")])
    return figure


def _half(row: Row) -> tuple[float, float]:
    half = float(row["95 % interval ±"] or 0)
    return half, half


def _mark(axes: object, ms: float, value: float, branched: bool, ends: tuple[float, float]) -> None:
    axes.plot([ms, ms], [value - ends[0], value + ends[1]], color=COLOURS["measured"], linewidth=1.2, zorder=2)  # type: ignore[attr-defined]
    marked(axes, ms, value, "measured", "full" if branched else "none")  # type: ignore[arg-type]


PICTURE = Picture(
    "Accuracy against latency (paper 003, figure 12)",
    "Measured accuracy over predicted latency: ResNet-56 on CIFAR-10 after training, and MobileNetV2 and EfficientNet-Lite0 calibrated without labels; branched networks filled, sequential ones hollow, with 95 % intervals.",
    {
        "trained": Need(
            "experiments/paper/fig12_tradeoff/results/designs.json", "designs", "python -m experiments.paper.fig12_tradeoff.run"
        ),
        "real": Need("experiments/real_networks/results/agreement.json", "designs", "python -m experiments.real_networks.run measure"),
    },
    draw,
)
