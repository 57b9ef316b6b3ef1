"""The report of `stretch predict`: one network on the processors of one device."""

from typing import TYPE_CHECKING

from predictors.models.base import ORIGINS
from stretch.report.html.charts import Interval, chart, intervals
from stretch.report.html.page import Fact, Grid, Page, Section
from stretch.stages.predict import PredictedLatency, Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Kernels of a processor that a page lists, the longest first.
_KERNELS = 200


def prediction_page(prediction: Prediction, roofline: "tuple[str, Figure] | None" = None, command: str = "") -> Page:
    """The page of a prediction.

    Args:
        roofline: The kernels on the fastest processor: what the picture shows in words, and the picture.
    """
    ranked = sorted(prediction.processors.items(), key=lambda item: item[1].latency_ms)
    name, best = ranked[0]
    rows = [
        Interval(f"{processor}, {row.precision}", row.latency_ms, row.low_ms, row.high_ms, strong=processor == name)
        for processor, row in ranked
    ]
    words = "; ".join(f"{row.label} {row.value:.2f} ms" for row in rows) + "."
    sections = [
        Section(
            "processors",
            "On each processor",
            (),
            [intervals("processors-chart", "Predicted latency with 90 % intervals", words, rows, "ms"), _table(ranked)],
        )
    ]
    if roofline is not None:
        caption, figure = roofline
        sections.append(
            Section("roofline", "Kernels under the roofline", (), [chart("roofline-chart", f"The kernels on {name}", caption, figure)])
        )
    if any(row.kernels for _, row in ranked):
        sections.append(Section("kernels", "Kernels", (), [_kernels(processor, row) for processor, row in ranked if row.kernels]))
    return Page(
        title=f"{prediction.model} on {prediction.device}, predicted",
        lead=[f"On {name} an inference is predicted to take {best.latency_ms:.2f} ms in {best.precision}, from {ORIGINS[best.origin]}."],
        facts=[
            Fact("fastest processor", name, best.precision),
            Fact(
                "an inference there", f"{best.latency_ms:.2f} ms", f"{best.low_ms:.2f} to {best.high_ms:.2f} ms with a probability of 0.9"
            ),
            Fact("multiply-accumulates", f"{prediction.macs / 1e6:,.0f} M", f"{prediction.params / 1e6:.2f} M parameters"),
        ],
        sections=sections,
        warnings=prediction.warnings,
        made_from=[*([("command", command)] if command else []), ("input", "×".join(map(str, prediction.input)))],
    )


def _table(ranked: list[tuple[str, PredictedLatency]]) -> Grid:
    rows = [
        (
            name,
            row.precision,
            f"{row.latency_ms:.2f}",
            f"{row.low_ms:.2f}",
            f"{row.high_ms:.2f}",
            str(row.kernel_count),
            ORIGINS[row.origin],
        )
        for name, row in ranked
    ]
    return Grid("The same in numbers", ("processor", "precision", "ms", "low", "high", "kernels", "from"), rows, right=(2, 3, 4, 5))


def _kernels(name: str, row: PredictedLatency) -> Grid:
    longest = sorted(row.kernels, key=lambda kernel: -kernel.ms)[:_KERNELS]
    rows = [
        (
            kernel.name,
            kernel.kind,
            str(len(kernel.ops)),
            f"{kernel.macs / 1e6:.2f}",
            f"{kernel.ms:.3f}",
            f"{kernel.ms / row.latency_ms:.1%}",
            kernel.bound,
        )
        for kernel in longest
    ]
    which = f"{len(longest)} longest of {len(row.kernels)} kernels" if len(longest) < len(row.kernels) else f"{len(longest)} kernels"
    return Grid(
        f"{which} on {name}",
        ("kernel", "kind", "operators", "M MACs", "ms", "of the whole", "limited by"),
        rows,
        right=(2, 3, 4, 5),
        folded=True,
    )
