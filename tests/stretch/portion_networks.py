"""Random small networks with overlapping skip connections, and designs that divide them into portions."""

import torch
from hypothesis import strategies as st
from torch import nn

from predictors.graph import OpGraph
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import cut_segment, operators_read_outside

WIDTH = 4
PROCESSORS = ("cpu", "gpu", "dsp")


def _layer(draw: st.DrawFn) -> nn.Module:
    size, groups = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2, WIDTH]))
    conv = nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, groups=groups, bias=draw(st.booleans()))
    kinds = [conv, nn.Sequential(conv, nn.BatchNorm2d(WIDTH), nn.ReLU()), nn.Sequential(nn.ReLU(), conv)]
    return draw(st.sampled_from([*kinds, nn.MaxPool2d(3, stride=1, padding=1), nn.Identity()]))


class Skipping(nn.Module):
    """A chain of nodes: each sums, or concatenates and mixes, layers on earlier tensors; unread tensors are concatenated.

    Args:
        layers: For each node, one layer per tensor that it reads.
        reads: Number of the tensor that each of these layers reads: 0 is the input, n the nth node.
        added: Whether the node adds its layers; otherwise it concatenates them and mixes by a convolution.
    """

    def __init__(self, layers: list[list[nn.Module]], reads: list[list[int]], added: list[bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList(group) for group in layers])
        self.mixes = nn.ModuleList(
            [nn.Identity() if plain else nn.Conv2d(len(group) * WIDTH, WIDTH, 1) for group, plain in zip(reads, added, strict=True)]
        )
        self.reads, self.added = reads, added

    def forward(self, x):
        values = [x]
        for layers, mix, reads, added in zip(self.layers, self.mixes, self.reads, self.added, strict=True):
            parts = [layer(values[i]) for layer, i in zip(layers, reads, strict=True)]
            if len(parts) == 1:
                values.append(parts[0])
            elif added:
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                values.append(torch.relu(total))
            else:
                values.append(mix(torch.cat(parts, 1)))
        read = {i for group in self.reads for i in group}
        ends = [value for i, value in enumerate(values) if i not in read]
        return torch.cat(ends, 1) if len(ends) > 1 else torch.relu(ends[0])


@st.composite
def skipping_networks(draw: st.DrawFn, most: int = 5) -> nn.Module:
    """Draw networks of up to `most` nodes with random weights and statistics."""
    count = draw(st.integers(2, most))
    reads = [draw(st.lists(st.integers(0, i), min_size=1, max_size=3, unique=True)) for i in range(count)]
    layers = [[_layer(draw) for _ in group] for group in reads]
    added = [len(group) == 1 or draw(st.booleans()) for group in reads]
    torch.manual_seed(draw(st.integers(0, 2**16)))
    network = Skipping(layers, reads, added)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
    return network.eval()


def random_portions(draw: st.DrawFn, graph: OpGraph) -> list[set[str]]:
    """Draw a valid order of a segment's operators, cut into at least two sets."""
    names = [op.name for op in graph.ops if op.kind != "input"]
    left = {op.name: {i for i in op.inputs if graph.by_name[i].kind != "input"} for op in graph.ops if op.kind != "input"}
    order: list[str] = []
    while left:
        able = [name for name in names if name in left and not left[name]]
        order.append(draw(st.sampled_from(able)))
        del left[order[-1]]
        for waiting in left.values():
            waiting.discard(order[-1])
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), min_size=1, max_size=5)))
    return [set(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@st.composite
def random_placements(draw: st.DrawFn, graph: OpGraph) -> BranchDesign:
    """Draw a design with the network as one segment of random portions on random processors."""
    segment = cut_segment(graph, "s1", graph.input.name, graph.output)
    inside = random_portions(draw, segment.graph)
    ends = [tuple(operators_read_outside(segment.graph, [op for op in segment.graph.ops if op.name in current])) for current in inside]
    branches = tuple(BranchScale(draw(st.sampled_from(PROCESSORS)), segment.depth, segment.width, ends=end) for end in ends)
    return BranchDesign(graph.name, "test", (SegmentDesign("s1", segment.start, segment.end, branches, "placed"),))
