"""Roofline plot of the kernels of a network on a processor."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.devices import ITEM_BYTES, DeviceProfile
from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.install import install_line
from predictors.models.base import ORIGINS
from predictors.predictor import Estimate, LatencyPredictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Where the roof bends is shown with this many times less and more intensity at least.
_MARGIN = 4.0


def draw_roofline(graph: OpGraph, device: DeviceProfile, processor: str, precision: str | None, out: Path) -> None:
    """Draw each kernel at its operations per byte and its predicted operations per second.

    Args:
        precision: At what precision; the processor's default if None.
        out: ``.svg`` or ``.png`` file.
    """
    estimate = LatencyPredictor(device).predict(graph, processor, precision)
    _, figure = roofline_figure(graph.name, estimate, device, processor)
    try:
        # Without a date and with fixed names of elements, the same kernels give the same file.
        figure.savefig(out, **({"metadata": {"Date": None}} if out.suffix == ".svg" else {}))
    except OSError as error:
        raise StretchError(f"cannot write {out}: {error.strerror}") from error


def roofline_figure(name: str, estimate: Estimate, device: DeviceProfile, processor: str) -> tuple[str, "Figure"]:
    """Caption and figure of the roofline plot.

    The roof is the peak of the profile and the bandwidth of its memory; the area of a
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
        axes.scatter(
            [x for x, _, _ in rows],
            [y for _, y, _ in rows],
            [8 + 1200 * share for _, _, share in rows],
            alpha=0.6,
            label=kind,
            marker=marker,
        )
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="10⁹ operations a second")
    title = name.replace("$", r"\$")
    axes.set_title(f"{title} on {processor} of {device.id} in {estimate.precision}: {estimate.ms:.2f} ms, from {ORIGINS[estimate.origin]}")
    axes.legend(markerscale=0.5, fontsize="small")
    axes.grid(visible=True, which="both", alpha=0.2)
    below = sum(share for _, x, _, share in points if x < bend)
    words = (
        f"Kernels that do fewer than {bend:.3g} operations a byte are limited by memory even at best: they take {below:.0%} of the time; "
        "the area of a dot is its kernel's share."
    )
    return words, figure


def kernel_points(estimate: Estimate) -> Sequence[tuple[str, float, float, float]]:
    """Kind, operations per byte, 10⁹ operations a second and share of the time of each kernel that multiplies."""
    item = ITEM_BYTES[estimate.precision]
    return [
        (
            kernel.kernel.cost.kind,
            2 * kernel.kernel.macs / ((kernel.kernel.cost.reads + kernel.kernel.cost.writes + kernel.kernel.cost.weights) * item),
            2 * kernel.kernel.macs / (kernel.time.ms * 1e6),
            kernel.time.ms / estimate.ms,
        )
        for kernel in estimate.kernels
        if kernel.kernel.macs
    ]
