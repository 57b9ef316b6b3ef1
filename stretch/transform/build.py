"""Build the branched module of a design, with weights inherited from a captured network."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from predictors.graph import Op
from predictors.joins import join_of
from predictors.shapes import width
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, safe_name, undivided
from stretch.planning.design.scale import ENTRY_CONV, ENTRY_NORM, JOIN_CONV, ScaledBranch, backbone_parts, scaled_branches
from stretch.planning.network.segments import Segment, backbone_of
from stretch.transform.model import Branch, BranchedModel, BranchedSegment, statistics_of
from stretch.transform.width import InheritedChannels, InputChannels, choose_units, importance


def build(captured: Captured, design: BranchDesign) -> BranchedModel:
    """Build the branched network, with weights inherited from the original.

    Kept channels are those with the largest L1 norm; entries and joins start as
    selections, so that a branch that keeps all channels passes them on unchanged.

    Returns:
        The module, in evaluation mode.

    Raises:
        StretchError: If the design does not fit the network.
    """
    branched = scaled_branches(captured.graph, design)
    model = BranchedModel(captured.graph, design, captured.returned, branched)
    with torch.no_grad():
        families = inherited_channels(captured, design, branched)
        sliced = [part.division is not None and part.division.weights == "slices" for part in design.segments]
        undivided_families = inherited_channels(captured, undivided(design)) if any(sliced) else families
        for part, in_slices, family, (piece, *_) in zip(design.segments, sliced, families, undivided_families, strict=True):
            if in_slices:
                fill_branch(model.segment(part.name).owner, captured, piece, part.branches[0])
                continue
            for name, scale, inherited in zip(part.names, part.branches, family, strict=True):
                fill_branch(model.branch(part.name, name), captured, inherited, scale)
            start_joins(model.segment(part.name), part, family)
        for side in model.sides.values():
            for name, module in side.branch.named_children():
                load_weights(module, captured.weights.get(name, {}))
    return model.eval()


def inherited_channels(
    captured: Captured, design: BranchDesign, branched: Sequence[Sequence[ScaledBranch]] | None = None
) -> list[list[InheritedChannels]]:
    """Return the channels of the original that each branch of each segment keeps, in order."""
    families = []
    arriving = InputChannels.of(torch.arange(width(backbone_of(captured.graph).graph.input.shape)))
    for part, branches in zip(design.segments, branched or scaled_branches(captured.graph, design), strict=True):
        families.append(_inherit_branches(captured, part, branches, arriving))
        family = families[-1]
        arriving = _channels_after(part, [inherited.backbone for inherited in family], captured)
    return families


def _inherit_branches(
    captured: Captured, part: SegmentDesign, branches: Sequence[ScaledBranch], arriving: InputChannels
) -> list[InheritedChannels]:
    """Return the channels of the original that each branch of a segment keeps."""
    if join_of(part.join).exact:
        # The branches are parts of one whole, so every unit stays.
        undivided_branch = branches[0]
        chosen = choose_units(
            undivided_branch, importance(undivided_branch.source, undivided_branch.channels, captured.weights), 0, sliced=False
        )
        return [InheritedChannels(branch, chosen, arriving, without_entry=True) for branch in branches]
    parts = backbone_parts(part, width(branches[0].source.by_name[branches[0].source.output].shape))
    family = []
    for scale, branch, answers_for in zip(part.branches, branches, parts, strict=True):
        scores = importance(branch.source, branch.channels, captured.weights)
        chosen = choose_units(branch, scores, answers_for if len(parts) > 1 else 0, sliced=scale.entry == "slice")
        family.append(InheritedChannels(branch, chosen, arriving, without_entry=scale.entry == "none"))
    return family


def fill_branch(
    module: Branch,
    captured: Captured,
    inherited: InheritedChannels,
    scale: BranchScale,
    matches: Mapping[str, str] | None = None,
    only: Container[str] | None = None,
) -> None:
    """Copy the inherited weights into one branch."""
    for name, weights in inherited.weights(captured, matches).items():
        if only is None or name in only:
            load_weights(module.get_submodule(name), weights)
    if only is not None:
        return
    if scale.entry == "project":
        original = inherited.original_channels(inherited.branch.source.input.name)
        load_weights(module.get_submodule(ENTRY_CONV), {"weight": _selection_weights(original, inherited.input_channels)})
        norm = module.get_submodule(ENTRY_NORM)
        assert isinstance(norm, nn.BatchNorm2d)
        # With this variance the batch norm is the identity, except for one bit.
        statistics_of(norm)[1].fill_(1 - norm.eps)


def is_original(part: SegmentDesign, segment: Segment) -> bool:
    """Return whether a segment of a design equals the original's: whole at full size, or exact parts of it."""
    full_size = all((b.depth, b.width, b.entry) == (segment.depth, segment.width, "none") for b in part.branches)
    return full_size and (part.whole or join_of(part.join).exact)


