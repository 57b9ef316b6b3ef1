"""The loss of a network without one of its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from scheduler.progress import Progress, silent
from stretch.network.capture import Captured
from stretch.network.capture.results import named_outputs
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import Segment
from stretch.transform import build
from stretch.transform.calibrate.run import undivided_design
from stretch.transform.refine import mean_error

#: Images that are looked at, at least and at most, and multiply-accumulates for a block that decide between: a minute or two of two cores.
FEWEST, IMAGES, MACS = 8, 32, 2e11
#: Images at a time.
BATCH = 16


@dataclass(frozen=True)
class BlockLosses:
    """Measures the squared error of the outputs over their square without each single block, everything else as it was.

    Args:
        images: Batches of what the network reads, (n, channels, height, width), where computing is to be done.
    """

    captured: Captured
    images: Sequence[torch.Tensor]
    progress: Progress = silent
    _known: dict[tuple[str, ...], float] = field(default_factory=dict)  # By the operators of a block: designs share blocks.

    def __call__(self, design: BranchDesign, segment: Segment) -> dict[int, float]:
        """The loss for the number of each block of a segment of a design that can be left out; infinity where it is no number."""
        units = {number: block.ops for number, block in enumerate(segment.blocks) if block.removable}
        undivided = undivided_design(self.captured, design)
        for done, (number, ops) in enumerate(units.items()):
            if ops not in self._known:
                self.progress(f"blocks of {segment.name}, {done} of {len(units)}")
                parts = []
                for part in undivided.segments:
                    if part.name == segment.name:
                        (scale,) = part.branches
                        part = replace(part, branches=(replace(scale, depth=scale.depth - 1, dropped=(number,)),))
                    parts.append(part)
                error = float(mean_error(self._outputs(replace(undivided, segments=tuple(parts))), self._originals))
                self._known[ops] = error if error < float("inf") else float("inf")
        return {number: self._known[ops] for number, ops in units.items()}

    @cached_property
    def _sample(self) -> Sequence[torch.Tensor]:
        together = torch.cat(list(self.images))
        count = min(len(together), IMAGES, max(FEWEST, int(MACS / self.captured.graph.macs)))
        return together[torch.arange(count) * len(together) // count].split(BATCH)

    @cached_property
    def _originals(self) -> list[torch.Tensor]:
        return self._outputs(undivided_design(self.captured))

    @torch.no_grad()
    def _outputs(self, design: BranchDesign) -> list[torch.Tensor]:
        model = build(self.captured, design).to(self.images[0].device)
        computed = [[value for _, value in named_outputs(model(x), self.captured.returned)] for x in self._sample]
        return [torch.cat(parts) for parts in zip(*computed, strict=True)]
