"""Prune a plain network so that it is predicted to be as fast on one processor as branches are on several.

Torch-Pruning does the pruning, from a folder on the path: `uv pip install --target FOLDER --no-deps torch-pruning==1.6.1`.
"""

import bisect
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from predictors.errors import MissingBackendError, StretchError

if TYPE_CHECKING:
    import torch

    from predictors.graph import OpGraph
    from predictors.predictor import Estimate
    from stretch.network.capture import Captured
    from stretch.planning.result import PlanResult
    from stretch.transform.model import Branch, BranchedModel

#: Shares of the channels of every layer that may be removed, the smallest first.
RATIOS = tuple(number / 100 for number in range(1, 60))

#: Penalty of the regressions, as in `stretch.transform.calibrate.calibrate`.
RIDGE = 1e-4


@dataclass(frozen=True)
class Pruned:
    """A pruned network."""

    captured: "Captured"  # The network as data with its weights.
    kept: "Mapping[str, torch.Tensor]"  # Original channel of each channel, by operator.
    ratio: float  # Requested share of removed channels in every layer.


def prune(original: "Captured", ratio: float, step: int) -> Pruned:
    """Remove the channels of the smallest L1 norm from every layer but the last, in dependent groups (Fang et al. 2023, DepGraph).

    Args:
        original: The network.
        ratio: Share of the channels of every layer.
        step: Divisor of the numbers of remaining channels.

    Raises:
        MissingBackendError: If Torch-Pruning is not installed.
    """
    try:
        import torch_pruning
    except ModuleNotFoundError as error:
        raise MissingBackendError(
            "this experiment prunes with Torch-Pruning, which is not installed",
            "see the first lines of experiments/real_networks/pruning.py",
        ) from error
    import torch
    from torch import nn

    from stretch.network.capture import capture

    module = copy.deepcopy(original.module).eval()
    norms = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    means = {}
    for name, norm in norms.items():
        # means are cut like the channels, and no criterion uses them, so they show which channels stayed
        means[name] = norm.running_mean.clone()
        norm.running_mean.copy_(torch.arange(norm.num_features))
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    shape = original.graph.input.shape
    pruner = torch_pruning.pruner.BasePruner(
        module,
        torch.zeros(shape),
        importance=torch_pruning.importance.MagnitudeImportance(p=1),
        pruning_ratio=ratio,
        round_to=step,
        ignored_layers=[last],
    )
    pruner.step()
    stayed = {}
    for name, norm in norms.items():
        index = stayed[name.replace(".", "_")] = norm.running_mean.long()
        norm.running_mean.copy_(means[name][index])
    captured = capture(module, shape, original.graph.name)
    return Pruned(captured, kept_channels(original.graph, captured.graph, stayed), ratio)


