"""Optional: all weights of a segment together, by gradients on unlabelled images.

As block reconstruction does for quantised networks (Li et al. 2021, BRECQ).
"""

from collections.abc import Callable, Sequence

import torch

from stretch.transform.model import BranchedSegment

BATCH = 64
LEARNING_RATE = 1e-3


def refine(
    segment: BranchedSegment,
    arriving: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    steps: int,
    read: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Bring a segment's output closer to the original's with `steps` steps of Adam.

    Batch-norms keep their statistics; the learning rate follows a half-cosine.

    Args:
        segment: Changed in place; in evaluation mode.
        arriving: Batches of what it reads.
        targets: Batches of what the original computes.
        steps: Steps, each on 64 images.
        read: Makes its output comparable with the targets.
    """
    x, y = torch.cat(list(arriving)), torch.cat(list(targets))
    parameters = list(segment.parameters())
    if not parameters:
        return
    optimiser = torch.optim.Adam(parameters, LEARNING_RATE, fused=x.is_cuda)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(0)
    size = y.square().mean().clamp_min(1e-12)
    for _ in range(steps):
        batch = torch.randint(len(x), (BATCH,), generator=generator).to(x.device)
        with torch.enable_grad():
            loss = (read(segment(x[batch])) - y[batch]).square().mean() / size
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        schedule.step()
    optimiser.zero_grad()
