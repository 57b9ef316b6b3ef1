"""Calibration of one segment: several fits, and the choice between them on images that none of them saw."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import nn

from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.operators import kind_of
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import SegmentDesign, safe_name
from stretch.planning.design.scale import JOIN_CONV, ScaledBranch
from stretch.planning.network.segments import Block, ChannelGroups, Segment
from stretch.transform.build import fill_branch, start_joins
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
    same_structure,
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

    The removal of some inputs costs the squared error that is left after the rest is refitted, which is known without
    refitting: wᵀ [H⁻¹]⁻¹ w, with that part of the inverse of the inputs' covariance H which is theirs (optimal brain surgeon: Hassibi and Stork 1993; for
    channels of a network the criterion of ThiNet, Luo et al. 2017, and of He et al. 2017).

    The inverse stays as it is, and may be shared: the changes of removals are kept as a factor with a row for each removed input.

    Args:
        covariance: Of the inputs, (inputs, inputs) float64.
        weight: (outputs, inputs).
        size: Reference of the costs; the variance of the outputs by default.
        inverse: That of the covariance (`inverse_of`), where it is known.
    """

    def __init__(
        self, covariance: torch.Tensor, weight: torch.Tensor, ridge: float, size: float | None = None, inverse: torch.Tensor | None = None
    ) -> None:
        self._weight = weight.double()
        if size is None:
            size = float(((self._weight @ covariance) * self._weight).sum())
        self._size = max(size, 1e-30)
        self._inverse = inverse_of(covariance, ridge) if inverse is None else inverse
        # the inverse as it is now is `_inverse` - `_factor`ᵀ `_factor`
        self._factor = self._inverse.new_empty(0, len(covariance))
        # diagonal blocks of that for the units last asked about, and where the block of a unit's first input lies
        self._units, self._blocks = torch.empty(0, 0, dtype=torch.long), self._inverse.new_empty(0)
        self._place = torch.full((len(covariance),), -1, device=covariance.device)

    def costs(self, units: torch.Tensor) -> torch.Tensor:
        """Error by the removal of each single unit, relative to the variance of the outputs."""
        weight = self._weight[:, units].movedim(0, 2)
        solved: torch.Tensor = torch.linalg.solve(self._diagonal_blocks(units), weight)
        return (weight * solved).sum((1, 2)) / self._size

    def _diagonal_blocks(self, units: torch.Tensor) -> torch.Tensor:
        """The part of the inverse that is each unit's own, (units, inputs of each, inputs of each)."""
        places = self._place[units[:, 0]]
        if self._units.shape[1:] != units.shape[1:] or bool((places < 0).any()):
            self._units = units
            self._blocks = self._inverse[units[:, :, None], units[:, None, :]] - _products(self._factor, units)
            self._place.fill_(-1)
            places = torch.arange(len(units), device=units.device)
            self._place[units[:, 0]] = places
        return self._blocks[places]

    def remove(self, inputs: torch.Tensor) -> None:
        """Remove these inputs and refit the rest."""
        rows = self._inverse[inputs] - self._factor[:, inputs].mT @ self._factor
        block = (rows[:, inputs] + rows[:, inputs].mT) / 2
        triangle, failed = torch.linalg.cholesky_ex(block)
        if failed:
            # rounding may leave a block that is a little less than positive
            values, vectors = torch.linalg.eigh(block)
            triangle = torch.linalg.qr((vectors * values.clamp_min(1e-12 * values.max()).sqrt()).mT).R.mT
        factor = torch.linalg.solve_triangular(triangle, rows, upper=False)
        self._weight -= self._weight[:, inputs] @ torch.linalg.solve_triangular(triangle.mT, factor, upper=True)
        self._factor = torch.cat((self._factor, factor))
        if len(self._units):
            self._blocks -= _products(factor, self._units)


