"""Plots of records as SVG: `python -m experiments.plot` draws all of `PLOTS` and `LINES`.

There are two kinds. Dots are on a shared axis, one per row, with their intervals if there are any, so
that rows can be compared without colour. Lines show the rows' numbers, one line per column.
"""

import sys
from dataclasses import dataclass
from math import log10
from pathlib import Path
from xml.sax.saxutils import escape

from experiments.records import read_record
from experiments.render import ROOT

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 330, 40, 26, 64


@dataclass(frozen=True)
class Plot:
    """A picture with one dot per row."""

    record: str  # Path of the record.
    table: str  # Name of the table.
    value: str  # Column of the dots.
    title: str  # Subject of the picture.
    out: str  # Path of the picture.
    spread: str = ""  # Column of half the interval, if there is one.
    other: str = ""  # Column of a second dot, drawn as a ring, if there is one.


@dataclass(frozen=True)
class Lines:
    """Lines of columns over the first column, which counts."""

    record: str  # Path of the record.
    table: str  # Name of the table.
    columns: dict[str, str]  # Columns of the lines with their dashes: lengths of stroke and gap, empty for a solid line.
    title: str  # Subject of the picture.
    out: str  # Path of the picture.


LINES = (
    Lines(
        "experiments/contention/results/simulated.json",
        "latencies",
        {"cpu,gpu": "2 4", "gpu,dsp": "8 4", "changing between them": ""},
        "Latency of each inference, ms (logarithmic), simulated",
        "experiments/contention/latencies.svg",
    ),
)

_SUPERNET = "experiments/supernet/results/h200.json"
_CIFAR = "experiments/cifar_accuracy"
#: Record, table, title and picture of accuracies on CIFAR-10.
_ACCURACIES = (
    ("h200", "accuracy", "Branched and sequential ResNet-56 at equal cost", "accuracy"),
    ("latency", "meeting_points", "Number of meeting points", "meeting_points"),
    ("h200_scaling", "strategies", "Ways to scale", "strategies"),
    ("h200_scaling", "replication", "Replicated, before scaling", "replication"),
    ("h200_scaling", "ratios", "Scaling ratios at equal cost", "ratios"),
    ("h200_scaling", "distillation", "Distillation", "distillation"),
)
PLOTS = (
    *(
        Plot(
            f"{_CIFAR}/results/{record}.json",
            table,
            "top-1 %",
            f"{title}: top-1 %, 95 % interval",
            f"{_CIFAR}/{out}.svg",
            "95 % interval ±",
        )
        for record, table, title, out in _ACCURACIES
    ),
    Plot(
        "experiments/calibration/results/h200.json",
        "calibration",
        "of the parent's %",
        "Start without training, and training on: % of the original's accuracy",
        "experiments/calibration/calibration.svg",
    ),
    Plot(
        _SUPERNET,
        "subnets",
        "subnet, largest teaches",
        "Top-1 %: subnet of the supernet (dot), trained alone (ring)",
        "experiments/supernet/subnets.svg",
        "± of 3",
        "alone, 40 epochs",
    ),
)