def kept_channels(original: "OpGraph", pruned: "OpGraph", stayed: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return the original channel of each channel of every operator.

    A batch norm shows the remaining channels of its convolution; operators between them have the channels of their inputs.

    Args:
        original: Operators of the original.
        pruned: The same operators with fewer channels.
        stayed: Remaining channels of each batch norm.

    Raises:
        StretchError: If an operator has an unexpected number of channels.
    """
    import torch

    result: dict[str, torch.Tensor] = {}
    for op in original.ops:
        behind = original.consumers[op.name]
        if op.name in stayed:
            result[op.name] = stayed[op.name]
        elif op.kind == "conv" and len(behind) == 1 and behind[0] in stayed:
            result[op.name] = stayed[behind[0]]
        elif op.kind in ("input", "conv", "linear"):
            result[op.name] = torch.arange(op.shape[1])
        else:
            result[op.name] = result[op.inputs[0]]
        if len(result[op.name]) != pruned.by_name[op.name].shape[1]:
            raise StretchError(f"`{op.name}` was pruned to {pruned.by_name[op.name].shape[1]} channels, {len(result[op.name])} are known")
    return result


def calibrate_pruned(
    original: "Captured", pruned: Pruned, images: "Sequence[torch.Tensor]", synthetic: "Sequence[torch.Tensor]" = ()
) -> "BranchedModel":
    """Calibrate a pruned network like branched ones: per segment the best of unchanged, with new statistics, and with every layer fitted.

    Args:
        original: The original.
        pruned: The network with fewer channels; it is not changed.
        images: Batches, (n, channels, height, width), on the device of the computation.
        synthetic: Batches of synthetic images, which fits use and the choice does not.

    Returns:
        The network as a module, with the design of the original for comparison.
    """
    import torch

    from stretch.transform import build
    from stretch.transform.calibrate import undivided_design
    from stretch.transform.calibrate.layers import BranchFit, collect_targets
    from stretch.transform.calibrate.segment import state_of
    from stretch.transform.calibrate.split import divide
    from stretch.transform.calibrate.statistics import rebase_statistics, renewed_backbone

    arriving, split = divide(list(images), _largest(original.graph), synthetic)
    original_inputs, segments = arriving, []
    with torch.no_grad():
        device = images[0].device
        for (whole, source), (branch, graph) in zip(_segments(original), _segments(pruned.captured, original.graph), strict=True):
            whole, branch = whole.to(device), branch.to(device)
            inherited: Any = SimpleNamespace(branch=SimpleNamespace(graph=graph, source=source), kept=pruned.kept.__getitem__)
            fit = BranchFit(inherited, branch, {}, split.images)
            targets, result = collect_targets(whole, original_inputs, split.fitted, fit.layer_targets)
            expected = [target[:, pruned.kept[source.output]] for target in targets[split.fitted :]]
            built = state_of(branch)
            offers = [(_error([branch(x) for x in arriving[split.fitted :]], expected), built)]
            renewed = renewed_backbone(branch, arriving, split.fitted)
            offers.append((_error(renewed[split.fitted :], expected), state_of(branch)))
            branch.load_state_dict(built)
            fitted = fit.run(arriving, split.fitted, result, RIDGE)
            offers.append((_error(fitted[split.fitted :], expected), state_of(branch)))
            branch.load_state_dict(min(offers, key=lambda offer: offer[0])[1])
            arriving, original_inputs = rebase_statistics(branch, arriving), targets
            segments.append(branch)
    model = build(pruned.captured, undivided_design(pruned.captured)).to(device)
    model.design = undivided_design(original)
    for part, segment in zip(model.design.segments, segments, strict=True):
        model.branch(part.name, "cpu").load_state_dict(segment.state_dict())
    return model


def _segments(captured: "Captured", like: "OpGraph | None" = None) -> "Iterator[tuple[Branch, OpGraph]]":
    """Yield the segments of a network between another one's meeting points, or its own, as modules with its weights."""
    from stretch.planning.network.segments import cut_segment, split_segments
    from stretch.transform.build import load_weights
    from stretch.transform.model import Branch

    for segment in split_segments(like or captured.graph):
        graph = cut_segment(captured.graph, segment.name, segment.start, segment.end).graph
        branch = Branch(graph).eval()
        for op in graph.ops:
            if captured.weights.get(op.name) and op.kind != "input":
                load_weights(branch.get_submodule(op.name), {k: v.detach() for k, v in captured.weights[op.name].items()})
        yield branch, graph


def _largest(graph: "OpGraph") -> int:
    """Return the size of one image's largest activation, in bytes."""
    from math import prod

    return 4 * max(prod(op.shape) for op in graph.ops) // graph.input.shape[0]


def _error(got: "Sequence[torch.Tensor]", wanted: "Sequence[torch.Tensor]") -> float:
    """Return the squared error over the square of the expected values."""
    wrong = sum(float((a - b).square().sum()) for a, b in zip(got, wanted, strict=True))
    return wrong / sum(float(b.square().sum()) for b in wanted)


def pruned_as_fast(original: "Captured", planned: "PlanResult") -> "tuple[Pruned, Estimate]":
    """Return the least pruned network that is predicted to be as fast on one processor as branches, and its processor with the time."""
    from stretch.planning.design.scale import aligns
    from stretch.planning.result import ranked_singles

    # step of the plain network's best processor: its slices are full, and no channel is removed for another processor
    alone = planned.best_single.processor
    step = aligns(planned.device, [alone])[alone]

    def single(pruned: Pruned) -> "Estimate":
        return ranked_singles(pruned.captured.graph, planned.costs, planned.config.processors)[0]

    pruned = prune(original, mildest(lambda ratio: single(prune(original, ratio, step)).ms, planned.run.makespan_ms), step)
    return pruned, single(pruned)


def mildest(ms: Callable[[float], float], target: float) -> float:
    """Return the smallest of `RATIOS` for which a network is fast enough, by bisection: with more pruning the time decreases.

    Args:
        ms: Function from the share to the predicted time in ms.
        target: Maximum time in ms.

    Raises:
        StretchError: If no share is large enough.
    """
    at = bisect.bisect_left(RATIOS, True, key=lambda ratio: ms(ratio) <= target)
    if at == len(RATIOS):
        raise StretchError("the network is not predicted to be as fast as its branches, whatever is pruned")
    return RATIOS[at]
