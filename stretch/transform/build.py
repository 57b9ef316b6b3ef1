"""A design and a captured network to a branched module with inherited weights."""

import torch
from torch import nn

from predictors.graph import Op
from stretch.capture import Captured
from stretch.planning.design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.scale import ENTRY_CONV, ENTRY_NORM, JOIN_CONV, ScaledBranch, scaled_branches, trunk_parts
from stretch.transform.model import Branch, BranchedModel
from stretch.transform.width import Trunk, choose_units, importance, inherit, kept_channels


def build(captured: Captured, design: BranchDesign) -> BranchedModel:
    """The branched network, its weights inherited from the original.

    Kept channels are those with the largest L1 norm; entries and joins start as
    selections, so that a branch that keeps everything passes it on unchanged.

    Args:
        captured: The original network.
        design: A complete design for it.

    Returns:
        The module, in evaluation mode.

    Raises:
        StretchError: If the design does not fit the network.
    """
    model = BranchedModel(captured.graph, design)
    arriving = Trunk.of(torch.arange(captured.graph.input.shape[1]))
    with torch.no_grad():
        for part, branches in zip(design.segments, scaled_branches(captured.graph, design), strict=True):
            parts = trunk_parts(part, branches[0].source.by_name[branches[0].source.output].shape[1])
            trunks = []
            for scale, branch, answers_for in zip(part.branches, branches, parts, strict=True):
                module = model.branch(part.name, scale.processor)
                trunks.append(_fill(module, captured, branch, scale, answers_for if len(parts) > 1 else 0, arriving))
            _start_joins(model, part, branches, trunks)
            arriving = _behind(part, trunks, captured)
    return model.eval()


def _fill(module: Branch, captured: Captured, branch: ScaledBranch, scale: BranchScale, answers_for: int, arriving: Trunk) -> torch.Tensor:
    """Give one branch its weights; returns the original channel of each channel of its trunk."""
    scores = importance(branch.source, branch.channels, captured.weights)
    chosen = choose_units(branch, scores, answers_for, sliced=scale.entry == "slice")
    bare = arriving if scale.entry == "none" else None
    for name, weights in inherit(branch, captured, chosen, bare).items():
        _load(module.get_submodule(name), weights)
    source = branch.source
    if scale.entry == "project":
        wanted = kept_channels(branch.channels, source, source.input.name, chosen, None).index
        _load(module.get_submodule(ENTRY_CONV), {"weight": _selection(wanted, arriving)})
        norm = module.get_submodule(ENTRY_NORM)
        assert isinstance(norm, nn.BatchNorm2d)
        # With this variance the batch-norm is the identity to the last bit but one.
        norm.running_var.fill_(1 - norm.eps)
    return kept_channels(branch.channels, source, source.output, chosen, bare).index


def _load(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for key, value in weights.items():
        own[key].copy_(value)


def _selection(wanted: torch.Tensor, has: Trunk) -> torch.Tensor:
    """1×1 convolution weights that pick original channels `wanted` out of a trunk, (out, in, 1, 1)."""
    picks = (wanted[:, None] == has.index[None, :]).float() * has.share[None, :]
    return picks[:, :, None, None]


def _start_joins(model: BranchedModel, part: SegmentDesign, branches: list[ScaledBranch], trunks: list[torch.Tensor]) -> None:
    """Let the joins hand on each original channel from a branch that kept it; what no branch kept is zero."""
    if part.join not in ("project", "sum"):
        return
    everything = Trunk.of(torch.cat(trunks))
    at = start = 0
    for scale, branch, trunk in zip(part.branches, branches, trunks, strict=True):
        own = Trunk(trunk, everything.share[at : at + len(trunk)]) if part.join == "sum" else Trunk.of(trunk)
        at += len(trunk)
        op: Op = branch.graph.by_name[JOIN_CONV]
        wanted = torch.arange(start, start + op.shape[1])
        conv = model.branch(part.name, scale.processor).get_submodule(JOIN_CONV)
        _load(conv, {"weight": _selection(wanted, own), "bias": torch.zeros(op.shape[1])})
        # The parts of a `project` join lie side by side; those of a `sum` all start at 0.
        start += scale.partition if part.join == "project" else 0


def _behind(part: SegmentDesign, trunks: list[torch.Tensor], captured: Captured) -> Trunk:
    """The trunk behind a segment."""
    if part.join == "concat":
        return Trunk.of(torch.cat(trunks))
    if part.join == "none":
        return Trunk.of(trunks[0])
    return Trunk.of(torch.arange(captured.graph.by_name[part.end].shape[1]))
