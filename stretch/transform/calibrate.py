"""Start without training: batch-norm statistics and joins from unlabelled images.

Segment by segment, the branched network sees what arrives there in the branched
network, and is told what the original computes at the same meeting point:

1. batch-norm statistics of the branches are taken anew;
2. the join becomes the ridge regression of the original's trunk on the
   branches' trunks. A `project` join regresses each branch's part on that branch
   alone, a `sum` join the whole trunk on all branches together. A `concat` join
   has no weights and stays as it was built.

The regressions are sums of products in float64, whatever the number of images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from predictors.errors import StretchError
from stretch.capture import Captured
from stretch.planning.design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.scale import JOIN_CONV, design_segments, safe_name
from stretch.transform.build import build
from stretch.transform.model import Branch, BranchedModel, Segment

#: Fewer images than this leave the regressions to chance.
MIN_IMAGES = 16


@dataclass(frozen=True)
class SegmentError:
    """How far a segment's output is from the original's: mean squared error over mean square.

    Args:
        segment: Its name.
        before: With new statistics and the joins as built.
        after: With calibrated joins.
    """

    segment: str
    before: float
    after: float


@torch.no_grad()
def calibrate(model: BranchedModel, captured: Captured, images: Sequence[torch.Tensor], ridge: float = 1e-4) -> list[SegmentError]:
    """Bring a freshly built model close to the original, without labels or training.

    Between two meeting points the activations of all images are held, twice;
    that is what limits the number of images.

    Args:
        model: Built from `captured`; changed in place, in evaluation mode afterwards.
        captured: The original network.
        images: Batches of what the network reads, (n, channels, height, width).
        ridge: Weight of the penalty, relative to the mean square of a trunk channel.

    Returns:
        The error of every branched segment, in order.

    Raises:
        StretchError: If there are too few images or their shape is wrong.
    """
    _check(captured, images)
    device = next(model.parameters()).device
    original = build(captured, whole_design(captured, model.design)).to(device)
    model.eval()
    arriving = [batch.to(device) for batch in images]
    targets = list(arriving)
    errors = []
    for part in model.design.segments:
        segment, whole = _segment(model, part.name), _segment(original, part.name)
        targets = [whole(x) for x in targets]
        renew_statistics(segment, arriving)
        if len(part.branches) > 1:
            before = _error(segment, arriving, targets)
            if part.join in ("project", "sum"):
                _fit_join(part, segment, arriving, targets, ridge)
            errors.append(SegmentError(part.name, before, _error(segment, arriving, targets)))
        arriving = [segment(x) for x in arriving]
    return errors


def _check(captured: Captured, images: Sequence[torch.Tensor]) -> None:
    wanted = captured.graph.input.shape[1:]
    for batch in images:
        if tuple(batch.shape[1:]) != wanted:
            raise StretchError(
                f"calibration images have shape {tuple(batch.shape[1:])}, the network reads {wanted}", "resize them to the network's input"
            )
    count = sum(len(batch) for batch in images)
    if count < MIN_IMAGES:
        raise StretchError(f"{count} calibration images are too few", f"give at least {MIN_IMAGES}, better some hundreds")


def whole_design(captured: Captured, design: BranchDesign) -> BranchDesign:
    """The original with the segments of `design`, so that its meeting points can be looked at."""
    parts = [
        SegmentDesign(s.name, s.start, s.end, (BranchScale("cpu", s.depth, s.width),)) for s in design_segments(captured.graph, design)
    ]
    return BranchDesign(design.model, design.device, tuple(parts))


def _segment(model: BranchedModel, name: str) -> Segment:
    segment = model.get_submodule(name)
    assert isinstance(segment, Segment)
    return segment


def renew_statistics(segment: Segment, arriving: Sequence[torch.Tensor]) -> None:
    """Batch-norm statistics as the mean over all batches; weights are not touched."""
    norms = [m for m in segment.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over what comes now
        norm.train()
    try:
        for x in arriving:
            segment(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


def _error(segment: Segment, arriving: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> float:
    wrong = total = 0.0
    for x, target in zip(arriving, targets, strict=True):
        output = segment(x)
        if output.shape != target.shape:  # a `concat` join changes the trunk
            return float("nan")
        wrong += float((output - target).square().sum())
        total += float(target.square().sum())
    return wrong / total if total > 0 else wrong


def _fit_join(
    part: SegmentDesign, segment: Segment, arriving: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], ridge: float
) -> None:
    """Put the regressions into the 1×1 convolutions of a join."""
    branches = [segment.get_submodule(safe_name(b.processor)) for b in part.branches]
    widths = [b.width for b in part.branches]
    joined = part.join == "sum"
    groups = [list(range(len(branches)))] if joined else [[i] for i in range(len(branches))]
    start = 0
    for group in groups:
        stop = targets[0].shape[1] if joined else start + part.branches[group[0]].partition
        sums = _Regression(sum(widths[i] for i in group), stop - start, targets[0].device)
        for x, target in zip(arriving, targets, strict=True):
            trunks = [_trunk(branches[i], x) for i in group]
            sums.add(torch.cat(trunks, 1), target[:, start:stop])
        weight, bias = sums.solve(ridge)
        at = 0
        for number, i in enumerate(group):
            conv = branches[i].get_submodule(JOIN_CONV)
            assert isinstance(conv, nn.Conv2d)
            assert conv.bias is not None
            conv.weight.copy_(weight[:, at : at + widths[i], None, None])
            # A sum adds up the biases of its branches: one of them carries it.
            conv.bias.copy_(bias if number == 0 else torch.zeros_like(bias))
            at += widths[i]
        start = stop if not joined else 0


def _trunk(branch: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a branch computes before its join."""
    assert isinstance(branch, Branch)
    kept: list[torch.Tensor] = []
    handle = branch.get_submodule(JOIN_CONV).register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    try:
        branch(x)
    finally:
        handle.remove()
    return kept[0]


class _Regression:
    """Ridge regression with intercept of `outputs` channels on `inputs` channels, over pixels and images."""

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        self.products = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.mixed = torch.zeros(inputs, outputs, dtype=torch.float64, device=device)
        self.inputs = torch.zeros(inputs, dtype=torch.float64, device=device)
        self.outputs = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the pixels of a batch, both (n, channels, height, width)."""
        rows, targets = (t.movedim(1, -1).reshape(-1, t.shape[1]) for t in (x, y))
        # Products of fp32 numbers summed over one batch lose nothing that matters; the sum over batches is float64.
        self.products += (rows.T @ rows).double()
        self.mixed += (rows.T @ targets).double()
        self.inputs += rows.sum(0).double()
        self.outputs += targets.sum(0).double()
        self.count += len(rows)

    def solve(self, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (outputs, inputs) and intercepts (outputs,), float32."""
        mean_x, mean_y = self.inputs / self.count, self.outputs / self.count
        covariance = self.products / self.count - torch.outer(mean_x, mean_x)
        mixed = self.mixed / self.count - torch.outer(mean_x, mean_y)
        penalty = ridge * covariance.diagonal().mean().clamp_min(1e-12)
        weight = torch.linalg.solve(covariance + penalty * torch.eye(len(covariance), dtype=torch.float64, device=covariance.device), mixed)
        return weight.T.float(), (mean_y - mean_x @ weight).float()