def _head(title: str, height: int) -> list[str]:
    """Return the first lines of a picture."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        'aria-labelledby="title" font-family="sans-serif" font-size="13" fill="#1a1a1a">',
        f'  <title id="title">{escape(title)}</title>',
        f'  <rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'  <text x="20" y="28" font-weight="bold">{escape(title)}</text>',
    ]


def draw(plot: Plot, root: Path = ROOT) -> str:
    """Draw a picture with one dot per row as SVG.

    Args:
        plot: Plot to draw.
        root: Folder that the record's path is relative to.

    Raises:
        StretchError: If there is no such record.
    """
    rows = read_record(root / plot.record).tables[plot.table]
    points = [(str(next(iter(row.values()))), row[plot.value], row.get(plot.spread), row.get(plot.other)) for row in rows]
    numbers = [float(value) + sign * float(spread or 0) for _, value, spread, _ in points if value is not None for sign in (-1, 1)]
    numbers += [float(other) for *_, other in points if other is not None]
    low, high = min(numbers), max(numbers)
    margin = (high - low) * 0.05 or 1.0
    low, high = low - margin, high + margin
    height = TOP + ROW * len(points) + 40

    def x(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    bottom = TOP + ROW * len(points)
    parts = _head(plot.title, height)
    for step in range(5):
        value = low + (high - low) * step / 4
        parts.append(f'  <path d="M{x(value)} {TOP - 14}V{bottom}" stroke="#dddddd"/>')
        parts.append(f'  <text x="{x(value)}" y="{bottom + 20}" text-anchor="middle">{value:.1f}</text>')
    for number, (name, value, spread, other) in enumerate(points):
        y = TOP + ROW * number
        parts.append(f'  <text x="{LEFT - 16}" y="{y + 5}" text-anchor="end">{escape(name)}</text>')
        if value is not None:
            if spread:
                parts.append(
                    f'  <path d="M{x(float(value) - float(spread))} {y}H{x(float(value) + float(spread))}" stroke="#1f5fa8" stroke-width="2"/>'
                )
            parts.append(f'  <circle cx="{x(float(value))}" cy="{y}" r="5" fill="#1f5fa8"/>')
        if other is not None:
            parts.append(f'  <circle cx="{x(float(other))}" cy="{y}" r="5" fill="none" stroke="#b3541e" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_lines(plot: Lines, root: Path = ROOT) -> str:
    """Draw a picture of lines as SVG, with values on a logarithmic axis.

    Args:
        plot: Plot to draw.
        root: Folder that the record's path is relative to.

    Raises:
        StretchError: If there is no such record.
    """
    rows = read_record(root / plot.record).tables[plot.table]
    count = [float(next(iter(row.values())) or 0) for row in rows]
    values = {column: [float(row[column] or 0) for row in rows] for column in plot.columns}
    every = [log10(value) for column in values.values() for value in column]
    low, high = min(every), max(every)
    left, right, top, bottom = 70, WIDTH - RIGHT, TOP + ROW * len(values), TOP + ROW * len(values) + 260

    def at(number: float, value: float) -> str:
        x = left + (number - count[0]) / (count[-1] - count[0]) * (right - left)
        return f"{x:.1f} {bottom - (log10(value) - low) / (high - low) * (bottom - top):.1f}"

    parts = _head(plot.title, bottom + 50)
    for step in range(5):
        value = 10 ** (low + (high - low) * step / 4)
        y = at(count[0], value).split()[1]
        parts.append(f'  <path d="M{left} {y}H{right}" stroke="#dddddd"/>')
        parts.append(f'  <text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{value:.0f}</text>')
        number = count[0] + (count[-1] - count[0]) * step / 4
        x = at(number, 10**low).split()[0]
        parts.append(f'  <text x="{x}" y="{bottom + 20}" text-anchor="middle">{number:.0f}</text>')
    parts.append(f'  <text x="{(left + right) / 2:.0f}" y="{bottom + 40}" text-anchor="middle">{escape(next(iter(rows[0])))}</text>')
    for place, (column, dashes) in enumerate(plot.columns.items()):
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        y = TOP - 14 + ROW * place
        parts.append(f'  <path d="M{left} {y}h40" stroke="#1f5fa8" stroke-width="2"{dashed}/>')
        parts.append(f'  <text x="{left + 50}" y="{y + 4}">{escape(column)}</text>')
        points = "L".join(at(*pair) for pair in zip(count, values[column], strict=True))
        parts.append(f'  <path d="M{points}" fill="none" stroke="#1f5fa8" stroke-width="2"{dashed}/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Draw every picture."""
    for lines in LINES:
        (ROOT / lines.out).write_text(draw_lines(lines))
        sys.stdout.write(f"{lines.out}\n")
    for plot in PLOTS:
        (ROOT / plot.out).write_text(draw(plot))
        sys.stdout.write(f"{plot.out}\n")


if __name__ == "__main__":
    main()
