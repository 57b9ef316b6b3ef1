"""Batch-norm statistics taken anew from unlabelled images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

Norm = nn.BatchNorm1d | nn.BatchNorm2d


def norms(module: nn.Module) -> list[Norm]:
    """All batch-norms of a module."""
    return [m for m in module.modules() if isinstance(m, Norm)]


def renew_statistics(segment: nn.Module, arriving: Sequence[torch.Tensor]) -> None:
    """Batch-norm statistics as the mean over all batches; weights are not touched.

    Args:
        segment: What reads the batches.
        arriving: Batches of what it reads.
    """
    with _collecting(norms(segment)) as found:
        for x in arriving if found else ():
            segment(x)


def rebase_statistics(segment: nn.Module, arriving: Sequence[torch.Tensor]) -> None:
    """Statistics anew, and scale and shift such that the segment computes what it did.

    Fitted layers leave statistics that nothing in the data has. Whoever trains the
    network on would start from another function, since training normalises by
    the statistics of its batches.

    Args:
        segment: What reads the batches; in evaluation mode.
        arriving: Batches of what it reads.
    """
    found = [norm for norm in norms(segment) if norm.affine]
    means, squares, counts = (dict.fromkeys(found, 0.0) for _ in range(3))

    def note(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        rows = inputs[0].movedim(1, -1).reshape(-1, inputs[0].shape[1]).double()
        means[norm] = means[norm] + rows.sum(0)
        squares[norm] = squares[norm] + rows.square().sum(0)
        counts[norm] += len(rows)

    handles = [norm.register_forward_pre_hook(note) for norm in found]
    try:
        for x in arriving if found else ():
            segment(x)
    finally:
        for handle in handles:
            handle.remove()
    for norm in found:
        mean = means[norm] / counts[norm]
        variance = (squares[norm] / counts[norm] - mean.square()).clamp_min(0)
        old = norm.weight / (norm.running_var + norm.eps).sqrt()
        norm.bias.add_(old * (mean - norm.running_mean))
        norm.weight.copy_(old * (variance + norm.eps).sqrt())
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)


@contextmanager
def _collecting(found: list[Norm]) -> Iterator[list[Norm]]:
    momenta = [norm.momentum for norm in found]
    for norm in found:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over what comes now
        norm.train()
    try:
        yield found
    finally:
        for norm, momentum in zip(found, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
