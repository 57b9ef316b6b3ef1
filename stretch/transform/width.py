"""Choose the channels that a branch keeps, and cut the weights that it inherits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from predictors.channels import Pieces
from predictors.graph import OpGraph
from predictors.operators import kind_of
from stretch.network.capture import Captured
from stretch.planning.design.scale import ScaledBranch
from stretch.planning.network.segments import ChannelGroups


@dataclass(frozen=True)
class InputChannels:
    """Input channels of a segment, mapped to channels of the original."""

    index: torch.Tensor  # Original channel of each arriving channel, (n,) int64.
    share: torch.Tensor  # Weight of each channel if several replace the same original one, (n,) float32; dense readers multiply by it.

    @classmethod
    def of(cls, index: torch.Tensor) -> "InputChannels":
        """Return input channels in which repeated channels have equal shares."""
        counts = torch.bincount(index, minlength=int(index.max()) + 1)
        return cls(index, 1.0 / counts[index].float())


def importance(source: OpGraph, channels: ChannelGroups, weights: dict[str, dict[str, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Return the L1 norm of all weights that write each unit, by group.

    Returns:
        A (units,) tensor per group; groups without weights here are missing.
    """
    scores: dict[int, torch.Tensor] = {}
    for op in source.ops:
        # channels in an explicit shape cannot be chosen
        if kind_of(op.kind).weightless or kind_of(op.kind).stated:
            continue
        norm = weights[op.name]["weight"].detach().abs().flatten(1).sum(1).float()
        start = 0
        for group, per in channels.pieces[op.name]:
            units = channels.units[group]
            part = norm[start : start + units * per].reshape(units, per).sum(1)
            scores[group] = scores[group] + part if group in scores else part
            start += units * per
    return scores


def choose_units(branch: ScaledBranch, scores: dict[int, torch.Tensor], answers_for: int, sliced: bool) -> dict[int, torch.Tensor]:
    """Return the units that each group keeps, ascending; some are repeated if a group grows.

    Args:
        answers_for: Number of channels, from `branch.backbone`, that the backbone must keep if
            possible: the part of the join that this branch computes.
        sliced: Whether the branch starts with a slice of the backbone, which
            fixes the channels of the groups it reaches.
    """
    channels = branch.channels
    chosen: dict[int, torch.Tensor] = {}
    backbone = channels.pieces[branch.source.output]
    for group, units in channels.units.items():
        keep = branch.kept[group]
        score = scores.get(group, torch.zeros(units)).clone()
        if len(backbone) == 1 and group == backbone[0][0]:
            per = backbone[0][1]
            score[branch.backbone // per : -(-(branch.backbone + answers_for) // per)] = torch.inf
        if keep >= units:
            order = torch.argsort(score, descending=True, stable=True)
            extra = order.repeat(-(-keep // units))[: keep - units] if keep > units else order[:0]
            chosen[group] = torch.cat([torch.arange(units), extra])
        elif sliced and group == channels.input_group:
            chosen[group] = torch.arange(branch.backbone, branch.backbone + keep)
        else:
            chosen[group] = torch.sort(torch.topk(score, keep).indices).values
    return chosen


def kept_channels(
    channels: ChannelGroups, graph: OpGraph, name: str, chosen: dict[int, torch.Tensor], arriving: InputChannels | None
) -> InputChannels:
    """Return the original channel of each channel of operator `name` in a branch, with its share.

    Args:
        chosen: Units of each group, from `choose_units`.
        arriving: Input channels if the branch has no entry, else None.
    """
    first = channels.pieces[graph.input.name][0][1]
    index, share, start = [], [], 0
    for group, per in channels.pieces[name]:
        if arriving is not None and group == channels.input_group:
            # whole units arrive if channels are no multiple of the arriving ones, such as 3 of a grouped convolution for 2
            step = 1 if per % first == 0 else first
            piece, per_item = InputChannels(arriving.index[::step] // step, arriving.share[::step]), per * step // first
        else:
            piece, per_item = InputChannels.of(chosen[group]), per
        index.append(start + (piece.index[:, None] * per_item + torch.arange(per_item)).flatten())
        share.append(piece.share.repeat_interleave(per_item))
        start += channels.units[group] * per
    return InputChannels(torch.cat(index), torch.cat(share))


def inherit(
    branch: ScaledBranch,
    captured: Captured,
    chosen: dict[int, torch.Tensor],
    arriving: InputChannels | None,
    matches: Mapping[str, str] | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the original's weights, reduced to a branch.

    Dense convolutions and linear layers are cut on both sides; depthwise and
    grouped convolutions and batch norms are cut with their channels.

    Args:
        chosen: Units of each group, from `choose_units`.
        arriving: Input channels if the branch has no entry, else None.
    """
    channels, source = branch.channels, branch.source
    inherited: dict[str, dict[str, torch.Tensor]] = {}
    cache: dict[Pieces, InputChannels] = {}

    def kept_inputs(name: str) -> InputChannels:
        pieces = channels.pieces[name]
        if pieces not in cache:
            cache[pieces] = kept_channels(channels, source, name, chosen, arriving)
        return cache[pieces]

    # a branch that computes part of a segment lacks the other operators, but may read their outputs
    computed = {op.name for op in branch.graph.ops if op.kind != "input"}
    for op in source.ops:
        if op.name not in computed or op.name not in captured.weights:
            continue
        original = captured.weights[(matches or {}).get(op.name, op.name)]
        if kind_of(op.kind).stated:
            inherited[op.name] = {key: tensor.detach().clone() for key, tensor in original.items()}
            continue
        rows = kept_inputs(op.name).index
        dense = kind_of(op.kind).dense(op.attrs)
        cut: dict[str, torch.Tensor] = {}
        for key, tensor in original.items():
            # a tensor with one row for several channels, such as a head, keeps the rows of kept channels
            per = source.by_name[op.name].shape[1] // len(tensor)
            value = tensor.detach().index_select(0, rows[::per] // per)
            if key == "weight" and dense:
                reads = kept_inputs(op.inputs[0])
                value = value.index_select(1, reads.index)
                if not torch.all(reads.share == 1):
                    value = value * reads.share.reshape(1, -1, *[1] * (value.dim() - 2))
            cut[key] = value
        inherited[op.name] = cut
    return inherited


@dataclass(frozen=True)
class InheritedChannels:
    """Parts of the original that one branch keeps."""

    branch: ScaledBranch
    chosen: dict[int, torch.Tensor]  # Units of each channel group, from `choose_units`.
    input_channels: InputChannels  # Input channels of its segment.
    without_entry: bool  # Whether the branch reads its input without an entry.

    def original_channels(self, name: str) -> torch.Tensor:
        """Return the original channel of each channel of operator `name`, (channels,) int64."""
        return kept_channels(self.branch.channels, self.branch.source, name, self.chosen, self._read_channels).index

    @property
    def backbone(self) -> torch.Tensor:
        """Original channel of each channel of the branch's backbone."""
        return self.original_channels(self.branch.source.output)

    def weights(self, captured: Captured, matches: Mapping[str, str] | None = None) -> dict[str, dict[str, torch.Tensor]]:
        """Return the original's weights, reduced to the branch, as `inherit` does."""
        return inherit(self.branch, captured, self.chosen, self._read_channels, matches)

    @property
    def _read_channels(self) -> InputChannels | None:
        return self.input_channels if self.without_entry else None
