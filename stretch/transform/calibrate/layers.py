"""Regression of a branch's layers, in order, from their inputs to the original's activations."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from predictors.graph import OpGraph
from stretch.operators.products import PaddedConv2d
from stretch.planning.design.scale import ENTRY_CONV, ENTRY_NORM, JOIN_CONV
from stretch.planning.network.segments import Block, Segment
from stretch.transform.calibrate.statistics import Batches, Norm, Values, walk
from stretch.transform.model import Branch, statistics_of
from stretch.transform.width import InheritedChannels

#: Operator of a branch → operator of the original that it reproduces, if the two differ.
Matches = dict[str, str]


def candidate_matches(segment: Segment, sources: Sequence[OpGraph]) -> list[list[Matches]]:
    """Return the candidate assignments of a segment's blocks to its branches.

    A branch that drops blocks keeps the first ones of each run. Its join does better if
    another branch computes the contribution of the last ones, so that the branches
    cover the whole segment together. The data decide which branch takes which end.
    """
    late = [_match_from_end(segment, source) for source in sources]
    options: list[list[Matches]] = [[{} for _ in sources]]
    for first in range(len(sources)):
        matches = [{} if i == first else branch_matches for i, branch_matches in enumerate(late)]
        if matches not in options:
            options.append(matches)
    return options


def _match_from_end(segment: Segment, source: OpGraph) -> Matches:
    """Match a branch's blocks with the last blocks of each run, if their structure is the same."""
    matches: Matches = {}
    for run in dict.fromkeys(block.run for block in segment.blocks):
        blocks = [block for block in segment.blocks if block.run == run]
        remaining = [block for block in blocks if block.ops[0] in source.by_name]
        for kept_block, other in zip(reversed(remaining), reversed(blocks), strict=False):
            if kept_block is not other and same_structure(segment.graph, kept_block, other):
                matches.update(zip(kept_block.ops, other.ops, strict=True))
    return matches


def same_structure(graph: OpGraph, a: Block, b: Block) -> bool:
    """Return whether two blocks have the same operators in the same order with the same connections."""
    names = {a.start: b.start} | dict(zip(a.ops, b.ops, strict=False))
    pairs = [(graph.by_name[x], graph.by_name[y]) for x, y in zip(a.ops, b.ops, strict=False)]
    return len(a.ops) == len(b.ops) and all(
        x.kind == y.kind and x.shape == y.shape and x.attrs == y.attrs and tuple(names.get(n) for n in x.inputs) == y.inputs
        for x, y in pairs
    )


#: Maximum number of rows of a regression: at least a hundred per input for the layers of small networks.
ROWS = 2**16
#: Maximum number of multiplications for a regression's products of inputs, and of stored values: wide layers get fewer rows …
PRODUCTS = 2 * 10**10
NUMBERS = 2**26
#: … but at least the first number of rows per input, and never more than the second.
ROWS_PER_INPUT, MOST_PER_INPUT = 4, 512
#: Maximum number of pixels per image: further ones add almost no information, because neighbours are similar.
PIXELS = 256


