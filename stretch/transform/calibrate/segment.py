"""Calibration of one segment: several fits, and the choice between them on images that no fit used."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.operators import kind_of
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import SegmentDesign, safe_name
from stretch.planning.design.scale import JOIN_CONV, ScaledBranch
from stretch.planning.network.segments import ChannelGroups, Segment
from stretch.transform.build import fill_branch, start_joins
from stretch.transform.calibrate.blocks import choose_blocks
from stretch.transform.calibrate.layers import (
    BranchFit,
    LayerTarget,
    Matches,
    Products,
    Regression,
    candidate_matches,
    collect_targets,
    patches,
    pixels_for,
    rows_of,
    tail_of,
)
from stretch.transform.calibrate.split import Split
from stretch.transform.calibrate.statistics import Batches, backbone_of, rebase_statistics, renewed_backbone
from stretch.transform.model import Branch, BranchedSegment
from stretch.transform.width import InheritedChannels

#: Maximum number of rounds of removal.
ROUNDS = 64


class Elimination:
    """A linear layer whose inputs are removed, with the remaining weights refitted each time.

    Removing some inputs costs the squared error that remains after refitting. It is known without
    refitting: wᵀ [H⁻¹]⁻¹ w, with these inputs' block of the inverse of their covariance H (optimal brain surgeon, Hassibi and Stork
    1993). For channels of a network it is the criterion of ThiNet (Luo et al. 2017) and of He et al. 2017.

    The inverse is not changed and may be shared: the changes by removals are kept as a factor with one row per removed input.

    Args:
        covariance: Covariance of the inputs, (inputs, inputs) float64.
        weight: Weights of the layer, (outputs, inputs).
        size: Reference of the costs; the variance of the outputs by default.
        inverse: Inverse of the covariance (`inverse_of`), if it is already known.
    """

    def __init__(
        self, covariance: torch.Tensor, weight: torch.Tensor, ridge: float, size: float | None = None, inverse: torch.Tensor | None = None
    ) -> None:
        self._weight = weight.double()
        if size is None:
            size = float(((self._weight @ covariance) * self._weight).sum())
        self._size = max(size, 1e-30)
        self._inverse = inverse_of(covariance, ridge) if inverse is None else inverse
        # the present inverse is `_inverse` - `_factor`ᵀ `_factor`
        self._factor = self._inverse.new_empty(0, len(covariance))
        # diagonal blocks of the present inverse for the last queried units, and the index of each unit's block by its first input
        self._units, self._blocks = torch.empty(0, 0, dtype=torch.long), self._inverse.new_empty(0)
        self._place = torch.full((len(covariance),), -1, device=covariance.device)

    def costs(self, units: torch.Tensor) -> torch.Tensor:
        """Return the error of removing each single unit, relative to the variance of the outputs."""
        weight = self._weight[:, units].movedim(0, 2)
        solved: torch.Tensor = torch.linalg.solve(self._diagonal_blocks(units), weight)
        return (weight * solved).sum((1, 2)) / self._size

    def _diagonal_blocks(self, units: torch.Tensor) -> torch.Tensor:
        """Return each unit's own block of the inverse, (units, inputs per unit, inputs per unit)."""
        places = self._place[units[:, 0]]
        if self._units.shape[1:] != units.shape[1:] or bool((places < 0).any()):
            self._units = units
            self._blocks = self._inverse[units[:, :, None], units[:, None, :]] - _products(self._factor, units)
            self._place.fill_(-1)
            places = torch.arange(len(units), device=units.device)
            self._place[units[:, 0]] = places
        return self._blocks[places]

    def remove(self, inputs: torch.Tensor) -> None:
        """Remove these inputs and refit the remaining weights."""
        rows = self._inverse[inputs] - self._factor[:, inputs].mT @ self._factor
        block = (rows[:, inputs] + rows[:, inputs].mT) / 2
        triangle, failed = torch.linalg.cholesky_ex(block)
        if failed:
            # rounding may make a block slightly indefinite
            values, vectors = torch.linalg.eigh(block)
            triangle = torch.linalg.qr((vectors * values.clamp_min(1e-12 * values.max()).sqrt()).mT).R.mT
        factor = torch.linalg.solve_triangular(triangle, rows, upper=False)
        self._weight -= self._weight[:, inputs] @ torch.linalg.solve_triangular(triangle.mT, factor, upper=True)
        self._factor = torch.cat((self._factor, factor))
        if len(self._units):
            self._blocks -= _products(factor, self._units)


