"""Random small networks whose channels can be divided, and designs that divide them."""

import itertools

import torch
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.slices import Channels, width
from stretch.network.capture import Captured, capture
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.divisions.channels import channel_part, channel_step, divided_tensor, is_between_groups
from stretch.planning.network.segments import Segment, cut_points, cut_segment
from tests.stretch.designs import cut_at_random, whole

WIDTH = 8
JOINS = ("channels", "partial_sums")


class Skip(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x):
        return self.shortcut(x) + self.body(x)


class Scale(nn.Module):
    """A learned factor per channel, as after the blocks of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        return x * self.factor


class Pair(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return torch.cat([self.left(x), self.right(x)], 1)


def _act(draw: st.DrawFn) -> nn.Module:
    return draw(st.sampled_from([nn.ReLU, nn.ReLU6, nn.Hardswish, nn.GELU]))()


def _inverted(draw: st.DrawFn) -> nn.Module:
    """Draw an inverted residual: expanding, depthwise or grouped, and projecting layer, with any norms and biases."""
    hidden, size = draw(st.sampled_from([12, 16])), draw(st.sampled_from([1, 3]))
    groups = draw(st.sampled_from([hidden, hidden // 2, hidden // 4]))
    layers: list[nn.Module] = [nn.Conv2d(WIDTH, hidden, 1, bias=draw(st.booleans()))]
    layers += [nn.BatchNorm2d(hidden)] * draw(st.integers(0, 1)) + [_act(draw)]
    layers += [nn.Conv2d(hidden, hidden, size, padding=size // 2, groups=groups, bias=draw(st.booleans())), _act(draw)]
    layers += [nn.Conv2d(hidden, WIDTH, 1, bias=draw(st.booleans()))]
    layers += [nn.BatchNorm2d(WIDTH, affine=draw(st.booleans()))] * draw(st.integers(0, 1))
    layers += [Scale(WIDTH)] * draw(st.integers(0, 1)) + [nn.AvgPool2d(2)] * draw(st.integers(0, 1))
    body = nn.Sequential(*layers)
    shortcuts = [None, nn.Conv2d(WIDTH, WIDTH, 1, bias=draw(st.booleans()))]
    return body if any(isinstance(m, nn.AvgPool2d) for m in layers) else Skip(body, draw(st.sampled_from(shortcuts)))


def _basic(draw: st.DrawFn) -> nn.Module:
    """Draw two full convolutions with a skip connection; the hidden tensor is between them."""
    stride, hidden = draw(st.integers(1, 2)), draw(st.sampled_from([6, 12]))
    body = [nn.Conv2d(WIDTH, hidden, 3, stride, 1), nn.BatchNorm2d(hidden), _act(draw)]
    body += [nn.Conv2d(hidden, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH)]
    return Skip(nn.Sequential(*body), nn.Conv2d(WIDTH, WIDTH, 1, stride) if stride > 1 else None)


def _large(draw: st.DrawFn) -> nn.Module:
    """Draw a dense or grouped convolution with channel-wise layers after it."""
    groups = draw(st.sampled_from([1, 1, 2, 4, WIDTH]))
    conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=groups, bias=draw(st.booleans()))
    pool = [draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))(2)] * draw(st.integers(0, 1))
    return nn.Sequential(conv, nn.BatchNorm2d(WIDTH), nn.PReLU(WIDTH), *pool)


def _pair(draw: st.DrawFn) -> nn.Module:
    left = draw(st.sampled_from([2, 4]))
    return Pair(nn.Sequential(nn.Conv2d(WIDTH, left, 3, padding=1), _act(draw)), nn.Conv2d(WIDTH, WIDTH - left, 1))


BLOCKS = {"inverted": _inverted, "basic": _basic, "large": _large, "pair": _pair}


@st.composite
def networks(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(BLOCKS)) -> Captured:
    """Draw a stem, one to three blocks and a head of linear layers, with random weights and statistics."""
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    blocks = [BLOCKS[kind](draw) for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))]
    head = [nn.Flatten()] if draw(st.booleans()) else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    size = draw(st.integers(9, 14))
    net = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), *blocks, *head)
    features = net.eval()(torch.zeros(1, 3, size, size)).shape[1]
    net.extend([nn.Linear(features, 20, bias=draw(st.booleans())), _act(draw), nn.Linear(20, 6, bias=draw(st.booleans()))])
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight, 1, 0.2)
                nn.init.normal_(module.bias, 0, 0.3)
    return capture(net.eval(), (1, 3, size, size), "net")


@st.composite
def divided(
    draw: st.DrawFn, graph: OpGraph, processors: tuple[str, ...] = ("cpu", "gpu", "dsp"), joins: tuple[str, ...] = JOINS
) -> BranchDesign:
    """Draw segments between any cut points, each divided by channels over two or three processors if possible."""
    # no cut directly after a flattening: nothing of the next segment could stay whole
    cuts = [name for name in cut_points(graph) if graph.by_name[name].kind != "flatten"]
    parts = (_part(draw, segment, processors, joins) for segment in cut_at_random(draw, graph, cuts[1:-1], 4))
    return BranchDesign(graph.name, "test", tuple(parts))


def _part(draw: st.DrawFn, segment: Segment, processors: tuple[str, ...], joins: tuple[str, ...]) -> SegmentDesign:
    part = {join: divisions(segment, join) for join in joins}
    able = [join for join, (places, _) in part.items() if places]
    if not able:
        return whole(segment)
    join = draw(st.sampled_from(able))
    places, total = part[join]
    inner = sorted(draw(st.lists(st.sampled_from(places), min_size=1, max_size=len(processors) - 1, unique=True)))
    return in_channels(segment, join, [0, *inner, total], processors)


def divisions(segment: Segment, join: str) -> tuple[list[int], int]:
    """Return channels after which a branch may end, and the number of channels; ([], 0) if nothing can be divided."""
    hidden = join == "partial_sums"
    try:
        tensor = divided_tensor(segment.graph, hidden=hidden)
        total = width(segment.graph.by_name[tensor].shape)
        steps = list(range(channel_step(segment.graph, tensor), total, channel_step(segment.graph, tensor)))
        places = [n for n in steps[:: -(-len(steps) // 16) or 1] if is_between_groups(segment.graph, tensor, Channels(0, n))]
        for part in itertools.pairwise([0, *places, total]):
            channel_part(segment.graph, "part", Channels(*part), hidden=hidden)
    except StretchError:
        return [], 0
    return places, total


def in_channels(segment: Segment, join: str, bounds: list[int], processors: tuple[str, ...] = ("cpu", "gpu", "dsp")) -> SegmentDesign:
    """Divide the channels of a segment at the bounds."""
    branches = tuple(
        BranchScale(processor, segment.depth, segment.width, align=1, channels=part)
        for processor, part in zip(processors, itertools.pairwise(bounds), strict=False)
    )
    return SegmentDesign(segment.name, segment.start, segment.end, branches, join)


class Small(nn.Module):
    """A small inverted-residual network, followed by a large convolution and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.blocks = nn.ModuleList([self._block(8, 24, 2), self._block(12, 48), self._block(12, 48)])
        self.last = nn.Sequential(nn.Conv2d(12, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
        self.linear = nn.Sequential(nn.Linear(64, 32), nn.Hardswish(), nn.Linear(32, 10))

    @staticmethod
    def _block(channels: int, hidden: int, stride: int = 1) -> nn.Module:
        expand = [nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        each = [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        return nn.Sequential(*expand, *each, nn.Conv2d(hidden, 12, 1, bias=False), nn.BatchNorm2d(12))

    def forward(self, x):
        first, *others = self.blocks
        x = first(self.stem(x))
        for block in others:
            x = block(x) + x
        return self.linear(self.last(x).mean((2, 3)))


#: Cut points at which the blocks of `small` end.
ENDS = ("stem_2", "blocks_0_7", "add", "add_1", "last_2", "linear_0")


def small(size: int = 24) -> Captured:
    torch.manual_seed(3)
    net = Small().train()
    with torch.no_grad():
        for _ in range(20):
            net(torch.randn(16, 3, size, size))
    return capture(net.eval(), (1, 3, size, size), "small")


def small_segments(graph: OpGraph) -> list[Segment]:
    bounds = [graph.input.name, *ENDS, graph.output]
    return [cut_segment(graph, f"p{i}", start, end) for i, (start, end) in enumerate(itertools.pairwise(bounds))]


def small_in_channels(graph: OpGraph, joins: tuple[str, ...] = JOINS) -> BranchDesign:
    """Divide every block of `small` that allows it: a third of the channels, hidden ones if possible, to the first processor."""
    parts = []
    for segment in small_segments(graph):
        able = [(join, places, total) for join in joins for places, total in [divisions(segment, join)] if places]
        if not able or segment.start == graph.input.name:
            parts.append(whole(segment))
            continue
        join, places, total = able[-1]
        parts.append(in_channels(segment, join, [0, places[len(places) // 3], total]))
    return BranchDesign(graph.name, "test", tuple(parts))