def pixels_for(images: int, inputs: int, groups: int = 1) -> int:
    """Return the number of pixels per image that gives a regression enough rows."""
    rows = min(ROWS, MOST_PER_INPUT * inputs, PIXELS * images, PRODUCTS // (groups * inputs**2), NUMBERS // (groups * inputs))
    return math.ceil(max(rows, ROWS_PER_INPUT * inputs) / images)


@lru_cache(maxsize=256)
def evenly_spaced_pixels(height: int, width: int, count: int) -> torch.Tensor:
    """Return the indices of `count` pixels of a map, ascending; all pixels if it has no more.

    The indices depend only on the size of the map. Every image gives the same pixels, so
    that results do not depend on how images are divided into batches.
    """
    if count >= height * width:
        return torch.arange(height * width)
    generator = torch.Generator().manual_seed(height * width)
    return torch.randperm(height * width, generator=generator)[:count].sort().values


def rows_of(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return the values of the chosen pixels, (images · pixels, channels); a vector counts as one pixel."""
    if x.dim() == 2:
        return x
    chosen = evenly_spaced_pixels(x.shape[2], x.shape[3], count).to(x.device)
    return x.flatten(2).mT.index_select(1, chosen).flatten(0, 1)


def patches(layer: nn.Conv2d | nn.Linear, x: torch.Tensor, out: tuple[int, ...], count: int) -> torch.Tensor:
    """Return the inputs of `layer` for each chosen pixel of its output.

    Returns:
        (images · pixels, channels · kernel height · kernel width), in the order of the layer's weights.
    """
    if isinstance(layer, nn.Linear):
        return x
    height, width = out[2:]
    chosen = evenly_spaced_pixels(height, width, count).to(x.device)
    (tall, wide), (down, across), (dy, dx) = layer.kernel_size, layer.stride, layer.dilation
    top, left, bottom, right = layer.pads if isinstance(layer, PaddedConv2d) else (*_pair(layer), *_pair(layer))
    padded = F.pad(x, (left, right, top, bottom))
    rows = (chosen // width * down)[:, None] + torch.arange(tall, device=x.device) * dy
    columns = (chosen % width * across)[:, None] + torch.arange(wide, device=x.device) * dx
    places = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).flatten(1)
    # Gathered pixel by pixel: the values of a pixel are adjacent in memory if images are stored channels last.
    read = padded.flatten(2).mT.index_select(1, places.flatten()).reshape(len(x), len(chosen), tall * wide, x.shape[1])
    return read.mT.reshape(-1, x.shape[1] * tall * wide)


def _pair(layer: nn.Conv2d) -> tuple[int, int]:
    padding = layer.padding
    assert isinstance(padding, tuple)
    return padding[0], padding[1]


#: Maximum and minimum number of rows whose products are summed in fp32, and number of values that fit into a processor's caches.
_MOST_ROWS, _LEAST_ROWS, _NUMBERS = 8192, 256, 2**22

#: Number of inputs whose products with themselves and with the targets are one matrix product.
_BLOCK = 192


class Products:
    """Sums of products of inputs with inputs, and with outputs, separately per group of channels, in float64.

    Args:
        groups: Number of groups; 1 for a dense layer.

    Attributes:
        count: Number of added rows.
    """

    def __init__(self, groups: int, inputs: int, device: torch.device, outputs: int = 0) -> None:
        #: First the products of inputs with inputs (only the upper triangle, in blocks), then those of inputs with outputs.
        self._products = torch.zeros(groups, inputs, inputs + outputs, dtype=torch.float64, device=device)
        self._sums = torch.zeros(groups, inputs + outputs, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, *parts: torch.Tensor) -> None:
        """Add rows of inputs (rows, groups · inputs) and, if there are outputs, rows of outputs (rows, groups · outputs)."""
        groups, inputs, width = self._products.shape
        chunk = min(_MOST_ROWS, max(_LEAST_ROWS, _NUMBERS // (groups * width)))
        for rows in zip(*(part.split(chunk) for part in parts), strict=True):
            grouped = [part.reshape(len(part), groups, -1) for part in rows]
            stacked = (torch.cat(grouped, 2) if len(grouped) > 1 else grouped[0]).movedim(1, 0)
            # Sums of fp32 products over a few thousand rows are precise enough; the sum of these sums is float64.
            for start in range(0, inputs, _BLOCK):
                stop = min(start + _BLOCK, inputs)
                self._products[:, start:stop, start:] += stacked[:, :, start:stop].mT @ stacked[:, :, start:]
            self._sums += stacked.sum(1)
        self.count += len(parts[0])

    def mean(self) -> torch.Tensor:
        """Return the mean of each input and output, (groups, inputs + outputs)."""
        return self._sums / self.count

    def covariance(self, centred: bool = True) -> torch.Tensor:
        """Return the mean products, (groups, inputs, inputs + outputs); `centred` subtracts the means first."""
        inputs = self._products.shape[1]
        products = self._products / self.count
        upper = products[:, :, :inputs].triu()
        products[:, :, :inputs] = upper + upper.triu(1).mT
        if not centred:
            return products
        mean = self.mean()
        return products - mean[:, :inputs, None] * mean[:, None]


class Regression:
    """Least squares of outputs on inputs, separately per group of channels.

    Only sums are stored, in float64: of products of inputs with inputs, of products of
    inputs with outputs, and of inputs and outputs themselves.

    Args:
        groups: Number of independent regressions; 1 for a dense layer.
    """

    def __init__(self, groups: int, inputs: int, outputs: int, device: torch.device) -> None:
        self._seen, self._inputs = Products(groups, inputs, device, outputs), inputs

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add rows of inputs and outputs."""
        self._seen.add(x, y)

    def solve(self, ridge: float, prior: torch.Tensor, intercept: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights W and biases b that fit the outputs best, and stay near `prior` where the inputs have little variance.

        Minimises mean|y − W x − b|² + λ|W − prior|², with λ the mean square of an input times
        `ridge` + inputs / (10 · rows). With few rows the result stays closer to the prior.
        """
        count, inputs = self._seen.count, self._inputs
        mean_x, mean_y = self._seen.mean().tensor_split([inputs], 1)
        if not intercept:
            mean_x, mean_y = torch.zeros_like(mean_x), torch.zeros_like(mean_y)
        covariance, mixed = self._seen.covariance(intercept).tensor_split([inputs], 2)
        groups, _, outputs = mixed.shape
        share = ridge + (inputs / (10 * count) if ridge else 0.0)
        penalty = share * covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
        start = prior.double().reshape(groups, outputs, inputs).mT
        eye = penalty[:, None, None] * torch.eye(inputs, dtype=torch.float64, device=penalty.device)
        # Solved for the change, so that a prior that already fits is returned unchanged.
        weight = start + torch.linalg.solve(covariance + eye, mixed - covariance @ start)
        bias = mean_y - (mean_x[:, None] @ weight)[:, 0]
        return weight.mT.reshape(groups * outputs, inputs).float(), bias.reshape(-1).float()


#: Name of an operator of the original, and the number of sampled pixels per image.
LayerTarget = tuple[str, int]


def tail_of(graph: OpGraph, layer: str) -> tuple[str, str | None, str | None, str | None]:
    """Return facts on the affine operators after a layer of a branch, up to the first operator that is not affine.

    Returns:
        Names of the last of them, or the layer itself; of the batch norm among them; of the addition that is the only reader of the last one;
        and of the other input of that addition.
    """
    end, norm = layer, None
    while len(graph.consumers[end]) == 1:
        following = graph.by_name[graph.consumers[end][0]]
        if following.kind == "batch_norm" and norm is None and following.attrs["affine"]:
            norm = following.name
        elif following.kind not in ("identity", "dropout"):
            if following.kind == "add" and len(following.inputs) == 2 and len(set(following.inputs)) == 2:
                skip = next(name for name in following.inputs if name != end)
                if graph.by_name[skip].shape == following.shape:
                    return end, norm, following.name, skip
            break
        end = following.name
    return end, norm, None, None


@dataclass(frozen=True)
class _LayerGoal:
    """Target of one layer: an operator of the branch, minus a skip connection, at a number of pixels of every image."""

    name: str
    skip: str | None
    norm: str | None
    look: LayerTarget


class BranchFit:
    """The layers of one branch, each to be fitted to the original's value after its tail.

    If the tail ends in an addition whose other input is already computed, that input is
    subtracted from the target. The last layer of a residual block then
    corrects the error of the skip connection. A layer with fewer rows than inputs is
    not fitted, because inherited weights are better than overfitted ones.

    Args:
        matches: Operators that reproduce a different operator than the one with their name.
        among: Names of the layers that may be fitted; all if None.
    """

    def __init__(
        self, inherited: InheritedChannels, branch: Branch, matches: Matches, images: int, among: Collection[str] | None = None
    ) -> None:
        self.heritage, self.branch = inherited, branch
        graph, source = inherited.branch.graph, inherited.branch.source
        # An entry passes on the input of the original segment.
        reproduced = {op.name: op.name for op in graph.ops} | matches | dict.fromkeys((ENTRY_CONV, ENTRY_NORM), source.input.name)
        order = {name: number for number, (name, _, _) in enumerate(branch.steps)} | dict.fromkeys(branch.sources, -1)
        self._goals: dict[str, _LayerGoal] = {}
        for name, layer in branch.named_children():
            shape = graph.by_name[name].shape
            if (
                name == JOIN_CONV
                or (among is not None and name not in among)
                or not (isinstance(layer, nn.Conv2d) or (isinstance(layer, nn.Linear) and len(shape) == 2))
            ):
                continue
            inputs = layer.weight[0].numel()
            count = pixels_for(images, inputs, layer.groups if isinstance(layer, nn.Conv2d) else 1)
            if images * min(count, prod(shape[2:])) < inputs:
                continue
            end, norm, add, skip = tail_of(graph, name)
            summed = add is not None and skip is not None and order[skip] < order[name]
            goal = add if summed and add else end
            self._goals[name] = _LayerGoal(goal, skip if summed else None, norm, (reproduced[goal], count))

    @property
    def layer_targets(self) -> set[LayerTarget]:
        """Activations of the original that the fit needs."""
        return {goal.look for goal in self._goals.values()}

    def run(self, arriving: Batches, fitted: int, targets: Mapping[LayerTarget, Batches], ridge: float) -> list[torch.Tensor]:
        """Fit the layers in place, including those of the entry.

        Args:
            fitted: Number of batches, from the first, that the fit uses.
        """
        graph, source = self.heritage.branch.graph, self.heritage.branch.source

        def visit(name: str, layer: nn.Module, reads: list[list[torch.Tensor]], values: Values) -> None:
            if name not in self._goals:
                return
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            goal = self._goals[name]
            _, count = goal.look
            channels = self.heritage.original_channels(source.input.name if goal.name == ENTRY_NORM else goal.name).to(arriving[0].device)
            target = torch.cat([rows[:, channels] for rows in targets[goal.look]])
            if goal.skip:
                target -= torch.cat([rows_of(x, count) for x in values[goal.skip][:fitted]])
            norm = self.branch.get_submodule(goal.norm) if goal.norm else None
            assert norm is None or isinstance(norm, Norm)
            _fit_layer(
                layer, norm, torch.cat([patches(layer, x, graph.by_name[name].shape, count) for x in reads[0][:fitted]]), target, ridge
            )

        return walk(self.branch, arriving, visit)


def collect_targets(
    original: Branch, original_inputs: Batches, fitted: int, looks: Iterable[LayerTarget]
) -> tuple[list[torch.Tensor], dict[LayerTarget, list[torch.Tensor]]]:
    """Run the original segment once and record the activations for the fits."""
    rows_by_look: dict[LayerTarget, list[torch.Tensor]] = {layer_target: [] for layer_target in looks}
    handles = [
        original.get_submodule(layer_target[0]).register_forward_hook(
            lambda module, inputs, output, layer_target=layer_target: rows_by_look[layer_target].append(rows_of(output, layer_target[1]))
        )
        for layer_target in rows_by_look
        if layer_target[0] not in original.sources
    ]
    outputs = []
    try:
        for number, x in enumerate(original_inputs):
            if number == fitted:
                for handle in handles:
                    handle.remove()
            for layer_target in rows_by_look:
                if layer_target[0] in original.sources and number < fitted:
                    rows_by_look[layer_target].append(rows_of(x, layer_target[1]))
            outputs.append(original(x))
    finally:
        for handle in handles:
            handle.remove()
    return outputs, rows_by_look


def _fit_layer(layer: nn.Conv2d | nn.Linear, norm: Norm | None, inputs: torch.Tensor, targets: torch.Tensor, ridge: float) -> None:
    weight = layer.weight.flatten(1)
    outputs, groups = len(weight), layer.groups if isinstance(layer, nn.Conv2d) else 1
    sums = Regression(groups, weight.shape[1], outputs // groups, weight.device)
    sums.add(inputs, targets)
    scale = norm.weight / (statistics_of(norm)[1] + norm.eps).sqrt() if norm else torch.ones_like(weight[:, 0])
    fitted, bias = sums.solve(ridge, weight * scale[:, None], intercept=norm is not None or layer.bias is not None)
    if norm is None:
        length = torch.ones_like(bias)
        if layer.bias is not None:
            layer.bias.copy_(bias)
    else:
        # Each row keeps its norm, which helps later training; the batch norm compensates for that.
        length = weight.norm(dim=1).clamp_min(1e-12) / fitted.norm(dim=1).clamp_min(1e-12)
        if layer.bias is not None:
            layer.bias.zero_()
        mean, variance = statistics_of(norm)
        mean.zero_()
        variance.fill_(1 - norm.eps)
        norm.weight.copy_(1 / length)
        norm.bias.copy_(bias)
    layer.weight.copy_((fitted * length[:, None]).reshape(layer.weight.shape))
