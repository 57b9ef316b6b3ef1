"""The loss of a network without one of its blocks."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from scheduler.progress import Progress, silent
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import Segment
from stretch.transform import BranchedModel, build
from stretch.transform.build import fold_norms
from stretch.transform.calibrate.blocks import ReducedSegment
from stretch.transform.calibrate.run import undivided_design
from stretch.transform.model import BACKBONE
from stretch.transform.refine import mean_error
from stretch.transform.tensors import evenly_spread

#: Minimum and maximum number of images, and multiply-accumulates per block that determine it: one or two minutes on two cores.
FEWEST, IMAGES, MACS = 8, 32, 2e11
#: Number of images per batch.
BATCH = 16

Outputs = list[torch.Tensor]


@dataclass(frozen=True)
class BlockLosses:
    """Measures the squared error of the outputs over their square without each single block of an otherwise unchanged network.

    Args:
        images: Batches of the network's input, (n, channels, height, width), on the device of the computation.
    """

    captured: Captured
    images: Sequence[torch.Tensor]
    progress: Progress = silent
    _known: dict[tuple[str, ...], float] = field(default_factory=dict)  # Losses by the operators of a block, because designs share blocks.

    @torch.no_grad()
    def __call__(self, design: BranchDesign, segment: Segment) -> dict[int, float]:
        """Return the loss without each removable block of a segment, by the block's index; infinity if it is not a number."""
        units = {number: block for number, block in enumerate(segment.blocks) if block.removable}
        unknown = [number for number, block in units.items() if block.ops not in self._known]
        if unknown:
            model = build(self.captured, undivided_design(self.captured, design)).to(self.images[0].device)
            fold_norms(model)
            count = min(IMAGES, max(FEWEST, int(MACS / self.captured.graph.macs)))
            batches = evenly_spread(torch.cat(list(self.images)), count).split(BATCH)
            outputs: list[list[Outputs]] = []
            for done, x in enumerate(batches):
                self.progress(f"blocks of {segment.name}, {done} of {len(batches)}")
                outputs.append(list(self._outputs(model, segment, unknown, x)))
            originals, *others = ([torch.cat(parts) for parts in zip(*variant, strict=True)] for variant in zip(*outputs, strict=True))
            for number, changed in zip(unknown, others, strict=True):
                error = float(mean_error(changed, originals))
                self._known[units[number].ops] = error if error < float("inf") else float("inf")
        return {number: self._known[block.ops] for number, block in units.items()}

    def _outputs(self, model: BranchedModel, segment: Segment, blocks: Sequence[int], x: torch.Tensor) -> Iterator[Outputs]:
        """Yield the network's outputs, then its outputs without each block; the part before a block is computed once."""
        tensors, parts = model.beginning([x]), list(model.design.segments)
        arriving = tensors.pop(BACKBONE)
        while parts[0].name != segment.name:
            arriving = tensors[parts[0].end] = model.get_submodule(parts[0].name)(arriving)
            parts.pop(0)
        whole = ReducedSegment.of(segment, model.branch(segment.name, "cpu"), [arriving])
        for reduced in itertools.chain([whole], map(whole.without, blocks)):
            (later,) = reduced.outputs
            values = {**tensors, segment.end: later}
            for part in parts[1:]:
                later = values[part.end] = model.get_submodule(part.name)(later)
            values = model.ending(values)
            yield [values[name] for name in self.captured.graph.outputs]
