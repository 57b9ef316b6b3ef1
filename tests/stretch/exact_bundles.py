"""A bundle of a small network with odd sizes, divided into bands of rows and along its parallel paths."""

import numpy as np
import torch
from torch import nn

from scheduler.bundle.load import load_bundle
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.network.capture import capture
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import cut_segment
from stretch.transform import build
from tests.stretch.designs import in_bands, whole

#: Odd sizes that the strides below do not divide evenly.
HEIGHT, WIDTH = 37, 29


class Module(nn.Module):
    """Four parallel paths, as in Inception."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            [
                nn.Conv2d(channels, 4, 1),
                nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1)),
                nn.Sequential(nn.Conv2d(channels, 4, 1), nn.Conv2d(4, 4, 5, padding=2)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(channels, 4, 1)),
            ]
        )

    def forward(self, x):
        return torch.cat([path(x) for path in self.paths], 1)


def network():
    torch.manual_seed(3)
    down = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 12, 5, 2, 2, groups=4), nn.MaxPool2d(2, 2, ceil_mode=True))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 7)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), down, Module(12), nn.ReLU(), nn.Conv2d(20, 20, 3, padding=1), *head).eval()


def designed(graph, second="gpu"):
    """Make a design for two processors: bands after the stem, then parallel paths, then bands again."""
    pools = [op.name for op in graph.ops if op.kind == "max_pool"]
    (cat,) = (op.name for op in graph.ops if op.kind == "concat")
    last = [op.name for op in graph.ops if op.kind == "conv"][-1]
    bounds = [("stem", "input", "0"), ("s1", "0", pools[0]), ("s2", pools[0], cat), ("s3", cat, last), ("head", last, graph.output)]
    parts = []
    for name, start, end in bounds:
        segment = cut_segment(graph, name, start, end)
        if name == "s2":
            current = (("cpu", (0, 2)), (second, (2, 4)))
            branches = tuple(BranchScale(p, segment.depth, segment.width, paths=item) for p, item in current)
            parts.append(SegmentDesign(name, start, end, branches, "paths"))
        elif name in ("s1", "s3"):
            parts.append(in_bands(segment, ("cpu", second)))
        else:
            parts.append(whole(segment))
    return BranchDesign(graph.name, "mi9", tuple(parts))


def made(folder, second="gpu", batch=1):
    captured = capture(network(), (batch, 3, HEIGHT, WIDTH), "net")
    facts = BundleFacts("mi9", False, "random")
    export_bundle(folder, captured, build(captured, designed(captured.graph, second)), None, facts)
    return load_bundle(folder, check_hashes=True)


def images(count=8):
    return [np.random.default_rng(i).standard_normal((1, 3, HEIGHT, WIDTH)).astype(np.float32) for i in range(count)]


def original(x):
    with torch.inference_mode():
        return network()(torch.from_numpy(x)).numpy()


def near(got, want, tolerance=1e-5):
    return np.abs(got - want).max() <= tolerance * np.abs(want).max()
