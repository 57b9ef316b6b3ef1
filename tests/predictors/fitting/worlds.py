"""Synthetic measurements with known truth: small networks of several families, and times that follow a formula."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from predictors.devices import Processor, load_device
from predictors.fitting.networks import Networks, design, load_formula, processor_grain
from predictors.graph import OpGraph
from predictors.measurements.networks import LATENCIES, NETWORKS, SOURCE, Measurements, Source, write_networks
from predictors.measurements.tables import KernelLatency, Latency, write_table
from tests.predictors.networks import Net

MADE_UP = Source("a world of a test", "", "", "none", "times follow a formula")

DEVICE = "pixel4"


KINDS = {"plain": (3, 3, 3), "narrow": (3, 1, 1, 1), "mixed": (3, 1, 3, 1, 3), "mobile": (3, 1, 1), "mobile2": (3, 1, 1, 1)}


def networks(count: int = 20) -> tuple[dict[str, OpGraph], dict[str, str]]:
    """Networks and their families, which differ in depth, windows (1×1, 3×3) and depthwise convolutions; widths are random."""
    graphs, families = {}, {}
    for number in range(count):
        family, draw, net = list(KINDS)[number % len(KINDS)], np.random.default_rng(number), Net(1, 3, 64, 64)
        for index, window in enumerate(KINDS[family]):
            width = int(draw.integers(2, 9)) * 8
            net.conv(width, window, stride=2 if index % 3 == 0 else 1)
            if family.startswith("mobile"):
                net.conv(width, 3, groups=width)
        net.head(10)
        name = f"{family}_{number}"
        graphs[name], families[name] = net.graph(name), family
    return graphs, families


def processor(name: str = "cpu[1large]") -> Processor:
    return load_device(DEVICE).processor(name)


def whole_world(noise: float = 0.0, count: int = 20) -> Measurements:
    """Networks timed on two devices by the formula's priors, with relative noise; the second device is twice as slow."""
    graphs, families = networks(count)
    built = design(Networks(graphs, families, "tflite_cpu"), load_formula("tflite_cpu"), processor_grain(processor(), "fp32"), "fp32")
    sizes = np.array([prior.compute * 5e-8 + prior.memory * 1e-7 + prior.launch * 2e-3 for prior in built.priors("fp32")])
    draw = np.random.default_rng(0)
    times = built.units @ sizes
    rows = [
        Latency(device, name, "cpu", core_set, "fp32", "r", float(ms * factor * np.exp(noise * draw.standard_normal())), None)
        for device, slow in ((DEVICE, 1.0), ("other", 2.0))
        for core_set, factor in (("1large", slow), ("2med", 0.6 * slow), ("1med", 1.1 * slow))
        for name, ms in zip(built.names, times, strict=True)
    ]
    return Measurements(MADE_UP, graphs, families, rows)


def kernel_world(count: int = 20) -> Measurements:
    """Networks whose GPU kernels take 1 µs plus 1 ns per output; each inference takes 0.5 ms more."""
    graphs, families = networks(count)
    measured = Networks(graphs, families, "tflite_gpu_adreno")
    kernels, rows = [], []
    for name, costs in measured.costs.items():
        total = 0.5
        for index, cost in enumerate(costs):
            ms = 1e-3 + 1e-6 * cost.writes
            total += ms
            kernels.append(KernelLatency(DEVICE, name, "gpu", "all", "fp16", "r", f"k{index}", "", *cost, ms))
        rows.append(Latency(DEVICE, name, "gpu", "all", "fp16", "r", total, None))
    return Measurements(MADE_UP, graphs, families, rows, kernels)


def write_world(folder: Path) -> None:
    """Write the measurements of `whole_world` to a folder."""
    world = whole_world(noise=0.02, count=15)
    folder.mkdir()
    write_networks(folder / NETWORKS, [(name, world.families[name], graph) for name, graph in world.graphs.items()])
    write_table(folder / LATENCIES, world.latencies)
    lines = [f'{name} = "{getattr(MADE_UP, name)}"' for name in ("title", "url", "commit", "licence", "notes")]
    (folder / SOURCE).write_text("\n".join(lines) + "\n")


@contextmanager
def nothing_borrowed() -> Iterator[None]:
    """Fit without borrowed kernels of transformers: fitting their pool takes time, and these networks have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("predictors.fitting.fit.BORROWED_FITS", {})
        yield
