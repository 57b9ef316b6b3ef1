"""A small network, and the same with some channels of its first layer, cut by hand."""

from collections.abc import Iterable

import torch
from torch import nn

from experiments.real_networks.pruning import Pruned, kept_channels
from stretch.capture import Captured, capture

SHAPE = (1, 3, 16, 16)


class Small(nn.Module):
    """Two convolutions with batch norms and a classifier."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        first = [nn.Conv2d(3, hidden, 3, 2, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU()]
        second = [nn.Conv2d(hidden, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        self.body = nn.Sequential(*first, *second)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def narrowed(original: Captured, channels: Iterable[int]) -> Pruned:
    """`Small` with some channels of its first convolution."""
    kept = torch.tensor(list(channels))
    state = {name: value.clone() for name, value in original.module.state_dict().items()}
    for name, value in state.items():
        if name.startswith(("body.0.", "body.1.")) and value.dim():
            state[name] = value[kept]
    state["body.3.weight"] = state["body.3.weight"][:, kept]
    module = Small(len(kept)).eval()
    module.load_state_dict(state)
    found = capture(module, SHAPE, original.graph.name)
    stayed = {"body_1": kept, "body_4": torch.arange(16)}
    return Pruned(found, kept_channels(original.graph, found.graph, stayed), 0.0)
