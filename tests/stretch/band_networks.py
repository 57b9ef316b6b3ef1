"""Random small networks of operators on rows, and designs that split them into bands."""

import itertools

import torch
from hypothesis import assume, reject
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.rows import height
from predictors.shapes import ints
from stretch.network.capture import Captured, capture
from stretch.operators.products import PaddedConv2d
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.divisions.rows import bands_of
from stretch.planning.network.segments import Segment, cut_points
from tests.stretch.designs import cut_at_random, whole

WIDTH = 4


class SideBySide(nn.Module):
    """Two paths with different windows, concatenated and reduced to the original width."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right, self.mix = left, right, nn.Conv2d(2 * WIDTH, WIDTH, 1)

    def forward(self, x):
        return self.mix(torch.cat([self.left(x), self.right(x)], 1))


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        return torch.relu(self.body(x) + x)


class Squeeze(nn.Module):
    """Squeeze-excite, whose pooled vector needs every row."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(WIDTH, 2, 1), nn.Conv2d(2, WIDTH, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(torch.relu(self.down(nn.functional.adaptive_avg_pool2d(x, 1)))))


def _same(draw: st.DrawFn) -> nn.Module:
    """Draw a convolution that keeps the size, with a batch norm and an activation."""
    size, dilation = draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from([1, 1, 2]))
    groups = draw(st.sampled_from([1, 2, WIDTH]))
    conv = nn.Conv2d(WIDTH, WIDTH, size, padding=dilation * (size // 2), dilation=dilation, groups=groups, bias=draw(st.booleans()))
    return nn.Sequential(conv, nn.BatchNorm2d(WIDTH), draw(st.sampled_from([nn.ReLU, nn.Hardswish, nn.SiLU]))())


def _any_window(draw: st.DrawFn) -> nn.Module:
    """Draw a convolution whose kernel, stride and padding differ between sides."""
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    stride, dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2))), (draw(st.integers(1, 2)), 1)
    pads = tuple(draw(st.integers(0, kernel[side % 2] - 1)) for side in range(4))
    return PaddedConv2d(WIDTH, WIDTH, kernel, stride=stride, dilation=dilation, pads=pads)


def _pool(draw: st.DrawFn) -> nn.Module:
    """Draw a pool of any window, with sizes rounded up or down."""
    window = {"kernel_size": draw(st.integers(2, 3)), "stride": draw(st.integers(1, 2)), "padding": draw(st.integers(0, 1))}
    window["ceil_mode"] = draw(st.booleans())
    return nn.MaxPool2d(**window) if draw(st.booleans()) else nn.AvgPool2d(**window, count_include_pad=draw(st.booleans()))


BLOCKS = {
    "same": _same,
    "window": _any_window,
    "pool": _pool,
    "residual": lambda draw: Residual(nn.Sequential(_same(draw), _same(draw))),
    "concat": lambda draw: SideBySide(_same(draw), _same(draw)),
    "squeeze": lambda draw: Squeeze(),
    "upsample": lambda draw: nn.Upsample(scale_factor=2),
    "activation": lambda draw: nn.ReLU6(),
}


@st.composite
def networks(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(BLOCKS)) -> Captured:
    """Draw a stem, two to four blocks and a head, with random weights and statistics."""
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=4))
    blocks = [BLOCKS[kind](draw) for kind in chosen]
    net = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 5))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    shape = (1, 3, draw(st.integers(9, 20)), draw(st.integers(9, 14)))
    try:
        net.eval()(torch.zeros(shape))
    except RuntimeError:  # a window is larger than the remaining image
        reject()
    captured = capture(net, shape, "net")
    assume(all(_fits(captured.graph, op) for op in captured.graph.ops if "kernel" in op.attrs))
    return captured


def _fits(graph: OpGraph, op: Op) -> bool:
    """Return whether no window begins in the padding after the input, where ONNX Runtime before opset 22 is wrong."""
    top, left, bottom, right = ints(op.attrs, "padding")
    sizes = graph.input_shapes(op)[0][2:]
    dilation = op.attrs.get("dilation", (1, 1))
    for axis, pads in enumerate((top + bottom, left + right)):
        room = sizes[axis] + pads - dilation[axis] * (ints(op.attrs, "kernel")[axis] - 1) - 1
        stride = ints(op.attrs, "stride")[axis]
        steps = -(-room // stride) if op.attrs.get("ceil_mode") else room // stride
        if steps + 1 != op.shape[axis + 2]:
            return False
    return True


@st.composite
def banded(draw: st.DrawFn, graph: OpGraph, processors: tuple[str, ...] = ("cpu", "gpu", "dsp")) -> BranchDesign:
    """Draw segments between any cut points, each whole or in bands of any height on two or three processors."""
    cuts = [name for name in cut_points(graph)[1:-1] if len(graph.by_name[name].shape) == 4]
    return BranchDesign(graph.name, "test", tuple(_part(draw, segment, processors) for segment in cut_at_random(draw, graph, cuts, 3)))


def _part(draw: st.DrawFn, segment: Segment, processors: tuple[str, ...]) -> SegmentDesign:
    shape = segment.graph.by_name[segment.end].shape
    rows = height(shape)
    if len(shape) != 4 or rows < 2:
        return whole(segment)
    count = draw(st.integers(2, min(rows, len(processors))))
    inner = sorted(draw(st.lists(st.integers(1, rows - 1), min_size=count - 1, max_size=count - 1, unique=True)))
    bounds = [0, *inner, rows]
    try:
        for start, stop in itertools.pairwise(bounds):
            bands_of(segment.graph, start, stop)
    except StretchError:  # a band whose rows are all padding
        return whole(segment)
    branches = tuple(
        BranchScale(processor, segment.depth, segment.width, rows=band)
        for processor, band in zip(processors, itertools.pairwise(bounds), strict=False)
    )
    return SegmentDesign(segment.name, segment.start, segment.end, branches, "rows")
