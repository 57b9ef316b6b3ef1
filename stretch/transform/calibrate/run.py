"""Calibration of a whole network, segment by segment."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from predictors.errors import StretchError
from stretch.capture import Captured
from stretch.planning.design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.scale import design_segments
from stretch.planning.segments import Segment as Original
from stretch.transform.build import build, heritages, load_weights
from stretch.transform.calibrate.joins import fit_join, readout, trunk_of
from stretch.transform.calibrate.layers import Batches, fit_layers, pixels_for
from stretch.transform.calibrate.match import Matches, candidate_matches
from stretch.transform.calibrate.refine import refine
from stretch.transform.calibrate.statistics import rebase_statistics, renew_statistics
from stretch.transform.model import Branch, BranchedModel, Segment
from stretch.transform.width import Heritage

#: Fewer images than this leave the regressions to chance.
MIN_IMAGES = 16
#: Tensors of all images that live at once: three at meeting points, three inside a branch.
_HELD = 6
#: A smaller error than this is rounding: the segment computes what the original does.
_SAME = 1e-9


@dataclass(frozen=True)
class SegmentError:
    """How far a segment's output is from the original's: mean squared error over mean square.

    Behind a `concat` join it is the error of the best linear map to the original's trunk.

    Args:
        segment: Its name.
        before: As it was built.
        after: Calibrated.
    """

    segment: str
    before: float
    after: float


@torch.no_grad()
def calibrate(
    model: BranchedModel,
    captured: Captured,
    images: Sequence[torch.Tensor],
    ridge: float = 1e-4,
    *,
    layers: bool = True,
    refine_steps: int = 0,
) -> list[SegmentError]:
    """Bring a freshly built model close to the original, without labels.

    Segment by segment the model sees what arrives in itself and is told what the
    original computes. A segment that computes the same already is left alone; else
    the best of these is kept: as built; with batch-norm statistics and joins anew;
    with every layer and the joins fitted, once for each way to divide the original's
    blocks among the branches. All fits are ridge regressions.

    About six activations of all images are held on the model's device, and sums of products.

    Args:
        model: Built from `captured`; changed in place, in evaluation mode afterwards.
        captured: The original network.
        images: Batches of what the network reads, (n, channels, height, width).
        ridge: Weight of the penalty, relative to the mean square of a layer's inputs.
        layers: Whether layers are fitted, not statistics and joins alone.
        refine_steps: Steps of Adam on each segment afterwards, without labels; 0 for none.

    Returns:
        The error of every branched segment, in order.

    Raises:
        StretchError: If there are too few images, too many for the memory, or their shape is wrong.
    """
    device = next(model.parameters()).device
    _check(captured, images, device)
    original = build(captured, whole_design(captured, model.design)).to(device)
    model.eval()
    arriving = there = [batch.to(device) for batch in images]
    errors = []
    for part, family, segment in zip(
        model.design.segments, heritages(captured, model.design), design_segments(captured.graph, model.design), strict=True
    ):
        whole = original.branch(part.name, "cpu")
        job = _Job(part, segment, family, model.get_submodule(part.name), whole, arriving, there, [whole(x) for x in there], ridge)
        before = after = job.error()
        if before > _SAME:
            after = job.calibrate(captured, before, layers, refine_steps)
        if len(part.branches) > 1:
            errors.append(SegmentError(part.name, before, after))
        arriving, there = [job.segment(x) for x in arriving], job.targets
    return errors


def _check(captured: Captured, images: Sequence[torch.Tensor], device: torch.device) -> None:
    wanted = captured.graph.input.shape[1:]
    for batch in images:
        if tuple(batch.shape[1:]) != wanted:
            raise StretchError(
                f"calibration images have shape {tuple(batch.shape[1:])}, the network reads {wanted}", "resize them to the network's input"
            )
    count = sum(len(batch) for batch in images)
    if count < MIN_IMAGES:
        raise StretchError(f"{count} calibration images are too few", f"give at least {MIN_IMAGES}, better some hundreds")
    each = _HELD * 4 * max(prod(op.shape) for op in captured.graph.ops) / captured.graph.input.shape[0]
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * each > memory:
        raise StretchError(
            f"{count} calibration images would hold about {count * each / 2**30:.0f} GiB, there are {memory / 2**30:.0f} GiB",
            f"give at most {int(memory / each)} images",
        )


def whole_design(captured: Captured, design: BranchDesign) -> BranchDesign:
    """The original with the segments of `design`, so that its meeting points can be looked at."""
    parts = [
        SegmentDesign(s.name, s.start, s.end, (BranchScale("cpu", s.depth, s.width),)) for s in design_segments(captured.graph, design)
    ]
    return BranchDesign(design.model, design.device, tuple(parts))


@dataclass
class _Job:
    """One segment: what is fitted, to what."""

    part: SegmentDesign
    original: Original
    family: list[Heritage]
    segment: Segment
    whole: Branch
    arriving: Batches
    there: Batches
    targets: Batches
    ridge: float

    def calibrate(self, captured: Captured, before: float, layers: bool, refine_steps: int) -> float:
        """Keep the best of all ways, the one as built with its error `before` among them; returns the least error."""
        best, least = self._state(), before

        def offer() -> None:
            nonlocal best, least
            error = self.error()
            if error < least:
                best, least = self._state(), error

        renew_statistics(self.segment, self.arriving)
        start = self._state()
        self._fit_join([[trunk_of(branch, x) for x in self.arriving] for branch in self._branches()])
        offer()
        for way in candidate_matches(self.original, [h.branch.source for h in self.family]) if layers else ():
            self.segment.load_state_dict(start)
            self._fit_join([self._fit_branch(captured, *pair) for pair in zip(self.family, self._branches(), way, strict=True)])
            offer()
        if refine_steps:
            self.segment.load_state_dict(best)
            refine(self.segment, self.arriving, self.targets, refine_steps, self._reader())
            offer()
        self.segment.load_state_dict(best)
        rebase_statistics(self.segment, self.arriving)
        return least

    def _branches(self) -> list[Branch]:
        return [branch for branch in self.segment.children() if isinstance(branch, Branch)]

    def _state(self) -> dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in self.segment.state_dict().items()}

    def _fit_join(self, trunks: list[list[torch.Tensor]]) -> None:
        fit_join(self.part, self.segment, trunks, self.targets, pixels_for(self.arriving), self.ridge)

    def _fit_branch(self, captured: Captured, heritage: Heritage, branch: Branch, matches: Matches) -> list[torch.Tensor]:
        for name, weights in heritage.weights(captured, matches).items():
            if name in matches:
                load_weights(branch.get_submodule(name), weights)
        return fit_layers(heritage, branch, matches, self.arriving, self.whole, self.there, self.ridge)

    def _reader(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Makes the segment's output comparable with the original's."""
        if self.part.join != "concat":
            return lambda output: output
        weight, bias = readout([self.segment(x) for x in self.arriving], self.targets, pixels_for(self.arriving), self.ridge)
        return lambda output: torch.einsum("oc,nc...->no...", weight, output) + bias.reshape(-1, *[1] * (output.dim() - 2))

    def error(self) -> float:
        """Squared error over the square of the original's output."""
        wrong = total = 0.0
        read = self._reader()
        for x, target in zip(self.arriving, self.targets, strict=True):
            wrong += float((read(self.segment(x)) - target).double().square().sum())
            total += float(target.double().square().sum())
        return wrong / total if total > 0 else wrong
