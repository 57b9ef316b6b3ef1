"""The loss of a network without one of its blocks."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from scheduler.progress import Progress, silent
from stretch.network.capture import Captured
from stretch.network.capture.results import named_outputs
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import Segment
from stretch.transform import build
from stretch.transform.calibrate.run import undivided_design
from stretch.transform.refine import mean_error

#: Images that are looked at, at least and at most, and multiply-accumulates for all that decide between: a minute or two of two cores.
FEWEST, IMAGES, MACS = 8, 32, 4e12
#: Images at a time.
BATCH = 16


@torch.no_grad()
def block_losses(
    captured: Captured, images: Sequence[torch.Tensor], design: BranchDesign, segment: Segment, progress: Progress = silent
) -> dict[int, float]:
    """The squared error of the outputs over their square without each single block, everything else as it was.

    Args:
        images: Batches of what the network reads, (n, channels, height, width), where computing is to be done.
        design: Has the segment among its own.
        segment: Of the original.

    Returns:
        For the number of each block that can be left out, what is lost without it; infinity where that is no number.
    """
    device = images[0].device
    together = torch.cat(list(images))
    undivided, units = undivided_design(captured, design), [number for number, block in enumerate(segment.blocks) if block.removable]
    count = min(len(together), IMAGES, max(FEWEST, int(MACS / (captured.graph.macs * max(len(units), 1)))))
    sample = together[torch.arange(count) * len(together) // count].split(BATCH)

    def outputs(of: BranchDesign) -> list[torch.Tensor]:
        model = build(captured, of).to(device)
        computed = [[value for _, value in named_outputs(model(x), captured.returned)] for x in sample]
        return [torch.cat(parts) for parts in zip(*computed, strict=True)]

    originals, losses = outputs(undivided), {}
    for done, number in enumerate(units):
        progress(f"blocks of {segment.name}, {done} of {len(units)}")
        parts = []
        for part in undivided.segments:
            if part.name == segment.name:
                (scale,) = part.branches
                part = replace(part, branches=(replace(scale, depth=scale.depth - 1, dropped=(number,)),))
            parts.append(part)
        error = float(mean_error(outputs(replace(undivided, segments=tuple(parts))), originals))
        losses[number] = error if error < float("inf") else float("inf")
    return losses
