"""Small networks around one operator, and random ones of several, branched and compared with torch and as bundles."""

import warnings

import numpy as np
import onnx
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import stretch
from scheduler import Session
from scheduler.checks.verify import verify_bundle
from stretch.network.capture.results import walk_leaves

IMAGE = (1, 3, 24, 24)


class Around(nn.Module):
    """Two convolutions, then a function of their map of 16 channels and of the given layers."""

    def __init__(self, function, layers=()):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.layers = nn.ModuleList(layers)
        self.function = function
        self.eval()

    def forward(self, x):
        return self.function(self.stem(x), *self.layers)


def tokens(x):
    """Return the columns of a map as a sequence, N×W×C."""
    return x.mean(2).transpose(1, 2)


def given(shapes, seed=1):
    """Return random tensors of the given shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def compared(got, want, slack=1e-4):
    """Assert that two lists of tensors or arrays are equal up to rounding."""
    assert [tuple(a.shape) for a in got] == [tuple(b.shape) for b in want]
    for a, b in zip(got, want, strict=True):
        expected = np.asarray(b, np.float64)
        assert np.abs(np.asarray(a, np.float64) - expected).max() <= slack * max(1e-3, np.abs(expected).max())


def branched(module, shapes=IMAGE, folder=None, device="mi9", **options):
    """Branch a network exactly and compare it with torch; with a folder, also run and verify its bundle."""
    result = stretch.branch(module, device, input_shape=shapes, out=folder, lossless=True, **options)
    inputs = given(op.shape for op in result.plan.graph.inputs)
    with torch.no_grad():
        want, got = (dict(walk_leaves(network(*inputs))) for network in (module, result.model))
    assert [value.dtype for value in got.values()] == [value.dtype for value in want.values()]
    compared(list(got.values()), list(want.values()))
    if folder is not None:
        fed = {op.name: x.numpy() for op, x in zip(result.plan.graph.inputs, inputs, strict=True)}
        with Session(folder, dict.fromkeys(result.plan.design.processors, "cpu")) as session, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = session.run(fed)
        compared(list(answer.values()) if isinstance(answer, dict) else [answer], list(want.values()))
        assert verify_bundle(folder).ok
    return result


def nodes(path, *kinds):
    """Return the number of nodes of the given types in a file."""
    return sum(node.op_type in kinds for node in onnx.load(str(path)).graph.node)


class Drawn(nn.Module):
    """A stem of 8 channels and a sequence of steps: layers, or names of computations in `forward`."""

    def __init__(self, steps, end):
        super().__init__()
        torch.manual_seed(0)
        self.steps, self.end = [nn.Conv2d(3, 8, 3, padding=1), *steps], end
        self.layers = nn.ModuleList(step for step in self.steps if isinstance(step, nn.Module))
        self.eval()

    def forward(self, x):
        for step in self.steps:
            match step:
                case "skip":
                    x = x + F.gelu(x)
                case "topk":
                    values, places = x.flatten(2).topk(2, 2)
                    x = x + values.sum() * 0.01 + places.float().mean() * 0.001
                case "scalar":
                    x = x / (1 + x.abs().mean())
                case _:
                    x = step(x)
        vector = x.mean((2, 3))
        return {"vector": vector, "map": x, "both": (vector, x), "scalar": vector.square().sum()}[self.end]


@st.composite
def networks(draw):
    """Draw networks, with grouped convolutions of all ratios of channels among their operators."""
    channels, steps = 8, []
    for kind in draw(st.lists(st.sampled_from(["grouped", "turned", "norm", "skip", "topk", "scalar"]), min_size=1, max_size=4)):
        groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
        out = groups * draw(st.integers(1, 24 // groups))
        convs = {"grouped": nn.Conv2d(channels, out, 3, 1, 1, 1, groups), "turned": nn.ConvTranspose2d(channels, out, 2, 2, 0, 0, groups)}
        steps.append(convs.get(kind) or (nn.GroupNorm(groups, channels) if kind == "norm" else kind))
        channels = out if kind in convs else channels
    return Drawn(steps, draw(st.sampled_from(["vector", "map", "both", "scalar"])))