def fold_norms(model: nn.Module) -> None:
    """Fold the batch norms of branches into the convolutions before them, which gives the same results in evaluation mode in less time."""
    for branch in (module for module in model.modules() if isinstance(module, Branch)):
        readers = Counter(read for _, reads, _ in branch.steps for read in reads)
        for name, (read, *_), _ in branch.steps:
            norm, layer = branch.get_submodule(name), branch.get_submodule(read) if read not in branch.sources else None
            if isinstance(norm, nn.BatchNorm2d) and norm.affine and isinstance(layer, nn.Conv2d) and readers[read] == 1:
                branch.add_module(read, fuse_conv_bn_eval(layer, norm))
                branch.add_module(name, nn.Identity())


def load_weights(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights and statistics into an operator's module; files hold some of them with axes of length 1."""
    parameters = dict(module.named_parameters()) | dict(module.named_buffers())
    for key, value in weights.items():
        parameters[key].copy_(value.reshape(parameters[key].shape))


def _selection_weights(channels: torch.Tensor, present: InputChannels) -> torch.Tensor:
    """Return 1×1 convolution weights that select the original `channels` from the `present` ones, (out, in, 1, 1)."""
    picks = (channels[:, None] == present.index[None, :]).float() * present.share[None, :]
    return picks[:, :, None, None]


def start_joins(segment: BranchedSegment, part: SegmentDesign, family: Sequence[InheritedChannels]) -> None:
    """Initialise joins to pass on each original channel from a branch that keeps it; channels that no branch keeps are zero."""
    join = join_of(part.join)
    if not join.convolves:
        return
    all_channels = InputChannels.of(torch.cat([inherited.backbone for inherited in family]))
    position = start = 0
    for scale, inherited in zip(part.branches, family, strict=True):
        backbone = inherited.backbone
        branch_backbone = (
            InputChannels(backbone, all_channels.share[position : position + len(backbone)]) if join.adds else InputChannels.of(backbone)
        )
        position += len(backbone)
        op: Op = inherited.branch.graph.by_name[JOIN_CONV]
        channels = torch.arange(start, start + op.shape[1])
        conv = segment.get_submodule(f"{safe_name(scale.processor)}.{JOIN_CONV}")
        load_weights(conv, {"weight": _selection_weights(channels, branch_backbone), "bias": torch.zeros(op.shape[1])})
        # Parts of the backbone are concatenated; whole backbones all start at 0.
        start += 0 if join.whole else scale.partition


def _channels_after(part: SegmentDesign, backbones: list[torch.Tensor], captured: Captured) -> InputChannels:
    """Return the channels of the backbone after a segment."""
    if join_of(part.join).convolves:
        return InputChannels.of(torch.arange(width(captured.graph.by_name[part.end].shape)))
    if join_of(part.join).exact:
        return InputChannels.of(backbones[0])
    return InputChannels.of(torch.cat(backbones))