def _products(factor: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Return the diagonal blocks of `factor`ᵀ `factor` for units of inputs."""
    columns = factor[:, units].movedim(0, 2)
    return columns @ columns.mT


def keep_units(count: int, keep: int, readers: list[tuple[Elimination, torch.Tensor]]) -> torch.Tensor:
    """Return the units that remain after removing, in rounds, those with the smallest total error over all readers."""
    alive = torch.arange(count, device=readers[0][1].device)
    while len(alive) > keep:
        costs = torch.stack([layer.costs(inputs[alive]) for layer, inputs in readers]).sum(0)
        removed = costs.argsort()[: min(len(alive) - keep, -(-count // ROUNDS))]
        for layer, inputs in readers:
            layer.remove(inputs[alive[removed]].flatten())
        stays = torch.ones(len(alive), dtype=torch.bool, device=alive.device)
        stays[removed] = False
        alive = alive[stays]
    return alive


def conditional_covariance(covariance: torch.Tensor, observed: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the conditional covariance, given some of the variables.

    Args:
        covariance: Covariance of the variables, (n, n) float64.
        observed: Indices of the given variables, (m,) int64, each once.
    """
    if not len(observed):
        return covariance
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    eye = torch.eye(len(observed), dtype=covariance.dtype, device=covariance.device)
    rows = covariance[observed]
    explained: torch.Tensor = rows.mT @ torch.linalg.solve(rows[:, observed] + penalty * eye, rows)
    return covariance - explained


def inverse_of(covariance: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the inverse of a covariance with a penalty of `ridge` times the mean variance on its diagonal."""
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    triangle, failed = torch.linalg.cholesky_ex(
        covariance + penalty * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    )
    if not failed:
        return torch.cholesky_inverse(triangle)
    # rounding of fp32 products may make variances slightly negative
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    inverse: torch.Tensor = (vectors / (values.clamp_min(0) + penalty)) @ vectors.mT
    return inverse


#: Layers with more inputs are ignored, because their covariance would be too expensive.
MAX_INPUTS = 4608

#: Minimum penalty of the choice of channels.
_MIN_RIDGE = 1e-4


#: Covariances of the original segment: of the inputs of its dense layers by name, (inputs, inputs) float64, in the order of the layer's
#: weights; and of its output, (channels, channels) float64.
Covariances = tuple[Mapping[str, torch.Tensor], torch.Tensor]


def find_covariances(original_branch: Branch, source: OpGraph, original_inputs: Batches, images: int) -> Covariances:
    """Run the original segment and accumulate the covariances of its dense layers' inputs and of its output."""
    products: dict[str, Products] = {}
    handles = []
    for op in source.ops:
        if op.kind == "input" or not kind_of(op.kind).dense(op.attrs):
            continue
        layer = original_branch.get_submodule(op.name)
        weight = layer.get_parameter("weight")
        inputs = weight[0].numel()
        if inputs <= MAX_INPUTS:
            products[op.name] = sums = Products(1, inputs, weight.device)
            count = pixels_for(images, inputs)
            handles.append(
                layer.register_forward_pre_hook(
                    lambda module, read, sums=sums, shape=op.shape, count=count: sums.add(patches(module, read[0], shape, count))
                )
            )
    width = source.by_name[source.output].shape[1]
    end = Products(1, width, original_inputs[0].device)
    try:
        for x in original_inputs:
            end.add(rows_of(original_branch(x), pixels_for(images, width)))
    finally:
        for handle in handles:
            handle.remove()
    return {name: sums.covariance()[0] for name, sums in products.items()}, end.covariance()[0]


class ChannelChoice:
    """Chooses channels for the branches of one segment by the original's activations.

    From the end of a segment to its beginning, each group of channels loses the ones whose removal, after refitting, costs the
    layers that read them least (`Elimination`). Of these layers' outputs, only kept channels count.
    Batch norms are folded into the layers. A backbone is read by the branch's own layers and by its part of the join.
    If joins add up, that part needs only the channels that earlier branches do not provide.
    Concatenated backbones stay, because the next segment was built for them, and so do channels that a slice selects.

    Args:
        part: Design of the segment.
    """

    def __init__(self, captured: Captured, part: SegmentDesign, covariances: Covariances, ridge: float) -> None:
        # smaller eigenvalues are rounding errors of fp32 products
        self._captured, self._part, self._ridge = captured, part, max(ridge, _MIN_RIDGE)
        self._layers, self._end = covariances
        # all branches and candidates start with the same inverses
        self._inverses: dict[str, torch.Tensor] = {}

    def choose(self, index: int, inherited: InheritedChannels, matches: Matches, others: Sequence[InheritedChannels]) -> InheritedChannels:
        """Choose the channels that a branch keeps."""
        branch = inherited.branch
        channels, source = branch.channels, branch.source
        scale = self._part.branches[index]
        fixed = {channels.input_group} if scale.entry in ("none", "slice") else set()
        if not join_of(self._part.join).convolves:
            fixed |= {group for group, _ in channels.pieces[source.output]}
        open_groups = {g for g, units in channels.units.items() if branch.kept[g] < units} - fixed
        if not open_groups:
            return inherited
        chosen = dict(inherited.chosen)
        readers = _readers(source, channels)
        layers: dict[str, Elimination] = {}
        for group in sorted(open_groups, key=lambda g: _last_reader(source, channels, readers, g), reverse=True):
            reading = []
            for name in readers:
                columns = _columns(source, channels, name, group)
                if columns is None:
                    continue
                if name not in layers:
                    reader = self._layer(source, channels, name, {g: c for g, c in chosen.items() if g not in open_groups}, matches)
                    if reader is None:
                        continue
                    layers[name] = reader
                reading.append((layers[name], columns))
            if join := self._join(index, branch, others, group):
                reading.append(join)
            if reading:
                moved = [(layer, columns.to(self._end.device)) for layer, columns in reading]
                chosen[group] = keep_units(channels.units[group], branch.kept[group], moved).cpu()
            open_groups.discard(group)
        return replace(inherited, chosen=chosen)

    def _layer(
        self, source: OpGraph, channels: ChannelGroups, name: str, decided: Mapping[int, torch.Tensor], matches: Matches
    ) -> Elimination | None:
        """Return a layer with all its inputs and the outputs that are known to stay; None if its covariance is missing."""
        original = matches.get(name, name)
        if original not in self._layers:
            return None
        covariance = self._layers[original]
        weight = self._captured.weights[original]["weight"].detach().flatten(1).double()
        _, norm, *_ = tail_of(source, name)
        if norm is not None:
            # The batch norm is folded, so that errors of a channel are weighted as after the norm.
            numbers = self._captured.weights[matches.get(norm, norm)]
            eps = source.by_name[norm].attrs["eps"]
            assert isinstance(eps, float)
            weight = weight * (numbers["weight"] / (numbers["running_var"] + eps).sqrt()).detach().double()[:, None]
        rows = _kept_channels(channels, name, decided)
        if original not in self._inverses:
            self._inverses[original] = inverse_of(covariance, self._ridge)
        return Elimination(covariance, weight[rows].to(covariance.device), self._ridge, inverse=self._inverses[original])

    def _join(
        self, index: int, branch: ScaledBranch, others: Sequence[InheritedChannels], group: int
    ) -> tuple[Elimination, torch.Tensor] | None:
        """Return the branch's part of the join as a reader of its backbone; None if the backbone does not contain the group."""
        join = join_of(self._part.join)
        # the backbone has the channels of the segment's end, whatever the last block is
        columns = _units(branch.channels, branch.source.output, group, 1)
        if not join.convolves or columns is None:
            return None
        covariance = self._end
        size = covariance.diagonal()
        targets = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        if join.divides:
            start = sum(b.partition for b in self._part.branches[:index])
            rows = slice(start, start + self._part.branches[index].partition)
            targets, size = targets[rows], size[rows]
        if join.adds:
            backbones = [other.backbone for other in others]
            covariance = conditional_covariance(
                covariance, torch.cat(backbones).unique().to(covariance.device) if backbones else columns[:0, 0], self._ridge
            )
        return Elimination(covariance, targets, self._ridge, float(size.sum())), columns


def _readers(source: OpGraph, channels: ChannelGroups) -> list[str]:
    """Return the dense layers, which have one weight per channel that they read, in order."""
    return [op.name for op in source.ops if op.kind != "input" and kind_of(op.kind).dense(op.attrs)]


def _last_reader(source: OpGraph, channels: ChannelGroups, readers: Iterable[str], group: int) -> int:
    """Return the position of the last reader of a group; the end of the segment is last."""
    if any(g == group for g, _ in channels.pieces[source.output]):
        return len(source.ops)
    position = {op.name: i for i, op in enumerate(source.ops)}
    reads = [position[name] for name in readers if any(g == group for g, _ in channels.pieces[source.by_name[name].inputs[0]])]
    return max(reads, default=-1)


def _columns(source: OpGraph, channels: ChannelGroups, name: str, group: int) -> torch.Tensor | None:
    """Return a layer's inputs that belong to each unit of a group, (units, inputs per unit); None if it does not read the group."""
    op = source.by_name[name]
    kernel = op.attrs.get("kernel", (1, 1))
    assert isinstance(kernel, tuple)
    return _units(channels, op.inputs[0], group, math.prod(map(int, kernel)))


def _units(channels: ChannelGroups, tensor: str, group: int, taps: int) -> torch.Tensor | None:
    """Return the indices of a tensor's channels, each with `taps` inputs, that belong to each unit of a group; None without any."""
    parts, start = [], 0
    for unit_group, per in channels.pieces[tensor]:
        units = channels.units[unit_group]
        if unit_group == group:
            parts.append(start * taps + torch.arange(units * per * taps).reshape(units, per * taps))
        start += units * per
    return torch.cat(parts, 1) if parts else None


def _kept_channels(channels: ChannelGroups, name: str, decided: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Return the channels of an operator's output that stay, each once; all channels of an undecided group."""
    parts, start = [], 0
    for group, per in channels.pieces[name]:
        units = decided[group].unique() if group in decided else torch.arange(channels.units[group])
        parts.append((start + units[:, None] * per + torch.arange(per)).flatten())
        start += channels.units[group] * per
    return torch.cat(parts)


def fit_join(
    part: SegmentDesign,
    segment: BranchedSegment,
    backbones: Sequence[torch.Tensor],
    target: torch.Tensor,
    ridge: float,
    trunk: int | None = None,
) -> None:
    """Fit the 1×1 convolutions of a join by regression.

    A join that adds up, such as `sum`, regresses the whole backbone on all branches together.
    Other joins regress each branch's part of it, or the whole backbone, on that branch. Joins
    without convolutions have no weights.

    Args:
        backbones: Input of each branch's convolution, (rows, channels).
        target: Backbone of the original, (rows, channels).
        ridge: Weight of the penalty.
        trunk: For a join that adds up: branch that passes on its whole backbone unchanged; the others are fitted to its error.
    """
    join = join_of(part.join)
    if not join.convolves:
        return
    modules = (segment.get_submodule(f"{safe_name(b.processor)}.{JOIN_CONV}") for b in part.branches)
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    groups = [list(range(len(part.branches)))] if join.adds else [[i] for i in range(len(part.branches))]
    if trunk is not None:
        alone = convolutions[trunk]
        for conv in convolutions:
            conv.weight.zero_()
        alone.weight.copy_(torch.eye(len(alone.weight), device=target.device)[:, :, None, None])
        assert alone.bias is not None
        alone.bias.zero_()
        target = target - backbones[trunk]
        groups[0].remove(trunk)
    start = 0
    for group in groups:
        convs = [convolutions[i] for i in group]
        prior = torch.cat([conv.weight.flatten(1) for conv in convs], 1)
        stop = start + len(prior)
        sums = Regression(1, prior.shape[1], len(prior), prior.device)
        sums.add(torch.cat([backbones[i] for i in group], 1), target[:, start:stop])
        weight, bias = sums.solve(ridge, prior)
        for conv, part_weight in zip(convs, weight.split([conv.weight.shape[1] for conv in convs], 1), strict=True):
            assert conv.bias is not None
            conv.weight.copy_(part_weight[:, :, None, None])
            # A sum adds the biases of its branches, so only the first one has it.
            conv.bias.copy_(bias if conv is convs[0] else torch.zeros_like(bias))
        start = 0 if join.whole else stop


def readout(output: torch.Tensor, target: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit the linear map from the concatenated backbone to the original's backbone, for a join without convolutions.

    Layers after the join are fitted later; this map is the best backbone that they can compute.
    """
    prior = torch.zeros(target.shape[1], output.shape[1], device=target.device)
    sums = Regression(1, prior.shape[1], len(prior), prior.device)
    sums.add(output, target)
    return sums.solve(ridge, prior)


#: Penalties for additions to a branch that has all channels; the last one suppresses them.
TRUNK_RIDGES = (1e-4, 1e-2, 1.0, 1e6)

#: Errors below this are rounding: the segment computes the same as the original.
_EXACT_ERROR = 1e-9

State = dict[str, torch.Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True)
class ChoiceSettings:
    """Choices by activations, in addition to those that follow from the design."""

    channels: bool = True  # Whether to choose the channels that a branch keeps (`ChannelChoice`).
    blocks: bool = True  # Whether to choose the blocks that a branch reproduces (`choose_blocks`).
    extent: bool = True  # Whether a network that only lacks blocks is also fitted as a whole; otherwise only near them.


#: All choices by activations.
ALL_CHOICES = ChoiceSettings()


class BranchOutput(NamedTuple):
    """Output of a branch that its join and error need."""

    rows: torch.Tensor  # Pixels before the join for the images of the fits, (rows, channels).
    held_back: Batches  # Tensors before the join for the images of the choice, in batches.


class OriginalValues(NamedTuple):
    """Values of the original segment."""

    outputs: list[torch.Tensor]  # Outputs of the segment, in batches.
    rows: torch.Tensor  # Pixels of the output for the images of the fits, (rows, channels).
    layers: Mapping[LayerTarget, Batches]  # Target pixels of the layers.


class FitSettings(NamedTuple):
    """A candidate for the fit of all layers of a segment; lists have one item per branch."""

    blocks: list[Matches]  # Blocks of the original that each branch reproduces.
    family: list[InheritedChannels]  # Channels of the original that each branch keeps.
    start: list[State]  # Weights and statistics of each branch before the fit.


class Candidate(NamedTuple):
    """Weights of a segment, and their error."""

    error: float  # Error on the images for the choice.
    state: State  # Weights and statistics.
    settings: FitSettings | None = None  # Candidate by which all layers were fitted; None if they were not fitted.


#: Number of images of the fits that rank the candidates, if there are more than twice as many; the best candidate is fitted to all.
RANKED = 64


@dataclass(frozen=True)
class FitTask:
    """The fit of one segment to the original.

    Args:
        part: Design of the segment.
        split: Division of the batches between fits and choice.
        near: Whether only the layers in runs with a missing block are fitted.
    """

    captured: Captured
    part: SegmentDesign
    original: Segment
    family: list[InheritedChannels]
    segment: BranchedSegment
    original_branch: Branch
    branch_inputs: Batches
    original_inputs: Batches
    split: Split
    ridge: float
    near: bool = False

    def calibrate(self, layers: bool, choices: ChoiceSettings) -> tuple[float, float, list[torch.Tensor], list[torch.Tensor]]:
        """Keep the candidate with the smallest error on the images for the choice; the unchanged segment is one candidate.

        Args:
            layers: Whether layers are fitted; otherwise only statistics and joins are.

        Returns:
            The errors of the segment as built and of the best candidate, and the outputs of the calibrated and the original segment.
        """
        blocks, settings = self._block_candidates(choices) if layers else [], None
        if blocks and not self.near and self.split.images > 2 * RANKED:
            fewer = self._on_fewer_images()
            ranked = fewer._candidates(fewer._original_values(blocks), blocks, choices)
            settings, blocks = min(ranked, key=_error_of).settings, []
        values = self._original_values([settings.blocks] if settings else blocks)
        built, *fitted = self._candidates(values, blocks, choices, settings)
        if not fitted:
            return built.error, built.error, [self.segment(x) for x in self.branch_inputs], values.outputs
        best = min((built, *fitted), key=_error_of)
        self.segment.load_state_dict(best.state)
        return built.error, best.error, rebase_statistics(self.segment, self.branch_inputs), values.outputs

    def _candidates(
        self, values: OriginalValues, blocks: Sequence[list[Matches]], choices: ChoiceSettings, settings: FitSettings | None = None
    ) -> list[Candidate]:
        """Return the segment as built and all fitted candidates; only `settings` if it is given, and none if the error is zero already."""
        built = Candidate(self._error(self._backbones(values), values), state_of(self.segment))
        if built.error <= _EXACT_ERROR:
            return [built]
        if settings is not None:
            fitted = [self._fit_with(settings, values)]
        else:
            fitted, start = self._fit_statistics(values)
            fitted += self._fit_layers(blocks, start, values, choices) if blocks else []
        self.segment.load_state_dict(built.state)
        return [built, *fitted]

    def _block_candidates(self, choices: ChoiceSettings) -> list[list[Matches]]:
        """Return candidates for the original blocks that each branch reproduces."""
        if self.near:
            return [[{}]]
        sources = [h.branch.source for h in self.family]
        options = candidate_matches(self.original, sources)
        if choices.blocks and not self.part.missing:  # otherwise the blocks of least loss are missing already
            fitted = self.original_inputs[: self.split.fitted]
            options.append(choose_blocks(self.part, self.original, sources, self.original_branch, fitted, self.ridge))
        return _distinct(options)

    def _on_fewer_images(self) -> "FitTask":
        """Return the same fit on a subset of the images."""
        fitted, every = self.split.fitted, self.split.images // RANKED

        def take(batches: Batches) -> list[torch.Tensor]:
            return list(torch.cat([x[::every] for x in batches]).split(len(batches[0])))

        parts = [[take(batches[:fitted]), take(batches[fitted:])] for batches in (self.branch_inputs, self.original_inputs)]
        split = Split(len(parts[0][0]), sum(map(len, parts[0][0])))
        branch_inputs, original_inputs = (first + second for first, second in parts)
        return replace(self, branch_inputs=branch_inputs, original_inputs=original_inputs, split=split)

    def _original_values(self, blocks: Iterable[list[Matches]]) -> OriginalValues:
        """Run the original to get the targets of the segment and of its branches' layers."""
        targets = {
            target
            for matches_by_branch in blocks
            for inherited, branch, matches in zip(self.family, self._branches, matches_by_branch, strict=True)
            for target in self._branch_fit(inherited, branch, matches).layer_targets
        }
        outputs, layers = collect_targets(self.original_branch, self.original_inputs, self.split.fitted, targets)
        return OriginalValues(outputs, torch.cat([rows_of(y, self._row_count) for y in outputs[: self.split.fitted]]), layers)

    def _fit_statistics(self, values: OriginalValues) -> tuple[list[Candidate], list[State]]:
        """Fit only the joins, and again with new statistics; also return the branches' states with these, from which layer fits start."""
        if self.near:
            return [], [state_of(branch) for branch in self._branches]
        candidates = []
        if self._trunk_branches(self.family, values):
            built = [self._backbone([backbone_of(branch, x) for x in self.branch_inputs]) for branch in self._branches]
            candidates.append(self._fit_joins(self.family, built, values))
        renewed = [self._backbone(renewed_backbone(branch, self.branch_inputs, self.split.fitted)) for branch in self._branches]
        start = [state_of(branch) for branch in self._branches]
        return [*candidates, self._fit_joins(self.family, renewed, values)], start

    def _fit_layers(
        self, blocks: Sequence[list[Matches]], start: list[State], values: OriginalValues, choices: ChoiceSettings
    ) -> list[Candidate]:
        """Fit all layers and the joins for each choice of blocks; a branch that several choices share is fitted once."""
        options = [_distinct(matches[i] for matches in blocks) for i in range(len(self.family))]
        narrowed = any(h.branch.kept[g] < units for h in self.family for g, units in h.branch.channels.units.items())
        if choices.channels and narrowed:
            channels = self._choose_channels(options)
        else:
            channels = [[built] * len(branch_options) for built, branch_options in zip(self.family, options, strict=True)]
        fitted = [
            [self._fit_branch(i, start[i], *option, values) for option in zip(channels[i], options[i], strict=True)]
            for i in range(len(self.family))
        ]
        candidates = []
        for matches_by_branch in blocks:
            numbers = [branch_options.index(matches) for branch_options, matches in zip(options, matches_by_branch, strict=True)]
            settings = FitSettings(matches_by_branch, [kept[n] for kept, n in zip(channels, numbers, strict=True)], start)
            candidates.append(
                self._join_branches(settings, [branch_fits[n] for branch_fits, n in zip(fitted, numbers, strict=True)], values)
            )
        # for the best choice of blocks, also try channels chosen by the norm of their weights, if they differ
        if any(inherited is not built for kept, built in zip(channels, self.family, strict=True) for inherited in kept):
            best = min(candidates, key=_error_of).settings
            assert best is not None
            candidates.append(self._fit_with(FitSettings(best.blocks, self.family, start), values))
        return candidates

    def _choose_channels(self, options: Sequence[Sequence[Matches]]) -> list[list[InheritedChannels]]:
        """Choose the channels of each branch for each of its candidates, by activations."""
        original_inputs = self.original_inputs[: self.split.fitted]
        covariances = find_covariances(self.original_branch, self.original.graph, original_inputs, self.split.images)
        choice = ChannelChoice(self.captured, self.part, covariances, self.ridge)
        chosen: list[list[InheritedChannels]] = []
        for i, (built, branch_options) in enumerate(zip(self.family, options, strict=True)):
            others = [before[-1] for before in chosen]
            chosen.append([choice.choose(i, built, matches, others) for matches in branch_options])
        return chosen

    def _fit_with(self, settings: FitSettings, values: OriginalValues) -> Candidate:
        """Fit all layers and the joins for one candidate."""
        branches = zip(settings.start, settings.family, settings.blocks, strict=True)
        return self._join_branches(settings, [self._fit_branch(i, *branch, values) for i, branch in enumerate(branches)], values)

    def _fit_branch(
        self, index: int, start: State, inherited: InheritedChannels, matches: Matches, values: OriginalValues
    ) -> tuple[State, BranchOutput]:
        """Fit the layers of one branch; return its weights and its output before the join."""
        branch, fitted = self._branches[index], self.split.fitted
        branch.load_state_dict(start)
        if inherited is not self.family[index]:
            fill_branch(branch, self.captured, inherited, self.part.branches[index], matches)
            # a few batches suffice for statistics that only start the regressions
            few = self.branch_inputs[:fitted][:: max(1, self.split.images // RANKED)]
            renewed_backbone(branch, few, len(few))
        elif matches:
            fill_branch(branch, self.captured, inherited, self.part.branches[index], matches, only=matches)
        outputs = self._branch_fit(inherited, branch, matches).run(self.branch_inputs, fitted, values.layers, self.ridge)
        return state_of(branch), self._backbone(outputs)

    def _branch_fit(self, inherited: InheritedChannels, branch: Branch, matches: Matches) -> BranchFit:
        return BranchFit(inherited, branch, matches, self.split.images, self._fitted_ops)

    @cached_property
    def _fitted_ops(self) -> frozenset[str] | None:
        """Operators whose layers are fitted: all if None, else those in runs with a missing block."""
        blocks = self.original.blocks
        runs = {blocks[number].run for number in self.part.missing}
        return frozenset(op for block in blocks if block.run in runs for op in block.ops) if self.near else None

    def _join_branches(self, settings: FitSettings, branches: Sequence[tuple[State, BranchOutput]], values: OriginalValues) -> Candidate:
        """Load fitted branches into the segment, and fit the joins to them."""
        for branch, (state, _) in zip(self._branches, branches, strict=True):
            branch.load_state_dict(state)
        return self._fit_joins(settings.family, [backbone for _, backbone in branches], values)._replace(settings=settings)

    def _fit_joins(self, family: Sequence[InheritedChannels], backbones: Sequence[BranchOutput], values: OriginalValues) -> Candidate:
        """Fit the join in each possible form, and return the best candidate."""
        rows, candidates = [backbone.rows for backbone in backbones], []
        start_joins(self.segment, self.part, family)  # start of the first fit; with a trunk every weight is set again
        trunks = [(ridge, trunk) for trunk in self._trunk_branches(family, values) for ridge in TRUNK_RIDGES]
        for ridge, trunk in [(self.ridge, None), *trunks]:
            fit_join(self.part, self.segment, rows, values.rows, ridge, trunk)
            error = self._error(backbones, values)
            candidates.append(Candidate(error if math.isfinite(error) else math.inf, state_of(self.segment)))
        return min(candidates, key=_error_of)

    def _trunk_branches(self, family: Sequence[InheritedChannels], values: OriginalValues) -> list[int]:
        """Return the branches with all channels: one of them may be nearly right, so that the others add little or nothing."""
        all_channels = list(range(values.rows.shape[1]))
        return [i for i, inherited in enumerate(family) if join_of(self.part.join).adds and inherited.backbone.tolist() == all_channels]

    @cached_property
    def _branches(self) -> list[Branch]:
        return [branch for branch in self.segment.children() if isinstance(branch, Branch)]

    @cached_property
    def _row_count(self) -> int:
        """Number of pixels per image for regressions; a join reads all branches, and no regression has more inputs."""
        branches = zip(self.family, self._branches, strict=True)
        join_inputs = sum(h.branch.graph.by_name[_backbone_name(h, branch)].shape[1] for h, branch in branches)
        return pixels_for(self.split.images, join_inputs)

    def _backbone(self, batches: Batches) -> BranchOutput:
        return BranchOutput(torch.cat([rows_of(x, self._row_count) for x in batches[: self.split.fitted]]), batches[self.split.fitted :])

    def _backbones(self, values: OriginalValues) -> list[BranchOutput]:
        """Return the present backbones of the branches; rows only if the error needs them."""
        if join_of(self.part.join).widens:
            return [self._backbone([backbone_of(branch, x) for x in self.branch_inputs]) for branch in self._branches]
        no_rows, held_back = values.rows[:0], self.branch_inputs[self.split.fitted :]
        return [BranchOutput(no_rows, [backbone_of(branch, x) for x in held_back]) for branch in self._branches]

    def _readout(self, backbones: Sequence[BranchOutput], values: OriginalValues) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function that makes the segment's output comparable with the original's."""
        if not join_of(self.part.join).widens:
            return lambda output: output
        weight, bias = readout(torch.cat([backbone.rows for backbone in backbones], 1), values.rows, self.ridge)
        return lambda output: torch.einsum("oc,nc...->no...", weight, output) + bias.reshape(-1, *[1] * (output.dim() - 2))

    def _error(self, backbones: Sequence[BranchOutput], values: OriginalValues) -> float:
        """Return the squared error over the square of the original's output, on the images of the choice."""
        squared_error = total = 0.0
        read = self._readout(backbones, values)
        joins = [branch.get_submodule(JOIN_CONV) if hasattr(branch, JOIN_CONV) else None for branch in self._branches]
        for number, target in enumerate(values.outputs[self.split.fitted :]):
            parts = [join(t.held_back[number]) if join else t.held_back[number] for join, t in zip(joins, backbones, strict=True)]
            output = self.segment.join(*parts) if len(parts) > 1 else parts[0]
            squared_error += float((read(output) - target).square().sum(dtype=torch.float64))
            total += float(target.square().sum(dtype=torch.float64))
        return squared_error / total if total > 0 else squared_error


def _error_of(candidate: Candidate) -> float:
    return candidate.error


def _backbone_name(inherited: InheritedChannels, branch: Branch) -> str:
    """Return the operator that a branch's join reads, or the branch's last operator."""
    return next((reads[0] for name, reads, _ in branch.steps if name == JOIN_CONV), inherited.branch.graph.output)


def _distinct(options: Iterable[_T]) -> list[_T]:
    """Return the distinct options in order."""
    distinct: list[_T] = []
    for option in options:
        if option not in distinct:
            distinct.append(option)
    return distinct


def state_of(module: torch.nn.Module) -> State:
    """Return copies of the weights and statistics of a module, by name."""
    return {key: value.clone() for key, value in module.state_dict().items()}
