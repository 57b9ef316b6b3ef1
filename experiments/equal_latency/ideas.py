"""Branches that see different things: changes to the last segment that branches, as its design has the planner's branches."""

import json
from typing import Any

import msgspec
import torch
from torch import nn

from predictors.rewrites import HALF_RESOLUTION
from stretch.planning.design.branch_design import BranchDesign
from stretch.transform.model import BranchedModel, BranchedSegment

#: Each idea changes the design of the planner's branches, or the network that is built from it.
IDEAS = ("wider view", "half resolution", "gated join")
#: Channels of a gate over the channels that it weighs.
REDUCED = 4


class GatedJoin(nn.Module):
    """A join whose channels are weighed by factors that depend on all of them (squeeze and excitation, Hu et al. 2018).

    Args:
        channels: Of the joined tensor.
    """

    def __init__(self, join: nn.Module, channels: int) -> None:
        super().__init__()
        self.join = join
        self.gate = nn.Sequential(nn.Linear(channels, channels // REDUCED), nn.ReLU(), nn.Linear(channels // REDUCED, channels))
        nn.init.zeros_(self.gate[2].weight)
        nn.init.zeros_(self.gate[2].bias)

    def forward(self, *branches: torch.Tensor) -> torch.Tensor:
        """Join tensors of (n, channels of the branch, height, width)."""
        joined: torch.Tensor = self.join(*branches)
        weights = 2 * self.gate(joined.mean((2, 3))).sigmoid()
        return joined * weights[:, :, None, None]


def with_idea(built: str, idea: str) -> str:
    """The planner's branches with an idea: a branch that sees half the resolution has twice the channels, thus as many multiply-accumulates."""
    design: dict[str, Any] = json.loads(built)
    if idea == "half resolution":
        joined(design)["branches"][-1]["width"] *= 2
    return json.dumps(design | {"idea": idea}, separators=(",", ":"))


def joined(design: dict[str, Any]) -> dict[str, Any]:
    """The last segment with several branches."""
    part: dict[str, Any] = [part for part in design["segments"] if len(part["branches"]) > 1][-1]
    return part


def designed(built: str) -> BranchDesign:
    """The design of branches with or without an idea; dilation and gates are no part of it, and taken to need no time."""
    design: dict[str, Any] = json.loads(built)
    if design.pop("idea", None) == "half resolution":
        joined(design)["branches"][-1]["rewrites"] = [HALF_RESOLUTION]
    return msgspec.convert(design, BranchDesign)


def change(model: BranchedModel, idea: str) -> BranchedModel:
    """Give a network the idea in its last branched segment, where its design does not have it."""
    part = [part for part in model.design.segments if len(part.branches) > 1][-1]
    segment = model.get_submodule(part.name)
    assert isinstance(segment, BranchedSegment)
    last = segment.get_submodule(segment.order[-1])
    if idea == "wider view":
        for layer in last.modules():
            if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                layer.dilation = layer.padding = (2, 2)
    elif idea == "gated join":
        segment.join = GatedJoin(segment.join, sum(branch.partition for branch in part.branches))
    return model
