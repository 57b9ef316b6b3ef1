"""Choice of the channels that a segment's branches keep, by the error of the layers that read them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.operators import kind_of
from stretch.capture import Captured
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.scale import ScaledBranch
from stretch.planning.network.channels import ChannelGroups
from stretch.transform.calibrate.layers import tail_of
from stretch.transform.calibrate.match import Matches
from stretch.transform.calibrate.pixels import patches, pixels_for, rows_of
from stretch.transform.calibrate.regression import Products
from stretch.transform.calibrate.walk import Batches
from stretch.transform.model import Branch
from stretch.transform.width import Heritage

#: Maximum number of rounds of removal.
ROUNDS = 64


class Elimination:
    """A linear layer whose inputs are removed, with the remaining weights refitted each time.

    The removal of some inputs costs the squared error that is left after the rest is refitted, which is known without
    refitting: wᵀ [H⁻¹]⁻¹ w, with that part of the inverse of the inputs' covariance H which is theirs (optimal brain surgeon: Hassibi and Stork 1993; for
    channels of a network the criterion of ThiNet, Luo et al. 2017, and of He et al. 2017).

    The inverse stays as it is, and may be shared: what removals take from it is kept as a factor with a row for each input that is gone.

    Args:
        covariance: Of the inputs, (inputs, inputs) float64.
        weight: (outputs, inputs).
        size: What costs are relative to; the variance of the outputs by default.
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
        return (weight * torch.linalg.solve(self._blocks_of(units), weight)).sum((1, 2)) / self._size

    def _blocks_of(self, units: torch.Tensor) -> torch.Tensor:
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
        gone = costs.argsort()[: min(len(alive) - keep, -(-count // ROUNDS))]
        for layer, inputs in readers:
            layer.remove(inputs[alive[gone]].flatten())
        stays = torch.ones(len(alive), dtype=torch.bool, device=alive.device)
        stays[gone] = False
        alive = alive[stays]
    return alive


def conditional_covariance(covariance: torch.Tensor, known: torch.Tensor, ridge: float) -> torch.Tensor:
    """The conditional covariance given some of the variables.

    Args:
        covariance: (n, n) float64.
        known: Which, (m,) int64, each once.
    """
    if not len(known):
        return covariance
    penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
    eye = torch.eye(len(known), dtype=covariance.dtype, device=covariance.device)
    rows = covariance[known]
    return covariance - rows.mT @ torch.linalg.solve(rows[:, known] + penalty * eye, rows)


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
    return (vectors / (values.clamp_min(0) + penalty)) @ vectors.mT


#: Layers with more inputs are ignored, as their covariance would be too expensive.
MOST_INPUTS = 4608

#: Smallest penalty of the choice.
_LEAST_RIDGE = 1e-4


@dataclass(frozen=True)
class Covariances:
    """Covariances of the original segment."""

    #: Of the inputs of its dense layers, by name, (inputs, inputs) float64, inputs in the order of the layer's weights.
    layers: Mapping[str, torch.Tensor]
    end: torch.Tensor  # Of its output, (channels, channels) float64.


def find_covariances(whole: Branch, source: OpGraph, there: Batches, images: int) -> Covariances:
    """Run the original segment and accumulate the covariances of its dense layers' inputs and of its output."""
    products: dict[str, Products] = {}
    handles = []
    for op in source.ops:
        if op.kind == "input" or not kind_of(op.kind).dense(op.attrs):
            continue
        layer = whole.get_submodule(op.name)
        inputs = layer.weight[0].numel()
        if inputs <= MOST_INPUTS:
            products[op.name] = sums = Products(1, inputs, layer.weight.device)
            count = pixels_for(images, inputs)
            handles.append(
                layer.register_forward_pre_hook(
                    lambda module, read, sums=sums, shape=op.shape, count=count: sums.add(patches(module, read[0], shape, count))
                )
            )
    width = source.by_name[source.output].shape[1]
    end = Products(1, width, there[0].device)
    try:
        for x in there:
            end.add(rows_of(whole(x), pixels_for(images, width)))
    finally:
        for handle in handles:
            handle.remove()
    return Covariances({name: sums.covariance()[0] for name, sums in products.items()}, end.covariance()[0])


class ChannelChoice:
    """Chooses channels for the branches of one segment on the original's activations.

    From the end of a segment to its beginning, each group of channels loses those whose removal costs the layers that read
    them least after the others were refitted (`Elimination`); of what these layers write only the channels that were kept
    count. Batch-norms are folded into the layers. A trunk is read by the branch's own layers and by its part of the join:
    where joins add up, that needs only what the branches before it do not hand on already.
    Trunks that are concatenated stay, since the next segment was built for them, and so does what a slice cuts out.

    Args:
        part: The segment's design.
    """

    def __init__(self, captured: Captured, part: SegmentDesign, covariances: Covariances, ridge: float) -> None:
        # smaller eigenvalues are rounding errors of fp32 products
        self._captured, self._part, self._covariances, self._ridge = captured, part, covariances, max(ridge, _LEAST_RIDGE)
        # every branch and way begins with the same inverses
        self._inverses: dict[str, torch.Tensor] = {}

    def choose(self, index: int, heritage: Heritage, matches: Matches, others: Sequence[Heritage]) -> Heritage:
        """What a branch keeps."""
        branch = heritage.branch
        channels, source = branch.channels, branch.source
        scale = self._part.branches[index]
        fixed = {channels.input_group} if scale.entry in ("none", "slice") else set()
        if not join_of(self._part.join).convolves:
            fixed |= {group for group, _ in channels.pieces[source.output]}
        open_groups = {g for g, units in channels.units.items() if branch.kept[g] < units} - fixed
        if not open_groups:
            return heritage
        chosen = dict(heritage.chosen)
        readers = _readers(source, channels)
        layers: dict[str, Elimination] = {}
        for group in sorted(open_groups, key=lambda g: _last(source, channels, readers, g), reverse=True):
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
        return replace(heritage, chosen=chosen)

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
        rows = _kept(channels, name, decided)
        if original not in self._inverses:
            self._inverses[original] = inverse_of(covariance, self._ridge)
        return Elimination(covariance, weight[rows].to(covariance.device), self._ridge, inverse=self._inverses[original])

    def _join(self, index: int, branch: ScaledBranch, others: Sequence[Heritage], group: int) -> tuple[Elimination, torch.Tensor] | None:
        """The branch's part of the join, as one that reads its trunk; None where the group is not in it."""
        join = join_of(self._part.join)
        # the trunk has the channels of the segment's end for any last block
        columns = _units(branch.channels, branch.source.output, group, 1)
        if not join.convolves or columns is None:
            return None
        covariance = self._covariances.end
        size = covariance.diagonal()
        wanted = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        if join.divides:
            start = sum(b.partition for b in self._part.branches[:index])
            rows = slice(start, start + self._part.branches[index].partition)
            wanted, size = wanted[rows], size[rows]
        if join.adds:
            known = [other.trunk for other in others]
            covariance = conditional_covariance(
                covariance, torch.cat(known).unique().to(covariance.device) if known else columns[:0, 0], self._ridge
            )
        return Elimination(covariance, wanted, self._ridge, float(size.sum())), columns


def _readers(source: OpGraph, channels: ChannelGroups) -> list[str]:
    """Layers that have a weight for each channel that they read, in order."""
    return [op.name for op in source.ops if op.kind != "input" and kind_of(op.kind).dense(op.attrs)]


def _last(source: OpGraph, channels: ChannelGroups, readers: Iterable[str], group: int) -> int:
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
    parts, at = [], 0
    for unit_group, per in channels.pieces[tensor]:
        units = channels.units[unit_group]
        if unit_group == group:
            parts.append(at * taps + torch.arange(units * per * taps).reshape(units, per * taps))
        at += units * per
    return torch.cat(parts, 1) if parts else None


def _kept(channels: ChannelGroups, name: str, decided: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Channels of an operator's output that stay, each once; all of a group that is not decided."""
    parts, at = [], 0
    for group, per in channels.pieces[name]:
        units = decided[group].unique() if group in decided else torch.arange(channels.units[group])
        parts.append((at + units[:, None] * per + torch.arange(per)).flatten())
        at += channels.units[group] * per
    return torch.cat(parts)
