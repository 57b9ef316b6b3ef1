"""New batch-norm statistics from unlabelled images."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from stretch.planning.design.scale import JOIN_CONV
from stretch.transform.model import Branch, statistics_of

Batches = Sequence[torch.Tensor]
#: Outputs of each operator, batch by batch.
Values = dict[str, list[torch.Tensor]]


def walk(
    branch: Branch, arriving: Batches, visit: Callable[[str, nn.Module, list[list[torch.Tensor]], Values], None]
) -> list[torch.Tensor]:
    """Run a branch over all batches, one operator after the other.

    Args:
        visit: Called before each operator with its name, its module, its inputs and all tensors
            that are still needed later; it may change the module.

    Returns:
        The branch's output before its own part of the join, batch by batch.
    """
    (source,), (result,) = branch.sources, branch.results
    values: Values = {source: list(arriving)}
    for name, reads, done in branch.steps:
        if name == JOIN_CONV:
            return values[reads[0]]
        layer, inputs = branch.get_submodule(name), [values[read] for read in reads]
        visit(name, layer, inputs, values)
        values[name] = [layer(*batch) for batch in zip(*inputs, strict=True)]
        for old in done:
            del values[old]
    return values[result]


def backbone_of(branch: Branch, x: torch.Tensor) -> torch.Tensor:
    """Run a branch up to its own part of the join, for one batch."""
    return walk(branch, [x], lambda *_: None)[0]


Norm = nn.BatchNorm1d | nn.BatchNorm2d


def norms(module: nn.Module) -> list[Norm]:
    """Return all batch norms of a module."""
    return [m for m in module.modules() if isinstance(m, Norm)]


def renew_statistics(segment: nn.Module, arriving: Sequence[torch.Tensor]) -> None:
    """Set batch-norm statistics to the mean over all batches; weights stay unchanged."""
    with _collecting_moments(norms(segment)) as collecting:
        for x in arriving if collecting else ():
            segment(x)


def renewed_backbone(branch: Branch, arriving: Batches, fitted: int) -> list[torch.Tensor]:
    """Recompute a branch's batch-norm statistics in order, each from inputs with the new earlier statistics.

    Args:
        fitted: Number of batches, from the first, that give the statistics.
    """

    def visit(name: str, layer: nn.Module, reads: list[list[torch.Tensor]], values: Values) -> None:
        if isinstance(layer, Norm):
            moments = Moments()
            for x in reads[0][:fitted]:
                moments.add(x)
            mean, variance = moments.take()
            kept_mean, kept_variance = statistics_of(layer)
            kept_mean.copy_(mean)
            kept_variance.copy_(variance)

    return walk(branch, arriving, visit)


def rebase_statistics(segment: nn.Module, arriving: Batches) -> list[torch.Tensor]:
    """Recompute statistics, and choose scale and shift such that the segment computes the same as before.

    Fitted layers leave statistics that differ from the data. Further training
    would start from a different function, because training normalises by the
    statistics of its batches.
    """
    moments_by_norm = {norm: Moments() for norm in norms(segment) if norm.affine}
    handles = [norm.register_forward_pre_hook(lambda norm, inputs: moments_by_norm[norm].add(inputs[0])) for norm in moments_by_norm]
    try:
        outputs = [segment(x) for x in arriving]
    finally:
        for handle in handles:
            handle.remove()
    for norm, moments in moments_by_norm.items():
        mean, variance = moments.take()
        kept_mean, kept_variance = statistics_of(norm)
        old = norm.weight / (kept_variance + norm.eps).sqrt()
        norm.bias.add_(old * (mean - kept_mean))
        norm.weight.copy_(old * (variance + norm.eps).sqrt())
        kept_mean.copy_(mean)
        kept_variance.copy_(variance)
    return outputs


class Moments:
    """Mean and variance of each channel over all batches added."""

    def __init__(self) -> None:
        self._count = 0
        self._shift: torch.Tensor | None = None
        self._sum = self._squares = torch.zeros(())

    def add(self, x: torch.Tensor) -> None:
        """Add a batch, (n, channels, …)."""
        rows = x.movedim(1, -1).reshape(-1, x.shape[1])
        if self._shift is None:
            self._shift = rows[0].clone()
            self._sum = self._squares = torch.zeros_like(self._shift, dtype=torch.float64)
        # Subtract some value of the channel, because large squares would hide a small variance.
        rows = rows - self._shift
        self._count += len(rows)
        self._sum = self._sum + rows.sum(0)
        self._squares = self._squares + rows.square_().sum(0)

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and variance of all added batches."""
        assert self._shift is not None
        mean = self._sum / self._count
        return mean + self._shift, (self._squares / self._count - mean.square()).clamp_min(0)


@contextmanager
def _collecting_moments(segment_norms: list[Norm]) -> Iterator[list[Norm]]:
    momenta = [norm.momentum for norm in segment_norms]
    for norm in segment_norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the following batches
        norm.train()
    try:
        yield segment_norms
    finally:
        for norm, momentum in zip(segment_norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
