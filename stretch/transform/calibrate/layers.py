"""Regression of a branch's layers, in order, from their inputs to the original's activations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from predictors.graph import OpGraph
from stretch.planning.design.scale import ENTRY_CONV, ENTRY_NORM, JOIN_CONV
from stretch.transform.calibrate.match import Matches
from stretch.transform.calibrate.pixels import patches, pixels_for, rows_of
from stretch.transform.calibrate.regression import Regression
from stretch.transform.calibrate.statistics import Norm
from stretch.transform.calibrate.walk import Batches, Values, walk
from stretch.transform.model import Branch
from stretch.transform.width import Heritage

#: An operator of the original, and the number of sampled pixels per image.
Look = tuple[str, int]


@dataclass(frozen=True)
class Tail:
    """The affine operators behind a layer, up to the first that is not."""

    end: str  # The last of them; the layer itself if there is none.
    norm: str | None  # The batch-norm among them.
    add: str | None  # The addition that alone reads `end`.
    skip: str | None  # The other input of that addition.


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


@dataclass(frozen=True)
class _Goal:
    """What one layer is fitted to: an operator of the branch, less a skip, at so many pixels of every image."""

    name: str
    skip: str | None
    norm: str | None
    look: Look


class BranchFit:
    """The layers of one branch, each to be fitted to the original's value behind its tail.

    Where the tail ends in an addition whose other side is known by then, the target
    is the original's sum minus that side: the last layer of a residual block makes up
    for what the skip already got wrong. A layer with fewer rows than inputs is left
    as it is: what was inherited is worth more than what fits anything.

    Args:
        matches: Operators that reproduce another than the one they are named after.
    """

    def __init__(self, heritage: Heritage, branch: Branch, matches: Matches, images: int) -> None:
        self.heritage, self.branch = heritage, branch
        graph, source = heritage.branch.graph, heritage.branch.source
        # An entry passes on what arrives at the original segment.
        reproduced = {op.name: op.name for op in graph.ops} | matches | dict.fromkeys((ENTRY_CONV, ENTRY_NORM), source.input.name)
        order = {name: number for number, (name, _, _) in enumerate(branch.steps)} | dict.fromkeys(branch.sources, -1)
        self._goals: dict[str, _Goal] = {}
        for name, layer in branch.named_children():
            shape = graph.by_name[name].shape
            if name == JOIN_CONV or not (isinstance(layer, nn.Conv2d) or (isinstance(layer, nn.Linear) and len(shape) == 2)):
                continue
            inputs = layer.weight[0].numel()
            count = pixels_for(images, inputs, layer.groups if isinstance(layer, nn.Conv2d) else 1)
            if images * min(count, prod(shape[2:])) < inputs:
                continue
            tail = tail_of(graph, name)
            summed = tail.add is not None and tail.skip is not None and order[tail.skip] < order[name]
            goal = tail.add if summed and tail.add else tail.end
            self._goals[name] = _Goal(goal, tail.skip if summed else None, tail.norm, (reproduced[goal], count))

    @property
    def looks(self) -> set[Look]:
        """Activations of the original that it needs."""
        return {goal.look for goal in self._goals.values()}

    def run(self, arriving: Batches, fitted: int, targets: Mapping[Look, Batches], ridge: float) -> list[torch.Tensor]:
        """Fit the layers, entry included, in place.

        Args:
            fitted: How many of them, the first, the fit looks at.
        """
        graph, source = self.heritage.branch.graph, self.heritage.branch.source

        def visit(name: str, layer: nn.Module, reads: list[list[torch.Tensor]], values: Values) -> None:
            if name not in self._goals:
                return
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            goal = self._goals[name]
            _, count = goal.look
            channels = self.heritage.kept(source.input.name if goal.name == ENTRY_NORM else goal.name).to(arriving[0].device)
            wanted = torch.cat([rows[:, channels] for rows in targets[goal.look]])
            if goal.skip:
                wanted -= torch.cat([rows_of(x, count) for x in values[goal.skip][:fitted]])
            norm = self.branch.get_submodule(goal.norm) if goal.norm else None
            assert norm is None or isinstance(norm, Norm)
            _fit(layer, norm, torch.cat([patches(layer, x, graph.by_name[name].shape, count) for x in reads[0][:fitted]]), wanted, ridge)

        return walk(self.branch, arriving, visit)


def look(whole: Branch, there: Batches, fitted: int, looks: Iterable[Look]) -> tuple[list[torch.Tensor], dict[Look, list[torch.Tensor]]]:
    """Run the original segment once and record the activations for the fits."""
    rows_by_look: dict[Look, list[torch.Tensor]] = {wanted: [] for wanted in looks}
    handles = [
        whole.get_submodule(wanted[0]).register_forward_hook(
            lambda module, inputs, output, wanted=wanted: rows_by_look[wanted].append(rows_of(output, wanted[1]))
        )
        for wanted in rows_by_look
        if wanted[0] not in whole.sources
    ]
    outputs = []
    try:
        for number, x in enumerate(there):
            if number == fitted:
                for handle in handles:
                    handle.remove()
            for wanted in rows_by_look:
                if wanted[0] in whole.sources and number < fitted:
                    rows_by_look[wanted].append(rows_of(x, wanted[1]))
            outputs.append(whole(x))
    finally:
        for handle in handles:
            handle.remove()
    return outputs, rows_by_look


def _fit(layer: nn.Conv2d | nn.Linear, norm: Norm | None, inputs: torch.Tensor, wanted: torch.Tensor, ridge: float) -> None:
    weight = layer.weight.flatten(1)
    outputs, groups = len(weight), layer.groups if isinstance(layer, nn.Conv2d) else 1
    sums = Regression(groups, weight.shape[1], outputs // groups, weight.device)
    sums.add(inputs, wanted)
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
