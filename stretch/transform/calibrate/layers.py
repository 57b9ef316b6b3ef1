"""A branch's layers, in order, as regressions of what the original computes on what arrives."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from predictors.graph import OpGraph
from stretch.planning.scale import ENTRY_CONV, ENTRY_NORM, JOIN_CONV
from stretch.transform.calibrate.match import Matches
from stretch.transform.calibrate.pixels import patches, rows_of
from stretch.transform.calibrate.regression import Regression
from stretch.transform.calibrate.statistics import Norm
from stretch.transform.model import Branch
from stretch.transform.width import Heritage

#: Rows of a regression, at least where the images have so many pixels: hundreds for each input of a usual layer.
ROWS = 2**16

Batches = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Tail:
    """The affine operators behind a layer, up to the first that is not.

    Args:
        end: The last of them; the layer itself if there is none.
        norm: The batch-norm among them.
        add: The addition that alone reads `end`.
        skip: What else that addition reads.
    """

    end: str
    norm: str | None
    add: str | None
    skip: str | None


def tail_of(graph: OpGraph, layer: str) -> Tail:
    """The tail of one layer of a branch."""
    end, norm = layer, None
    while len(graph.consumers[end]) == 1:
        following = graph.by_name[graph.consumers[end][0]]
        if following.kind == "batch_norm" and norm is None and following.attrs["affine"]:
            norm = following.name
        elif following.kind not in ("identity", "dropout"):
            if following.kind == "add" and len(following.inputs) == 2 and len(set(following.inputs)) == 2:
                skip = next(name for name in following.inputs if name != end)
                if graph.by_name[skip].shape == following.shape:
                    return Tail(end, norm, following.name, skip)
            break
        end = following.name
    return Tail(end, norm, None, None)


def pixels_for(batches: Batches) -> int:
    """Pixels of every image that make up the rows of a regression."""
    return math.ceil(ROWS / sum(len(x) for x in batches))


def fit_layers(
    heritage: Heritage, module: Branch, matches: Matches, arriving: Batches, whole: Branch, original: Batches, ridge: float
) -> list[torch.Tensor]:
    """Fit the layers of one branch, each to the original's value behind its tail.

    Where the tail ends in an addition whose other side is known by then, the target
    is the original's sum minus that side: the last layer of a residual block makes up
    for what the skip already got wrong.

    Args:
        heritage: What the branch keeps of the original.
        module: The branch; its layers, entry included, are changed in place.
        matches: Operators that reproduce another than the one they are named after.
        arriving: Batches of what arrives at the branch.
        whole: The original segment.
        original: Batches of what arrives at that.
        ridge: Relative weight of the penalty.

    Returns:
        What the fitted branch computes before its join.
    """
    graph, source = heritage.branch.graph, heritage.branch.source
    count = pixels_for(arriving)
    tails = {op.name: tail_of(graph, op.name) for op in graph.ops if _fitted(module, graph, op.name)}

    # An entry passes on what arrives at the original segment.
    reproduced = {op.name: op.name for op in graph.ops} | matches | dict.fromkeys((ENTRY_CONV, ENTRY_NORM), source.input.name)
    ends = {name for tail in tails.values() for name in (tail.end, tail.add) if name}
    targets = _look(whole, original, {reproduced[name] for name in ends}, count)
    values: dict[str, list[torch.Tensor]] = {module.source: list(arriving)}
    for name, reads, done in module.steps:
        if name == JOIN_CONV:
            return values[reads[0]]
        layer = module.get_submodule(name)
        if name in tails:
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            tail = tails[name]
            summed = tail.add is not None and tail.skip in values
            goal = tail.add if summed and tail.add else tail.end
            channels = heritage.kept(source.input.name if goal == ENTRY_NORM else goal).to(arriving[0].device)
            wanted = [rows[:, channels] for rows in targets[reproduced[goal]]]
            if summed and tail.skip:
                wanted = [rows - rows_of(skip, count) for rows, skip in zip(wanted, values[tail.skip], strict=True)]
            norm = module.get_submodule(tail.norm) if tail.norm else None
            assert norm is None or isinstance(norm, Norm)
            inputs = (patches(layer, x, graph.by_name[name].shape, count) for x in values[reads[0]])
            _fit(layer, norm, inputs, wanted, ridge)
        values[name] = [layer(*inputs) for inputs in zip(*(values[read] for read in reads), strict=True)]
        for old in done:
            del values[old]
    return values[module.result]


def _fitted(module: Branch, graph: OpGraph, name: str) -> bool:
    if name in (JOIN_CONV, module.source):
        return False
    layer = module.get_submodule(name)
    return isinstance(layer, nn.Conv2d) or (isinstance(layer, nn.Linear) and len(graph.by_name[name].shape) == 2)


def _look(whole: Branch, original: Batches, names: set[str], count: int) -> dict[str, list[torch.Tensor]]:
    """Rows of the original's values, batch by batch."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    handles = [
        whole.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: found[name].append(rows_of(output, count))
        )
        for name in names
        if name != whole.source
    ]
    try:
        for x in original:
            if whole.source in names:
                found[whole.source].append(rows_of(x, count))
            whole(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _fit(layer: nn.Conv2d | nn.Linear, norm: Norm | None, inputs: Iterable[torch.Tensor], wanted: Batches, ridge: float) -> None:
    weight = layer.weight.flatten(1)
    if sum(len(y) for y in wanted) < weight.shape[1]:
        return  # Fewer rows than inputs fit anything: what was inherited is worth more.
    outputs, groups = len(weight), layer.groups if isinstance(layer, nn.Conv2d) else 1
    sums = Regression(groups, weight.shape[1], outputs // groups, weight.device)
    for x, y in zip(inputs, wanted, strict=True):
        sums.add(x, y)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt() if norm else torch.ones_like(weight[:, 0])
    fitted, bias = sums.solve(ridge, weight * scale[:, None], intercept=norm is not None or layer.bias is not None)
    if norm is None:
        length = torch.ones_like(bias)
        if layer.bias is not None:
            layer.bias.copy_(bias)
    else:
        # Rows stay as long as they were, for the sake of training that follows; the batch-norm undoes that.
        length = weight.norm(dim=1).clamp_min(1e-12) / fitted.norm(dim=1).clamp_min(1e-12)
        if layer.bias is not None:
            layer.bias.zero_()
        norm.running_mean.zero_()
        norm.running_var.fill_(1 - norm.eps)
        norm.weight.copy_(1 / length)
        norm.bias.copy_(bias)
    layer.weight.copy_((fitted * length[:, None]).reshape(layer.weight.shape))
