"""Reports of `stretch predict`, for one network or many, and of a refused plan."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.devices import ITEM_BYTES, DeviceProfile
from predictors.errors import InfeasibleError, StretchError, install_line
from predictors.files import write_whole
from predictors.models.roofline import ORIGINS
from predictors.predictor import Estimate
from stretch.report.brief import prediction_brief
from stretch.report.html.page import Chart, ChartInterval, Fact, Grid, Page, Section, intervals
from stretch.stages.predict import PredictedLatency, PredictedRow, Prediction, PredictionTable, by_latency

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of kernels per processor in a report, the longest first.
_KERNELS = 200

#: Minimum factor by which the plot extends below and above the intensity at the roof's bend.
_MARGIN = 4.0


def prediction_page(
    prediction: Prediction,
    roofline: "Callable[[], tuple[str, Figure]] | None" = None,
    *,
    list_kernels: bool = True,
    following: str = "",
) -> Page:
    """Return the report of a prediction; `list_kernels` shows kernels on a terminal, `following` is the next command."""
    rows_by_time = by_latency(prediction.processors)
    name = rows_by_time[0][0]
    rows = [(processor, row.precision, *_times(row), str(row.kernel_count), _origin(row)) for processor, row in rows_by_time]
    titles = ("processor", "precision", "ms", "low", "high", "kernels", "from")
    numbers = Grid("Predicted latencies", titles, rows, right=(2, 3, 4, 5))
    sections = [Section("processors", "On each processor", (), [_single_processors("processors-chart", rows_by_time), numbers])]
    if roofline is not None:
        caption, figure = roofline()
        drawn = Chart("roofline-chart", f"The kernels on {name}", caption, lambda: figure)
        sections.append(Section("roofline", "Kernels under the roofline", (), [drawn]))
    if any(row.kernels for _, row in rows_by_time):
        grids = [_kernels(processor, row) for processor, row in rows_by_time if row.kernels]
        sections.append(Section("kernels", "Kernels", (), grids, printed=list_kernels))
    return Page(
        title=f"{prediction.model} on {prediction.device}, predicted",
        sections=sections,
        warnings=prediction.warnings,
        made_from=[("input", "×".join(map(str, prediction.input)))],
        brief=prediction_brief(prediction, following),
    )


def predictions_page(table: PredictionTable) -> Page:
    """Return the report of many networks on many devices."""
    rows = [
        (row.model, row.device, row.processor, row.precision, f"{row.macs / 1e6:.1f}", *_times(row), ORIGINS[row.origin])
        for row in table.items
    ]
    titles = ("model", "device", "processor", "precision", "MMACs", "predicted ms", "low", "high", "from")
    return Page(
        title=f"{len(rows)} predictions",
        lead=[],
        sections=[Section("rows", "Predictions", (), [Grid("Each network on each processor", titles, rows, right=(4, 5, 6, 7))])],
        warnings=table.warnings,
        notes=[f"{failure.model}: {failure.reason}" for failure in table.failed],
    )


def _times(row: PredictedLatency | PredictedRow) -> Iterator[str]:
    """Yield the predicted time and the ends of its interval."""
    return (f"{ms:.2f}" for ms in (row.latency_ms, row.low_ms, row.high_ms))


def _origin(row: PredictedLatency) -> str:
    """Return a text on the source of a time, and on whether plans only use the processor on request."""
    return ORIGINS[row.origin] + ("; plans use it only where --processors names it" if row.optional else "")


def _range(row: PredictedLatency) -> str:
    return f"{row.low_ms:.2f} to {row.high_ms:.2f} ms, 90 % interval"


def _single_processors(chart: str, ranked: Sequence[tuple[str, PredictedLatency]]) -> Chart:
    """Return a chart of the times on each processor, the fastest first."""
    rows = [
        ChartInterval(f"{name}, {row.precision}", row.latency_ms, row.low_ms, row.high_ms, strong=i == 0)
        for i, (name, row) in enumerate(ranked)
    ]
    words = "; ".join(f"{row.label} {row.value:.2f} ms" for row in rows) + "."
    return intervals(chart, "The network on each processor, predicted, with 90 % intervals", words, rows, "ms")


def _kernels(name: str, row: PredictedLatency) -> Grid:
    longest = sorted(row.kernels, key=lambda kernel: -kernel.ms)[:_KERNELS]
    rows = []
    for kernel in longest:
        numbers = str(len(kernel.ops)), f"{kernel.macs / 1e6:.2f}", f"{kernel.ms:.3f}", f"{kernel.ms / row.latency_ms:.1%}"
        rows.append((kernel.name, kernel.kind, *numbers, kernel.bound))
    which = f"{len(longest)} longest of {len(row.kernels)} kernels" if len(longest) < len(row.kernels) else f"{len(longest)} kernels"
    titles = ("kernel", "kind", "operators", "M MACs", "ms", "of the whole", "limited by")
    return Grid(f"{which} on {name}", titles, rows, right=(2, 3, 4, 5), folded=True)


def refusal_page(model: str, device: str, error: InfeasibleError, alone: Mapping[str, PredictedLatency]) -> Page:
    """Return the report of a refused plan; `alone` has the predictions on each single processor."""
    sections = []
    if error.rules:
        rows = [
            (rule.rule, _shown_text(rule.value), "none found" if rule.nearest is None else _shown_text(rule.nearest))
            for rule in error.rules
        ]
        words = ["No design meets these limits together. Each row has the nearest value with a design."]
        grid = Grid("Limits to relax", ("limit", "asked for", "nearest with a design"), rows)
        sections.append(Section("limits", "Limits without a design", words, [grid]))
    facts = []
    if alone:
        rows_by_time = by_latency(alone)
        name, best = rows_by_time[0]
        facts = [
            Fact("run it on", name, f"{best.precision}, from {ORIGINS[best.origin]}"),
            Fact("predicted there", f"{best.latency_ms:.2f} ms", _range(best)),
        ]
        words = ["Times of the unchanged original, on one processor at a time."]
        sections.append(Section("alone", "As it is", words, [_single_processors("alone", rows_by_time)]))
    return Page(
        title=f"{model} on {device}: no branches",
        lead=[f"{_sentence(error.message)}", *([_sentence(error.hint)] if error.hint else [])],
        facts=facts,
        sections=sections,
        refused=True,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


def _shown_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_figure(figure: "Figure", out: Path) -> None:
    """Write a figure as an ``.svg`` or ``.png`` file, without a date and with fixed ids, so that equal numbers yield an equal file."""
    import matplotlib as mpl

    picture = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "nn-stretch"}):
        figure.savefig(picture, format=out.suffix[1:], metadata={"Date": None} if out.suffix == ".svg" else None)
    write_whole(out, picture.getvalue(), "picture")


def roofline_figure(name: str, estimate: Estimate, device: DeviceProfile, processor: str) -> tuple[str, "Figure"]:
    """Return the caption and figure of the roofline plot.

    The roof is the profile's peak throughput and memory bandwidth; the area of a
    dot is the kernel's share of the time.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StretchError("pictures of rooflines need matplotlib", install_line("plot")) from error
    cores = device.processor(processor).cores
    peak, bandwidth = cores.peak_gops[estimate.precision].value, cores.bandwidth_gbs.value
    points = kernel_points(estimate)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    bend = peak / bandwidth
    ends = [min([bend / _MARGIN, *(x for _, x, _, _ in points)]), max([bend * _MARGIN, *(x for _, x, _, _ in points)])]
    axes.plot([ends[0], bend, ends[1]], [ends[0] * bandwidth, peak, peak], color="black", label=f"{bandwidth:g} GB/s, {peak:g} Gop/s")
    for kind, marker in zip(dict.fromkeys(kind for kind, *_ in points), itertools.cycle("osD^vP*X")):
        rows = [(x, y, share) for point_kind, x, y, share in points if point_kind == kind]
        xs, ys, shares = zip(*rows, strict=True)
        axes.scatter(xs, ys, [8 + 1200 * share for share in shares], alpha=0.6, label=kind, marker=marker)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="10⁹ operations a second")
    title = name.replace("$", r"\$")
    axes.set_title(f"{title} on {processor} of {device.id} in {estimate.precision}: {estimate.ms:.2f} ms, from {ORIGINS[estimate.origin]}")
    axes.legend(markerscale=0.5, fontsize="small")
    axes.grid(visible=True, which="both", alpha=0.2)
    memory_bound = sum(share for _, x, _, share in points if x < bend)
    words = (
        f"Kernels that do fewer than {bend:.3g} operations a byte are limited by memory even at best: they take {memory_bound:.0%} of the time; "
        "the area of a dot is its kernel's share."
    )
    return words, figure


def kernel_points(estimate: Estimate) -> Sequence[tuple[str, float, float, float]]:
    """Return the kind, operations per byte, 10⁹ operations per second and share of the time of each kernel with multiply-accumulates."""
    item, points = ITEM_BYTES[estimate.precision], []
    for kernel in estimate.kernels:
        cost, operations, ms = kernel.kernel.cost, 2 * kernel.kernel.macs, kernel.time.ms
        if operations:
            intensity = operations / ((cost.reads + cost.writes + cost.weights) * item)
            points.append((cost.kind, intensity, operations / (ms * 1e6), ms / estimate.ms))
    return points
