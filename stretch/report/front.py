"""Terminal table and plot of a front of designs."""

from pathlib import Path
from typing import TYPE_CHECKING

from predictors.errors import StretchError
from predictors.install import install_line
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.pareto import FrontAnswer, FrontDesignAnswer
from stretch.planning.result import exact_words
from stretch.report.fit import Fitting, column, plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

#: Headings of additional columns, by objective.
TITLES = {"agreement": "agreement", "accuracy": "top-1", "energy": "mJ", "memory": "peak MB"}
#: Axis labels.
AXES = {
    "latency": "predicted ms",
    "agreement": "predicted share of images in the original's class",
    "accuracy": "predicted top-1",
    "macs": "MACs over the original's",
    "energy": "predicted mJ",
    "memory": "activations alive at one time, MB",
}


def value_of(row: FrontDesignAnswer, name: str) -> float:
    """A design's value in an objective, in display units."""
    if name == "latency":
        return row.predicted_ms
    if name == "macs":
        return row.macs_ratio
    if name == "memory":
        return row.peak_bytes / 1e6
    if name == "energy":
        value = row.energy_mj
    else:
        assert row.accuracy is not None
        value = row.accuracy.agreement if name == "agreement" else row.accuracy.top1
    assert value is not None
    return value


def front_table(answer: FrontAnswer) -> Fitting:
    """A row for each design, in fewer columns where the terminal is narrow."""
    return Fitting([lambda: _table(answer, wide=True), lambda: _table(answer, wide=False)])


def _table(answer: FrontAnswer, *, wide: bool) -> "Table":
    table = plain_table()
    column(table, "design")
    for title in ("predicted ms", "speed-up", *(("over sequential",) if wide else ()), "MACs", "meeting points"):
        column(table, title, right=True)
    more = [name for name in answer.pareto if name in TITLES]
    if answer.objective not in (None, "latency"):
        column(table, answer.objective, right=True)
    for name in more:
        column(table, TITLES[name], right=name in ("energy", "memory"))
    column(table, "branches", fold=True)
    for row in answer.designs:
        cells = [row.name, f"{row.predicted_ms:.2f}", f"{row.speedup:.2f}"]
        if wide:
            cells.append("none" if row.speedup_over_sequential is None else f"{row.speedup_over_sequential:.2f}")
        cells += [f"{row.macs_ratio:.3f}", str(row.n_meet)]
        if row.value is not None and answer.objective != "latency":
            cells.append(f"{row.value:.4g}")
        cells += [f"{value_of(row, name):.4g}" if name in ("energy", "memory") else _accuracy(row.accuracy) for name in more]
        words = "; ".join(row.branches) or "none: one processor at a time"
        table.add_row(*cells, f"exact in fp32, {words}" if row.exact and row.branches else words)
    return table


def _accuracy(accuracy: PredictedAccuracy | None) -> str:
    if accuracy is None:
        return "not known"
    if accuracy.agreement is None:
        return f"{accuracy.top1:.2%}"
    if accuracy.low is None or accuracy.high is None or accuracy.low == accuracy.high:
        return f"{accuracy.agreement:.1%}"
    return f"{accuracy.agreement:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%})"


def print_front(console: "Console", answer: FrontAnswer) -> None:
    """Print the table, the controls and their sources."""
    console.print(front_table(answer))
    console.print()
    precision = f" in {answer.best_single_precision}" if answer.best_single_precision else ""
    console.print(f"best single processor: {answer.best_single_ms:.2f} ms on {answer.best_single_processor}{precision}")
    if answer.sequential_same_macs_ms is not None:
        console.print(
            f"sequential network of {answer.sequential_same_macs_ratio:.3f} of the MACs: {answer.sequential_same_macs_ms:.2f} ms "
            f"on {answer.sequential_same_macs_processor}, to be trained"
        )
    console.print(f"10^{answer.space_log10:.1f} designs, {answer.evaluated} ways to run segments timed{_proved(answer)}")
    if any(row.exact and row.branches for row in answer.designs):
        console.print(f"what is exact: {exact_words(answer.rounding)}")
    if answer.sensitivity is not None:
        on = answer.sensitivity
        console.print(
            f"agreement predicted from single segments, calibrated on {on.images} images and compared on {on.held_back} others "
            f"in {on.seconds:.0f} s" + ("" if on.complete else " (not all: more time is more certainty)")
        )


def _proved(answer: FrontAnswer) -> str:
    """What is known of the first of designs that differ, and how long it took."""
    took = f", {answer.seconds['search']:.2f} s" if "search" in answer.seconds else ""
    if answer.objective is None:
        return took
    if answer.optimal:
        return f"; none is better than the first{took}"
    return (f"; none is more than {answer.gap * 100:.2f} % better than the first" if answer.gap is not None else "") + took


def draw_front(answer: FrontAnswer, out: Path) -> None:
    """Draw each design at its predicted time and what that is weighed against, with its interval.

    Args:
        out: ``.svg`` or ``.png`` file.
    """
    figure = front_figure(answer)
    import matplotlib as mpl

    try:
        # Without a date and with fixed names of elements, the same front gives the same file.
        with mpl.rc_context({"svg.hashsalt": "front"}):
            figure.savefig(out, **({"metadata": {"Date": None}} if out.suffix == ".svg" else {}))
    except OSError as error:
        raise StretchError(f"cannot write {out}: {error.strerror}") from error


def front_figure(answer: FrontAnswer) -> "Figure":
    """The figure of `draw_front`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StretchError("pictures of fronts need matplotlib", install_line("plot")) from error
    # the third of three objectives is written beside each design
    across, against, *third = sorted(answer.pareto, key=list(AXES).index)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    times = [value_of(row, across) for row in answer.designs]
    values = [value_of(row, against) for row in answer.designs]
    known = [(row.accuracy.low, row.accuracy.high) if row.accuracy else (None, None) for row in answer.designs]
    low, high = ([value if end is None else end for value, end in zip(values, ends, strict=True)] for ends in zip(*known, strict=True))
    if not third:
        axes.step(times, values, where="post", color="#bbbbbb", zorder=1)
    if against in ("agreement", "accuracy"):
        axes.vlines(times, low, high, color="#1f5fa8", zorder=2)
    for exact, colour, label in ((True, "#1a1a1a", "computes what the original computes, in fp32"), (False, "#1f5fa8", "stretched")):
        some = [i for i, row in enumerate(answer.designs) if row.exact == exact]
        if some:
            axes.scatter([times[i] for i in some], [values[i] for i in some], color=colour, label=label, zorder=3)
    timed = across == "latency"
    if timed:
        single = f"best single processor ({answer.best_single_processor})"
        axes.axvline(answer.best_single_ms, color="#b3541e", linestyle="--", label=single)
    if timed and answer.sequential_same_macs_ms is not None:
        axes.axvline(answer.sequential_same_macs_ms, color="#b3541e", linestyle=":", label="sequential network, same MACs")
    for row, x, y in zip(answer.designs, times, values, strict=True):
        more = "".join(f", {value_of(row, name):.3g}" for name in third)
        axes.annotate(row.name + more, (x, y), textcoords="offset points", xytext=(5, 5), fontsize="small")
    axes.set(xlabel=AXES[across], ylabel=AXES[against] + (f" (beside designs: {AXES[third[0]]})" if third else ""))
    axes.set_title(f"{answer.model} on {', '.join(answer.processors)} of {answer.device}")
    axes.legend(fontsize="small")
    axes.grid(visible=True, alpha=0.2)
    return figure
