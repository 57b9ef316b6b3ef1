"""Small networks of several inputs and outputs: random ones, and one of each common form. Maps are N×4×8×8."""

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import nn

from stretch.network.capture.results import walk_leaves

CHANNELS, SIDE = 4, 8
SHAPE = (1, CHANNELS, SIDE, SIDE)


class Drawn(nn.Module):
    """A network of layers that each read earlier tensors.

    Args:
        inputs: Number of inputs, one to three.
        layers: (kind, number of a tensor, number of a second tensor); inputs have the first numbers.
        returned: Numbers of tensors that are returned in addition to the unread ones.
    """

    def __init__(self, inputs, layers, returned):
        super().__init__()
        torch.manual_seed(0)
        self.layers = [(kind, a % (inputs + i), b % (inputs + i)) for i, (kind, a, b) in enumerate(layers)]
        self.convs = nn.ModuleDict(
            {str(i): nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for i, (kind, _, _) in enumerate(self.layers) if kind == "conv"}
        )
        read = {n for kind, a, b in self.layers for n in ((a, b) if kind in ("add", "mul") else (a,))}
        self.reads_all = set(range(inputs)) <= read
        ends = [n for n in range(inputs, inputs + len(self.layers)) if n not in read]
        extra = [inputs + n % len(self.layers) for n in returned]
        self.ends = list(dict.fromkeys((*ends, *extra)))

    def compute(self, *tensors):
        values = list(tensors)
        for i, (kind, a, b) in enumerate(self.layers):
            match kind:
                case "conv":
                    values.append(self.convs[str(i)](values[a]))
                case "relu":
                    values.append(values[a].relu())
                case _:
                    values.append(values[a] + values[b] if kind == "add" else values[a] * values[b])
        return {"ends": [values[n] for n in self.ends], "first": (values[self.ends[0]],)}


#: Networks of one to three inputs, whose `forward` names the inputs.
KINDS = {
    1: type("One", (Drawn,), {"forward": lambda self, a: self.compute(a)}),
    2: type("Two", (Drawn,), {"forward": lambda self, a, b: self.compute(a, b)}),
    3: type("Three", (Drawn,), {"forward": lambda self, a, b, c: self.compute(a, b, c)}),
}


def shapes(module):
    count = next(count for count, kind in KINDS.items() if type(module) is kind)
    return SHAPE if count == 1 else [SHAPE] * count


@st.composite
def networks(draw):
    """Draw networks in evaluation mode, each with at least one convolution."""
    count = draw(st.sampled_from(sorted(KINDS)))
    number = st.integers(0, 30)
    layers = draw(st.lists(st.tuples(st.sampled_from(["conv", "conv", "relu", "add", "mul"]), number, number), min_size=1, max_size=9))
    layers.insert(draw(st.integers(0, len(layers))), ("conv", draw(number), 0))
    module = KINDS[count](count, layers, draw(st.lists(number, max_size=2))).eval()
    assume(module.reads_all)
    return module


def _stage(width, out, stride=1):
    return nn.Sequential(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class Pyramid(nn.Module):
    """A backbone of three stages, a feature pyramid, and two heads on each map of the pyramid."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(_stage(3, 8), _stage(8, 8), _stage(8, 8))])
        for width in (8, 16):
            self.stages.append(nn.Sequential(_stage(width, 2 * width, 2), _stage(2 * width, 2 * width), _stage(2 * width, 2 * width)))
        self.lateral = nn.ModuleList([nn.Conv2d(width, 8, 1) for width in (8, 16, 32)])
        self.scores, self.boxes = nn.Conv2d(8, 5, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        joined = self.lateral[2](maps[2])
        levels = [joined]
        for number in (1, 0):
            joined = self.lateral[number](maps[number]) + nn.functional.interpolate(joined, scale_factor=2)
            levels.insert(0, joined)
        return {"scores": [self.scores(level) for level in levels], "boxes": [self.boxes(level) for level in levels]}


class Towers(nn.Module):
    """Two towers that are joined, and a result from before the join."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(_stage(3, 8, 2), _stage(8, 8), _stage(8, 8), _stage(8, 16, 2), _stage(16, 16), _stage(16, 16))
        self.mask = nn.Sequential(_stage(1, 8, 2), _stage(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, image, mask, gain=1.0):
        weighed = self.image(image) * self.mask(mask) * gain
        return self.head(weighed.mean((2, 3))), {"map": weighed, "note": None}


class Siamese(nn.Module):
    """One tower that is applied to both inputs."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(_stage(3, 8, 2), _stage(8, 8), _stage(8, 16, 2))

    def forward(self, left, right):
        return self.tower(left) + self.tower(right)


class Deep(nn.Module):
    """Return the end of every stage, like a feature extractor."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(_stage(3, 8), _stage(8, 8), _stage(8, 8))])
        self.stages.append(nn.Sequential(_stage(8, 16, 2), _stage(16, 16), _stage(16, 16)))

    def forward(self, x):
        output = []
        for stage in self.stages:
            x = stage(x)
            output.append(x)
        return output


FORMS = {
    "pyramid": (Pyramid, (1, 3, 16, 16)),
    "towers": (Towers, {"image": (1, 3, 16, 16), "mask": (1, 1, 16, 16)}),
    "siamese": (Siamese, [(1, 3, 16, 16), (1, 3, 16, 16)]),
    "deep": (Deep, (1, 3, 16, 16)),
    "batch": (Towers, {"image": (3, 3, 16, 16), "mask": (3, 1, 16, 16)}),
}


def form(name):
    """Return a network of `FORMS` with random weights and settled batch norms, and its input shapes."""
    from stretch.network.models.weights import settle

    kind, arguments = FORMS[name]
    torch.manual_seed(0)
    module = kind().eval()
    settle(module, arguments, torch.Generator().manual_seed(0))
    return module, arguments


def assert_equal(got, want, slack=1e-4):
    """Assert that two returned structures are equal up to rounding."""
    assert type(got) is type(want)
    for (name, actual), (expected_name, expected) in zip(walk_leaves(got), walk_leaves(want), strict=True):
        assert name == expected_name
        if isinstance(expected, torch.Tensor):
            assert torch.allclose(actual, expected, rtol=0, atol=slack * max(1e-3, float(expected.detach().abs().max())))
        else:
            assert actual == expected