def _products(factor: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Diagonal blocks of `factor`ᵀ `factor` for units of inputs."""
    columns = factor[:, units].movedim(0, 2)
    return columns @ columns.mT


def keep_units(count: int, keep: int, readers: list[tuple[Elimination, torch.Tensor]]) -> torch.Tensor:
    """Units that remain after removing one after the other those with the smallest total error of all readers."""
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
    """The conditional covariance given some of the variables.

    Args:
        covariance: (n, n) float64.
        known: Which, (m,) int64, each once.
    """
    if not len(observed):
        return covariance
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    eye = torch.eye(len(observed), dtype=covariance.dtype, device=covariance.device)
    rows = covariance[observed]
    explained: torch.Tensor = rows.mT @ torch.linalg.solve(rows[:, observed] + penalty * eye, rows)
    return covariance - explained


def inverse_of(covariance: torch.Tensor, ridge: float) -> torch.Tensor:
    """Of a covariance with a penalty on its diagonal, `ridge` times the mean variance."""
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


#: Layers with more inputs are ignored, as their covariance would be too expensive.
MAX_INPUTS = 4608

#: Smallest penalty of the choice.
_MIN_RIDGE = 1e-4


@dataclass(frozen=True)
class Covariances:
    """Covariances of the original segment."""

    #: Of the inputs of its dense layers, by name, (inputs, inputs) float64, inputs in the order of the layer's weights.
    layers: Mapping[str, torch.Tensor]
    end: torch.Tensor  # Of its output, (channels, channels) float64.


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
    return Covariances({name: sums.covariance()[0] for name, sums in products.items()}, end.covariance()[0])


class ChannelChoice:
    """Chooses channels for the branches of one segment on the original's activations.

    From the end of a segment to its beginning, each group of channels loses those whose removal costs the layers that read
    them least after the others were refitted (`Elimination`); of the outputs of these layers only the channels that were kept
    count. Batch-norms are folded into the layers. A backbone is read by the branch's own layers and by its part of the join:
    where joins add up, that needs only what the branches before it do not hand on already.
    Backbones that are concatenated stay, since the next segment was built for them, and so does what a slice cuts out.

    Args:
        part: The segment's design.
    """

    def __init__(self, captured: Captured, part: SegmentDesign, covariances: Covariances, ridge: float) -> None:
        # smaller eigenvalues are rounding errors of fp32 products
        self._captured, self._part, self._covariances, self._ridge = captured, part, covariances, max(ridge, _MIN_RIDGE)
        # every branch and way begins with the same inverses
        self._inverses: dict[str, torch.Tensor] = {}

    def choose(self, index: int, inherited: InheritedChannels, matches: Matches, others: Sequence[InheritedChannels]) -> InheritedChannels:
        """Return the parts that a branch keeps."""
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
                moved = [(layer, columns.to(self._covariances.end.device)) for layer, columns in reading]
                chosen[group] = keep_units(channels.units[group], branch.kept[group], moved).cpu()
            open_groups.discard(group)
        return replace(inherited, chosen=chosen)

    def _layer(
        self, source: OpGraph, channels: ChannelGroups, name: str, decided: Mapping[int, torch.Tensor], matches: Matches
    ) -> Elimination | None:
        """A layer with all its inputs, and its outputs that are known to stay."""
        original = matches.get(name, name)
        if original not in self._covariances.layers:
            return None
        covariance = self._covariances.layers[original]
        weight = self._captured.weights[original]["weight"].detach().flatten(1).double()
        norm = tail_of(source, name).norm
        if norm is not None:
            # Batch-norm folded: errors of a channel count as large as they are behind it.
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
        """The branch's part of the join, as one that reads its backbone; None where the group is not in it."""
        join = join_of(self._part.join)
        # the backbone has the channels of the segment's end for any last block
        columns = _units(branch.channels, branch.source.output, group, 1)
        if not join.convolves or columns is None:
            return None
        covariance = self._covariances.end
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
    """Layers that have a weight for each channel that they read, in order."""
    return [op.name for op in source.ops if op.kind != "input" and kind_of(op.kind).dense(op.attrs)]


def _last_reader(source: OpGraph, channels: ChannelGroups, readers: Iterable[str], group: int) -> int:
    """Position of the last reader of a group; the end of the segment is last."""
    if any(g == group for g, _ in channels.pieces[source.output]):
        return len(source.ops)
    position = {op.name: i for i, op in enumerate(source.ops)}
    reads = [position[name] for name in readers if any(g == group for g, _ in channels.pieces[source.by_name[name].inputs[0]])]
    return max(reads, default=-1)


def _columns(source: OpGraph, channels: ChannelGroups, name: str, group: int) -> torch.Tensor | None:
    """Inputs of a layer that are one unit of a group each, (units, inputs of each); None if it does not read the group."""
    op = source.by_name[name]
    kernel = op.attrs.get("kernel", (1, 1))
    assert isinstance(kernel, tuple)
    taps = 1
    for size in kernel:
        assert isinstance(size, int)
        taps *= size
    return _units(channels, op.inputs[0], group, taps)


def _units(channels: ChannelGroups, tensor: str, group: int, taps: int) -> torch.Tensor | None:
    """Numbers of a tensor's channels, each `taps` inputs, that are one unit of a group each; None if it has none."""
    parts, start = [], 0
    for unit_group, per in channels.pieces[tensor]:
        units = channels.units[unit_group]
        if unit_group == group:
            parts.append(start * taps + torch.arange(units * per * taps).reshape(units, per * taps))
        start += units * per
    return torch.cat(parts, 1) if parts else None


def _kept_channels(channels: ChannelGroups, name: str, decided: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Channels of an operator's output that stay, each once; all of a group that is not decided."""
    parts, start = [], 0
    for group, per in channels.pieces[name]:
        units = decided[group].unique() if group in decided else torch.arange(channels.units[group])
        parts.append((start + units[:, None] * per + torch.arange(per)).flatten())
        start += channels.units[group] * per
    return torch.cat(parts)


#: Number of images for the choice, and approximate maximum number of runs of the segment per branch.
IMAGES, RUNS = 64, 96
#: Blocks whose removal is tried together: what is before them is computed once.
TRIED = 3
#: Pixels of the output per channel.
PIXELS = 32


def choose_blocks(
    part: SegmentDesign, segment: Segment, sources: Sequence[OpGraph], original_branch: Branch, original_inputs: Batches, ridge: float
) -> list[Matches]:
    """Choose the original's blocks of each branch such that the segment's error is small.

    One block after the other is left out of the original, each time the one without which its output is best predicted from the
    rest, by the linear map that a join is. Branches whose join adds up, or whose backbones the next segment reads together,
    are chosen one after the other, each given those before it, so that they complement each other. How many blocks of each
    run stay is the design's, blocks that change the shape always do, and where the blocks of a run differ, it stays as it is.
    """
    left_out = [_dropped_counts(segment, source) for source in sources]
    if not any(left_out):
        return [{} for _ in sources]
    images = torch.cat(list(original_inputs))
    chosen = images[torch.arange(min(len(images), IMAGES)) * len(images) // min(len(images), IMAGES)]
    without = _RowsWithoutBlocks(segment, original_branch, chosen.split(len(original_inputs[0])))
    runs = {run for counts in left_out for run in counts}
    alone = [i for i, block in enumerate(segment.blocks) if block.removable and block.run in runs]
    targets, *rows = without(set(), alone)
    rows_alone = dict(zip(alone, rows, strict=True))
    join, outputs, branch_matches, start = join_of(part.join), list[torch.Tensor](), [], 0
    for scale, source, counts in zip(part.branches, sources, left_out, strict=True):
        partition = slice(start, start + scale.partition) if join.divides else slice(None)
        start += scale.partition
        removed = _choose(without, rows_alone, counts, targets[:, partition], outputs, ridge)
        branch_matches.append(_matches(segment, source, [segment.blocks[i] for i in sorted(removed)]))
        if join.adds or join.widens:
            outputs += without(removed)
    return branch_matches


@dataclass(frozen=True)
class _RowsWithoutBlocks:
    """Computes some pixels of a segment's output without some of its blocks."""

    segment: Segment
    original_branch: Branch
    batches: Batches

    def __call__(self, removed: Collection[int], others: Sequence[int] = ()) -> list[torch.Tensor]:
        """Rows without the blocks of these numbers, then without each of `others` besides."""
        blocks = self.segment.blocks
        outputs = zip(
            *(
                outputs_without_blocks(self.original_branch, [blocks[i] for i in removed], [blocks[i] for i in others], x)
                for x in self.batches
            ),
            strict=True,
        )
        images = sum(map(len, self.batches))
        return [torch.cat([rows_of(y, -(-PIXELS * y.shape[1] // images)) for y in parts]) for parts in outputs]


def outputs_without_blocks(
    original_branch: Branch, removed: Sequence[Block], others: Sequence[Block], x: torch.Tensor
) -> list[torch.Tensor]:
    """Outputs of a segment with some blocks replaced by identities, and with each of others replaced besides; what is before those is computed once."""
    (source,), (result,) = original_branch.sources, original_branch.results
    ends, dropped = {block.end: block.start for block in removed}, {name for block in removed for name in block.ops}
    steps, arriving = original_branch.steps, {source: x}
    wanted = {block.start for block in others}
    numbers = {name: number for number, (name, _, _) in enumerate(steps)}

    def run(values: dict[str, torch.Tensor], first: int) -> torch.Tensor:
        for name, reads, done in steps[first:]:
            if name in ends:
                values[name] = values.pop(ends[name])
            elif name not in dropped:
                values[name] = original_branch.get_submodule(name)(*(values[read] for read in reads))
                for old in done:
                    del values[old]
            if name in wanted and name in values:
                arriving.setdefault(name, values[name])
        return values[result]

    whole = run(dict(arriving), 0)
    return [whole, *(run({block.end: arriving[block.start]}, numbers[block.end] + 1) for block in others)]


def _dropped_counts(segment: Segment, source: OpGraph) -> dict[int, int]:
    """Number of blocks that a branch leaves out of each run, for runs with a choice."""
    counts: dict[int, int] = {}
    for block in segment.blocks:
        if block.ops[0] not in source.by_name:
            counts[block.run] = counts.get(block.run, 0) + 1
    return {run: count for run, count in counts.items() if _is_repeated(segment, run)}


def _is_repeated(segment: Segment, run: int) -> bool:
    """Whether the removable blocks of a run have the same structure."""
    first, *others = (block for block in segment.blocks if block.run == run and block.removable)
    return all(same_structure(segment.graph, first, other) for other in others)


def _choose(
    without: _RowsWithoutBlocks,
    rows_alone: Mapping[int, torch.Tensor],
    counts: dict[int, int],
    target: torch.Tensor,
    outputs: Sequence[torch.Tensor],
    ridge: float,
) -> set[int]:
    """Numbers of the blocks whose removal changes the output least, one after the other, with the given number per run."""
    blocks, remaining, removed = without.segment.blocks, dict(counts), set[int]()
    errors = {i: _residual_variance([*outputs, rows], target, ridge) for i, rows in rows_alone.items() if blocks[i].run in counts}
    # greedy one by one if that is cheap; else several at a time
    at_once = max(1, -(-sum(counts.values()) * len(errors) // (2 * RUNS)))
    current = set(errors)
    while True:
        ranked = sorted((i for i in errors if i not in removed and remaining[blocks[i].run]), key=lambda i: errors[i])
        # a block is missed no less for others being gone, so that one that was missed more before needs no second look
        doubtful = [i for i in ranked[:at_once] if i not in current]
        if doubtful:
            tried = [i for i in ranked if i not in current][: max(at_once, TRIED)]
            for i, rows in zip(tried, without(removed, tried)[1:], strict=True):
                errors[i] = _residual_variance([*outputs, rows], target, ridge)
            current.update(tried)
            continue
        for i in ranked[:at_once]:
            run = blocks[i].run
            if remaining[run]:
                remaining[run] -= 1
                removed.add(i)
        if not any(remaining.values()):
            return removed
        current = set()


def _residual_variance(inputs: Sequence[torch.Tensor], target: torch.Tensor, ridge: float) -> float:
    """Squared error of the best linear map over the variance."""
    x = torch.cat(list(inputs), 1)
    sums = Regression(1, x.shape[1], target.shape[1], x.device)
    sums.add(x, target)
    weight, bias = sums.solve(ridge, torch.zeros(target.shape[1], x.shape[1], device=x.device))
    return float((x @ weight.T + bias - target).square().sum() / (target - target.mean(0)).square().sum().clamp_min(1e-12))


def _matches(segment: Segment, source: OpGraph, removed: Sequence[Block]) -> Matches:
    """Operators of the blocks that a branch has, and those of the blocks that stay; only where they are others."""
    matches: Matches = {}
    for run in {block.run for block in removed}:
        blocks = [block for block in segment.blocks if block.run == run]
        branch_blocks = [block for block in blocks if block.ops[0] in source.by_name]
        remaining = [block for block in blocks if block not in removed]
        for own, other in zip(branch_blocks, remaining, strict=True):
            if own is not other:
                matches.update(zip(own.ops, other.ops, strict=True))
    return matches


def fit_join(
    part: SegmentDesign,
    segment: BranchedSegment,
    backbones: Sequence[torch.Tensor],
    target: torch.Tensor,
    ridge: float,
    trunk: int | None = None,
) -> None:
    """Put the regressions into the 1×1 convolutions of a join.

    A join that adds up, such as `sum`, regresses the whole backbone on all branches together;
    others regress each branch's part of it, or all of it, on that branch alone. Joins
    without convolutions have no weights.

    Args:
        backbones: Of each branch, what its convolution reads, (rows, channels).
        target: The original's backbone, (rows, channels).
        ridge: Weight of the penalty.
        trunk: Of a join that adds up, a branch that hands on its whole backbone as it is; the others regress what it lacks.
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
            # A sum adds up the biases of its branches: the first carries it.
            conv.bias.copy_(bias if conv is convs[0] else torch.zeros_like(bias))
        start = 0 if join.whole else stop


def readout(output: torch.Tensor, target: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The map that makes the most of a join without convolutions: of the original's backbone on the concatenated one.

    Those who read the backbone are fitted after it; this says what they can get from it.
    """
    prior = torch.zeros(target.shape[1], output.shape[1], device=target.device)
    sums = Regression(1, prior.shape[1], len(prior), prior.device)
    sums.add(output, target)
    return sums.solve(ridge, prior)


#: Penalties of the others' additions to a branch that has all channels; the last leaves nothing of it.
TRUNK_RIDGES = (1e-4, 1e-2, 1.0, 1e6)

#: A smaller error than this is rounding: the segment computes what the original does.
_EXACT_ERROR = 1e-9

State = dict[str, torch.Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True)
class BranchOutput:
    """Facts of a branch that a join and its error need."""

    rows: torch.Tensor  # Pixels before the join of the images that fits look at, (rows, channels).
    held_back: Batches  # All that is before the join of the images for the choice, in batches.


@dataclass(frozen=True)
class ChoiceSettings:
    """Choices on activations, in addition to those that the design alone suggests."""

    channels: bool = True  # Which channels a branch keeps (`ChannelChoice`).
    blocks: bool = True  # Which blocks it reproduces (`choose_blocks`).


#: Whatever can be chosen so.
ALL_CHOICES = ChoiceSettings()


@dataclass(frozen=True)
class FittedBranch:
    """One branch, fitted in one way."""

    matches: Matches  # Blocks of the original that its own reproduce.
    heritage: InheritedChannels  # Channels that it keeps of the original.
    state: State  # Its weights and statistics.
    backbone: BranchOutput  # Its output before the join.


@dataclass(frozen=True, eq=False)
class Candidate:
    """A segment that was fitted in one way."""

    error: float  # On the images for the choice; infinite where no fit has a finite one.
    state: State  # Its weights and statistics.


def _best(candidates: Iterable[Candidate]) -> Candidate:
    return min(candidates, key=lambda candidate: candidate.error)


@dataclass
class FitTask:
    """Fit of one segment to the original.

    Args:
        part: The segment's design.
        split: Which batches are for fits, which for the choice.

    Attributes:
        targets: The original's outputs, once `calibrate` is done.
        outputs: The calibrated segment's outputs.
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
    targets: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    _target_rows: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    #: Pixels of every image that regressions take; a join reads all branches, and no regression has more inputs.
    _row_count: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the pixels."""
        branches = zip(self.family, self._branches(), strict=True)
        join_inputs = sum(h.branch.graph.by_name[_backbone_name(h, branch)].shape[1] for h, branch in branches)
        self._row_count = pixels_for(self.split.images, join_inputs)

    def calibrate(self, layers: bool, choices: ChoiceSettings) -> tuple[float, float]:
        """Keep the candidate that is best on the images for the choice, including the segment as it was built.

        Args:
            layers: Whether layers are fitted, not statistics and joins alone.

        Returns:
            The errors as built and in the end.
        """
        branches, fitted = self._branches(), self.split.fitted
        segment_options = self._block_candidates(choices) if layers else []
        options = [_distinct(candidate[i] for candidate in segment_options) for i in range(len(branches))]
        looks = {
            layer_look
            for i, branch_options in enumerate(options)
            for m in branch_options
            for layer_look in self._branch_fit(self.family[i], branches[i], m).layer_targets
        }
        self.targets, rows_by_look = collect_targets(self.original_branch, self.original_inputs, fitted, looks)
        self._target_rows = torch.cat([rows_of(y, self._row_count) for y in self.targets[:fitted]])
        before = self._error(self._backbones(branches))
        if before <= _EXACT_ERROR:
            self.outputs = [self.segment(x) for x in self.branch_inputs]
            return before, before
        candidates = [Candidate(before, _state(self.segment))]
        if self._trunk_branches(self.family):
            built = [self._backbone([backbone_of(branch, x) for x in self.branch_inputs]) for branch in branches]
            candidates.append(self._fit_joins(self.family, built))
        renewed = [self._backbone(renewed_backbone(branch, self.branch_inputs, fitted)) for branch in branches]
        start = [_state(branch) for branch in branches]
        candidates.append(self._fit_joins(self.family, renewed))
        if segment_options:
            candidates += self._fit_layers(segment_options, options, start, rows_by_look, choices)
        best = _best(candidates)
        self.segment.load_state_dict(best.state)
        self.outputs = rebase_statistics(self.segment, self.branch_inputs)
        return before, best.error

    def _block_candidates(self, choices: ChoiceSettings) -> list[list[Matches]]:
        """Return candidates of which original blocks each branch reproduces."""
        sources = [h.branch.source for h in self.family]
        options = candidate_matches(self.original, sources)
        if choices.blocks:
            fitted = self.original_inputs[: self.split.fitted]
            options.append(choose_blocks(self.part, self.original, sources, self.original_branch, fitted, self.ridge))
        return _distinct(options)

    def _fit_layers(
        self,
        segment_options: Sequence[list[Matches]],
        options: Sequence[Sequence[Matches]],
        start: Sequence[State],
        rows_by_look: Mapping[LayerTarget, Batches],
        choices: ChoiceSettings,
    ) -> list[Candidate]:
        """Fit all layers and the joins for each choice of blocks."""
        heritages_by_branch = (
            self._choose_channels(options)
            if choices.channels
            else [[built] * len(branch_options) for built, branch_options in zip(self.family, options, strict=True)]
        )
        fitted_branches = [
            [
                self._fit_branch(i, start[i], inherited, matches, rows_by_look)
                for inherited, matches in zip(heritages, branch_options, strict=True)
            ]
            for i, (heritages, branch_options) in enumerate(zip(heritages_by_branch, options, strict=True))
        ]
        candidates = [
            self._fit_joins_of(
                [fitted[list(matches).index(m)] for fitted, matches, m in zip(fitted_branches, options, blocks, strict=True)]
            )
            for blocks in segment_options
        ]
        # channels by the norm of their weights, where that is something else, for the best choice of blocks alone
        if any(h is not built for branch_options, built in zip(heritages_by_branch, self.family, strict=True) for h in branch_options):
            blocks = segment_options[candidates.index(_best(candidates))]
            candidates.append(
                self._fit_joins_of([self._fit_branch(i, start[i], self.family[i], m, rows_by_look) for i, m in enumerate(blocks)])
            )
        return candidates

    def _choose_channels(self, options: Sequence[Sequence[Matches]]) -> list[list[InheritedChannels]]:
        """Choose the channels that each branch keeps for each of its candidates, by activations."""
        narrowed = any(h.branch.kept[g] < units for h in self.family for g, units in h.branch.channels.units.items())
        if not narrowed:
            return [[built] * len(branch_options) for built, branch_options in zip(self.family, options, strict=True)]
        original_inputs = self.original_inputs[: self.split.fitted]
        covariances = find_covariances(self.original_branch, self.original.graph, original_inputs, self.split.images)
        choice = ChannelChoice(self.captured, self.part, covariances, self.ridge)
        chosen: list[list[InheritedChannels]] = []
        for i, (built, branch_options) in enumerate(zip(self.family, options, strict=True)):
            others = [before[-1] for before in chosen]
            chosen.append([choice.choose(i, built, matches, others) for matches in branch_options])
        return chosen

    def _fit_joins_of(self, fitted: Sequence[FittedBranch]) -> Candidate:
        """Put fitted branches into the segment, and fit their join."""
        for branch, fitted_branch in zip(self._branches(), fitted, strict=True):
            branch.load_state_dict(fitted_branch.state)
        return self._fit_joins([fitted_branch.heritage for fitted_branch in fitted], [fitted_branch.backbone for fitted_branch in fitted])

    def _fit_joins(self, family: Sequence[InheritedChannels], backbones: Sequence[BranchOutput]) -> Candidate:
        """Fit the join in each way, and return the best segment."""
        rows, best = [backbone.rows for backbone in backbones], Candidate(float("inf"), {})
        start_joins(self.segment, self.part, family)  # start of the first fit; behind a trunk every weight is set again
        for ridge, trunk in [(self.ridge, None), *((ridge, trunk) for trunk in self._trunk_branches(family) for ridge in TRUNK_RIDGES)]:
            fit_join(self.part, self.segment, rows, self._target_rows, ridge, trunk)
            error = self._error(backbones)
            if error < best.error:
                best = Candidate(error, _state(self.segment))
        return best

    def _trunk_branches(self, family: Sequence[InheritedChannels]) -> list[int]:
        """Branches with all channels: one of them may be right as it is, and others be needed for little or nothing."""
        all_channels = list(range(self._target_rows.shape[1]))
        return [i for i, inherited in enumerate(family) if join_of(self.part.join).adds and inherited.backbone.tolist() == all_channels]

    def _branch_fit(self, inherited: InheritedChannels, branch: Branch, matches: Matches) -> BranchFit:
        return BranchFit(inherited, branch, matches, self.split.images)

    def _branches(self) -> list[Branch]:
        return [branch for branch in self.segment.children() if isinstance(branch, Branch)]

    def _fit_branch(
        self, index: int, start: State, inherited: InheritedChannels, matches: Matches, rows_by_look: Mapping[LayerTarget, Batches]
    ) -> FittedBranch:
        branch, fitted = self._branches()[index], self.split.fitted
        branch.load_state_dict(start)
        if inherited is not self.family[index]:
            fill_branch(branch, self.captured, inherited, self.part.branches[index], matches)
            renewed_backbone(branch, self.branch_inputs[:fitted], fitted)
        elif matches:
            fill_branch(branch, self.captured, inherited, self.part.branches[index], matches, only=matches)
        backbone = self._backbone(self._branch_fit(inherited, branch, matches).run(self.branch_inputs, fitted, rows_by_look, self.ridge))
        return FittedBranch(matches, inherited, _state(branch), backbone)

    def _backbone(self, batches: Batches) -> BranchOutput:
        return BranchOutput(torch.cat([rows_of(x, self._row_count) for x in batches[: self.split.fitted]]), batches[self.split.fitted :])

    def _backbones(self, branches: list[Branch]) -> list[BranchOutput]:
        """Backbones of the branches as they are; rows only where the error needs them."""
        if join_of(self.part.join).widens:
            return [self._backbone([backbone_of(branch, x) for x in self.branch_inputs]) for branch in branches]
        no_rows = torch.empty(0)
        return [BranchOutput(no_rows, [backbone_of(branch, x) for x in self.branch_inputs[self.split.fitted :]]) for branch in branches]

    def _readout(self, backbones: Sequence[BranchOutput]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Makes the segment's output comparable with the original's."""
        if not join_of(self.part.join).widens:
            return lambda output: output
        weight, bias = readout(torch.cat([backbone.rows for backbone in backbones], 1), self._target_rows, self.ridge)
        return lambda output: torch.einsum("oc,nc...->no...", weight, output) + bias.reshape(-1, *[1] * (output.dim() - 2))

    def _error(self, backbones: Sequence[BranchOutput]) -> float:
        """Squared error over the square of the original's output, for the images of the choice."""
        squared_error = total = 0.0
        read = self._readout(backbones)
        joins = [branch.get_submodule(JOIN_CONV) if hasattr(branch, JOIN_CONV) else None for branch in self._branches()]
        for number, target in enumerate(self.targets[self.split.fitted :]):
            parts = [join(t.held_back[number]) if join else t.held_back[number] for join, t in zip(joins, backbones, strict=True)]
            output = self.segment.join(*parts) if len(parts) > 1 else parts[0]
            squared_error += float((read(output) - target).square().sum(dtype=torch.float64))
            total += float(target.square().sum(dtype=torch.float64))
        return squared_error / total if total > 0 else squared_error


def _backbone_name(inherited: InheritedChannels, branch: Branch) -> str:
    """The operator that a branch's join reads, or its last."""
    return next((reads[0] for name, reads, _ in branch.steps if name == JOIN_CONV), inherited.branch.graph.output)


def _distinct(options: Iterable[_T]) -> list[_T]:
    """Return distinct options in order."""
    distinct: list[_T] = []
    for option in options:
        if option not in distinct:
            distinct.append(option)
    return distinct


def _state(module: torch.nn.Module) -> State:
    return {key: value.clone() for key, value in module.state_dict().items()}
