"""Paper 003, figure 13: a load that comes and goes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.paper.chart import COLOURS, INK, WIDTH, handle, legend, marked, plain_log
from experiments.paper.picture import Found, Need, Picture, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THICK, THIN = 2, 1
#: Columns of latencies and how their lines are drawn, from the plans' record and from the baselines'.
PLANS = {"changing between them": ("branches, changing plans", "-", THICK), "cpu,dsp": ("branches on CPU + DSP", (0, (1, 2)), THICK)}
BASELINES = {"cpu alone": ("original on the CPU", (0, (6, 2)), THICK), "dsp alone": ("original on the DSP", (0, (6, 2, 1, 2)), THIN)}
BOUNDS = (50, 155)
WORST = "Fig. 13, worst inference of the baseline"
#: Phases of the measurement on a server's cores, and its contenders.
MEASURED = {"before": "before: median ms", "beside others": "beside others: median ms", "after": "after: median ms"}


def draw(tables: Mapping[str, Found]) -> "Figure":
    """Above, each simulated inference; below, medians measured here."""
    from matplotlib.figure import Figure

    plans, baselines, paper, here = tables["plans"], tables["baselines"], tables["paper"], tables["measured"]
    figure = Figure(figsize=(WIDTH, 8.0), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1.7, 1))
    shown = []
    for rows, columns in ((plans.rows, PLANS), (baselines.rows, BASELINES)):
        for column, (words, dashes, width) in columns.items():
            count = [float(row["inference"] or 0) for row in rows]
            label = f"simulated: {words}"
            shown += above.step(
                count,
                [float(row[column] or 0) for row in rows],
                where="post",
                color=COLOURS["simulated"],
                linestyle=dashes,
                linewidth=width,
                label=label,
            )
    plain_log(above, "y")
    above.set_ylim(8, 1000)
    marked(above, 80, paper.value(WORST), "paper", "none")
    above.annotate("worst of the baseline", (80, paper.value(WORST)), xytext=(10, -4), textcoords="offset points", fontsize=9)
    for bound in BOUNDS:
        above.axvline(bound, color=INK, linestyle=":", linewidth=1)
    for at, words in ((25, "GPU taken"), (102, "CPU taken"), (177, "GPU taken")):
        above.annotate(words, (at, 620), ha="center", fontsize=10)
    above.set_title("ResNet-34 on the Mi 9, simulated", loc="left", fontsize=11, fontweight="bold")
    above.set(xlabel="inference", ylabel="ms (logarithmic)", xlim=(0, 200))
    marks = {"both cores": "none", "changing between both and the first": "full", "one graph on the core that is taken": "left"}
    for row in here.rows:
        plan = str(row["plan"])
        values = [float(row[column] or 0) for column in MEASURED.values()]
        below.plot(
            range(len(values)), values, color=COLOURS["measured"], linewidth=1, linestyle="-" if marks[plan] == "full" else (0, (4, 3))
        )
        for at, value in enumerate(values):
            marked(below, at, value, "measured", marks[plan])
        shown.append(handle(below, "measured", plan, marks[plan]))
    below.set_xticks(range(len(MEASURED)), list(MEASURED))
    below.set_title("ResNet-18 on two cores of a server, measured", loc="left", fontsize=11, fontweight="bold")
    below.set(ylabel="median ms", ylim=(0, 100), xlim=(-0.3, 2.3))
    for axes in (above, below):
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    legend(figure, [*shown, handle(above, "paper", "", "none")])
    return figure


PICTURE = Picture(
    "A load that comes and goes (paper 003, figure 13)",
    "Above: latency of 200 simulated inferences while others take the GPU, then from 50 to 155 the CPU, then the GPU; branches that change plans stay fast but for some first inferences, the original on the CPU slows down tenfold. Below: medians measured on two cores before, beside and after other processes.",
    {
        "plans": Need("experiments/contention/results/simulated.json", "latencies", "python -m experiments.contention.run"),
        "baselines": Need("experiments/paper/fig13_load/results/baseline.json", "latencies", "python -m experiments.paper.fig13_load.run"),
        "measured": Need("experiments/contention/results/measured.json", "measured", "python -m experiments.contention.here --rounds 2"),
        "paper": published("stretch"),
    },
    draw,
)
