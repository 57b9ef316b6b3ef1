"""Joins as regressions of the original's trunk on the branches' trunks."""

from collections.abc import Sequence

import torch
from torch import nn

from predictors.joins import join_of
from stretch.planning.design.branch_design import SegmentDesign, safe_name
from stretch.planning.design.scale import JOIN_CONV
from stretch.transform.calibrate.regression import Regression
from stretch.transform.model import BranchedSegment


def fit_join(part: SegmentDesign, segment: BranchedSegment, trunks: Sequence[torch.Tensor], target: torch.Tensor, ridge: float) -> None:
    """Put the regressions into the 1×1 convolutions of a join.

    A join that adds up, such as `sum`, regresses the whole trunk on all branches together;
    others regress each branch's part of it, or all of it, on that branch alone. Joins
    without convolutions have no weights.
    """
    join = join_of(part.join)
    if not join.convolves:
        return
    convolutions = [segment.get_submodule(f"{safe_name(b.processor)}.{JOIN_CONV}") for b in part.branches]
    groups = [list(range(len(convolutions)))] if join.adds else [[i] for i in range(len(convolutions))]
    start = 0
    for group in groups:
        convs = [convolutions[i] for i in group]
        prior = torch.cat([conv.weight.flatten(1) for conv in convs], 1)
        stop = start + len(prior)
        sums = Regression(1, prior.shape[1], len(prior), prior.device)
        sums.add(torch.cat([trunks[i] for i in group], 1), target[:, start:stop])
        weight, bias = sums.solve(ridge, prior)
        for conv, part_weight in zip(convs, weight.split([conv.weight.shape[1] for conv in convs], 1), strict=True):
            assert isinstance(conv, nn.Conv2d)
            assert conv.bias is not None
            conv.weight.copy_(part_weight[:, :, None, None])
            # A sum adds up the biases of its branches: the first carries it.
            conv.bias.copy_(bias if conv is convs[0] else torch.zeros_like(bias))
        start = 0 if join.whole else stop


def readout(output: torch.Tensor, target: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The map that makes the most of a join without convolutions: of the original's trunk on the concatenated one.

    Those who read the trunk are fitted after it; this says what they can get from it.
    """
    prior = torch.zeros(target.shape[1], output.shape[1], device=target.device)
    sums = Regression(1, prior.shape[1], len(prior), prior.device)
    sums.add(output, target)
    return sums.solve(ridge, prior)
