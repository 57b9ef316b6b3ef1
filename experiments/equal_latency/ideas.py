"""Ideas for branches that see different things: changes to the last segment that branches, compared with the planner's branches."""

import json
from typing import Any

import msgspec
import torch
from torch import nn

from predictors.rewrites import HALF_RESOLUTION
from stretch.planning.design.branch_design import BranchDesign
from stretch.transform.model import BranchedModel, BranchedSegment

#: Each idea changes the design of the planner's branches, or the network that is built from it.
IDEAS = ("wider view", "half resolution", "gated join", "normalised join")
#: Ratio of the tensor's channels to the hidden channels of a gate.
REDUCED = 4


class Gate(nn.Module):
    """Factors of channels that depend on all channels (squeeze and excitation, Hu et al. 2018).

    Args:
        channels: Channels of the tensor.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(channels, channels // REDUCED), nn.ReLU(), nn.Linear(channels // REDUCED, channels))
        nn.init.zeros_(self.gate[2].weight)
        nn.init.zeros_(self.gate[2].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weigh the channels of a tensor of (n, channels, height, width)."""
        weights = 2 * self.gate(x.mean((2, 3))).sigmoid()
        return x * weights[:, :, None, None]


class ChangedJoin(nn.Module):
    """A join followed by a layer."""

    def __init__(self, join: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.join, self.layer = join, layer

    def forward(self, *branches: torch.Tensor) -> torch.Tensor:
        """Join tensors of (n, channels of the branch, height, width)."""
        result: torch.Tensor = self.layer(self.join(*branches))
        return result


def with_idea(built: str, idea: str) -> str:
    """Add an idea to the planner's branches; a branch at half the resolution gets twice the channels, so its multiply-accumulates stay."""
    design: dict[str, Any] = json.loads(built)
    if idea == "half resolution":
        joined(design)["branches"][-1]["width"] *= 2
    return json.dumps(design | {"idea": idea}, separators=(",", ":"))


def joined(design: dict[str, Any]) -> dict[str, Any]:
    """Return the last segment with several branches."""
    part: dict[str, Any] = [part for part in design["segments"] if len(part["branches"]) > 1][-1]
    return part


def designed(built: str) -> BranchDesign:
    """Return the design of branches with or without an idea; ideas that are not in the design are assumed to take no time."""
    design: dict[str, Any] = json.loads(built)
    if design.pop("idea", None) == "half resolution":
        joined(design)["branches"][-1]["rewrites"] = [HALF_RESOLUTION]
    return msgspec.convert(design, BranchDesign)


def change(model: BranchedModel, idea: str) -> BranchedModel:
    """Apply an idea that is not in the design to a network: to every join, or to the last segment that branches."""
    parts = [part for part in model.design.segments if len(part.branches) > 1]
    for part in parts if idea == "normalised join" else parts[-1:]:
        segment = model.get_submodule(part.name)
        assert isinstance(segment, BranchedSegment)
        channels = sum(branch.partition for branch in part.branches)
        if idea == "wider view":
            for layer in segment.get_submodule(segment.order[-1]).modules():
                if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                    layer.dilation = layer.padding = (2, 2)
        elif idea == "gated join":
            segment.join = ChangedJoin(segment.join, Gate(channels))
        elif idea == "normalised join":
            segment.join = ChangedJoin(segment.join, nn.BatchNorm2d(channels))
    return model
