"""Calibration of a whole network, segment by segment."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from predictors import system
from predictors.errors import StretchError
from predictors.joins import join_of
from stretch.network.capture import Captured
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, SideDesign, undivided
from stretch.planning.design.scale import design_segments
from stretch.planning.network.segments import Segment, split_segments
from stretch.transform.build import build, fold_norms, inherited_channels
from stretch.transform.calibrate.segment import ALL_CHOICES, ChoiceSettings, FitTask, state_of
from stretch.transform.calibrate.split import Split, divide
from stretch.transform.model import BranchedModel, BranchedSegment
from stretch.transform.width import InheritedChannels

#: Minimum number of images; with fewer the regressions are unreliable.
MIN_IMAGES = 16
#: Number of activations per image that exist at once: three at meeting points, three inside a branch.
_TENSORS_PER_IMAGE = 6


@dataclass(frozen=True)
class SegmentError:
    """Difference of a segment's output from the original's: mean squared error over mean square.

    Measured on the images held back for the choice of fits. After a `concat` join: error of the best linear map to the original's backbone.
    """

    segment: str  # Name of the segment.
    before: float  # Error before calibration.
    after: float  # Error after calibration.


@torch.no_grad()
def calibrate(
    model: BranchedModel,
    captured: Captured,
    images: Sequence[torch.Tensor],
    ridge: float = 1e-4,
    *,
    synthetic: Sequence[torch.Tensor] = (),
    layers: bool = True,
    choices: ChoiceSettings = ALL_CHOICES,
) -> list[SegmentError]:
    """Bring a newly built model close to the original, without labels.

    Segment by segment, the model reads its own input and is fitted to the
    original's output. A segment that already computes the same is not changed. Otherwise
    the best of these candidates is kept: the segment as built; with new batch-norm statistics
    and joins; with all layers and joins fitted, for each assignment of the original's
    blocks to the branches. All fits are ridge regressions. A network that only lacks
    blocks is fitted twice: in all segments, and only in the runs that lack a block. Then
    the result with the smaller final error is kept.

    The model's device holds about six activations of all images, and sums of products.

    Args:
        model: Model built from `captured`; changed in place, and in evaluation mode afterwards.
        images: Batches of the network's input, (n, channels, height, width).
        ridge: Weight of the penalty, relative to the mean square of a layer's inputs.
        synthetic: Batches of synthetic images; fits use as many of them as fit into half of the memory, the choice uses none.

    Returns:
        The errors of all branched segments, in order.

    Raises:
        StretchError: If there are too few images, too many for the memory, or their shape is wrong.
    """
    device = next(model.parameters()).device
    room = _image_capacity(captured, images, device)
    original = build(captured, undivided_design(captured, model.design)).to(device)
    fold_norms(original)
    model.eval()
    synthesised = [torch.cat(list(synthetic))[:room].to(device)] if synthetic else []
    arriving, split = divide([batch.to(device) for batch in images], _largest_tensor(captured), synthesised)
    calibration = NetworkFit(model, captured, original, arriving, split, ridge, layers, choices)
    # Fits shrink outputs towards the mean; if only a few blocks are missing, fitting fewer layers may do less harm.
    if not calibration.lacks_blocks_alone:
        return calibration.fit_segments(near=False)[0]
    built = state_of(model)
    errors, near_error = calibration.fit_segments(near=True)
    if not choices.extent:
        return errors
    near = state_of(model)
    model.load_state_dict(built)
    others, error = calibration.fit_segments(near=False)
    if error < near_error:
        return others
    model.load_state_dict(near)
    return errors


@dataclass(frozen=True)
class NetworkFit:
    """A network to be fitted, its original, and the images for the fit."""

    model: BranchedModel
    captured: Captured
    original: BranchedModel
    arriving: list[torch.Tensor]  # Batches of the network's input.
    split: Split
    ridge: float
    layers: bool
    choices: ChoiceSettings

    @cached_property
    def _parts(self) -> list[tuple[SegmentDesign, SegmentDesign, Segment, list[InheritedChannels]]]:
        """Each segment of the design, its undivided form, the original segment, and the channels that its branches inherit.

        Bands of rows and branches of channels share their weights, so the undivided segment is fitted.
        """
        design, pieces = self.model.design, undivided(self.model.design)
        segments, families = design_segments(self.captured.graph, design), inherited_channels(self.captured, pieces)
        return list(zip(design.segments, pieces.segments, segments, families, strict=True))

    @property
    def lacks_blocks_alone(self) -> bool:
        """Whether the network is the original except for missing blocks."""
        return any(part.missing for _, part, _, _ in self._parts) and all(
            _is_original(part, segment, part.missing) or _computes_the_same(placed, part) for placed, part, segment, _ in self._parts
        )

    def fit_segments(self, near: bool) -> tuple[list[SegmentError], float]:
        """Fit segment after segment; return the errors of the branched ones, and the network's error on the images for the choice.

        Args:
            near: Whether only the layers in runs with a missing block are fitted.
        """
        model, captured, arriving, errors = self.model, self.captured, self.arriving, []
        original_inputs = arriving
        for placed, part, segment, family in self._parts:
            original_branch, branched = self.original.branch(part.name, "cpu"), model.get_submodule(placed.name)
            same = arriving is original_inputs
            if ((near or same) and _is_original(part, segment)) or _computes_the_same(placed, part):
                original_inputs = [original_branch(x) for x in original_inputs]
                arriving = original_inputs if same else [branched(x) for x in arriving]
                continue
            piece = _segment_for(model, placed, part, family)
            task = FitTask(captured, part, segment, family, piece, original_branch, arriving, original_inputs, self.split, self.ridge, near)
            before, after, arriving, original_inputs = task.calibrate(self.layers, self.choices)
            if placed is not part:
                model.segment(placed.name).owner.load_state_dict(piece.owner.state_dict())
            if len(part.branches) > 1:
                errors.append(SegmentError(part.name, before, after))
        held_back = zip(arriving[self.split.fitted :], original_inputs[self.split.fitted :], strict=True)
        return errors, sum(float((x - y).square().sum(dtype=torch.float64)) for x, y in held_back)


def _is_original(part: SegmentDesign, segment: Segment, missing: Sequence[int] = ()) -> bool:
    """Return whether an undivided segment is the original's, except for some blocks."""
    scales = [(branch.depth, branch.width, branch.entry, branch.rewrites) for branch in part.branches]
    return scales == [(segment.depth - len(missing), segment.width, "none", ())]


def _computes_the_same(placed: SegmentDesign, part: SegmentDesign) -> bool:
    """Return whether a segment in exact parts computes with the original's weights for any input."""
    return join_of(placed.join).exact and placed is part


def _segment_for(model: BranchedModel, placed: SegmentDesign, part: SegmentDesign, family: list[InheritedChannels]) -> BranchedSegment:
    """Return the segment to fit: the model's own, or an undivided one with the weights of its parts."""
    segment = model.segment(placed.name)
    if placed is part:
        return segment
    piece = BranchedSegment(part, [inherited.branch for inherited in family]).eval()
    piece.owner.load_state_dict(segment.owner.state_dict())
    return piece.to(next(model.parameters()).device)


def _image_capacity(captured: Captured, images: Sequence[torch.Tensor], device: torch.device) -> int:
    """Return how many more images fit into half of the memory; refuse images of the wrong shape or too few."""
    input_shape = captured.graph.input.shape[1:]
    for batch in images:
        if tuple(batch.shape[1:]) != input_shape:
            raise StretchError(
                f"calibration images have shape {tuple(batch.shape[1:])}, the network reads {input_shape}",
                "resize them to the network's input",
            )
    count = sum(len(batch) for batch in images)
    if count < MIN_IMAGES:
        raise StretchError(f"{count} calibration images are too few", f"give at least {MIN_IMAGES}, better some hundreds")
    bytes_per_image = _TENSORS_PER_IMAGE * _largest_tensor(captured)
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else system.memory_bytes()
    if count * bytes_per_image > memory:
        raise StretchError(
            f"{count} calibration images would hold about {count * bytes_per_image / 2**30:.0f} GiB, there are {memory / 2**30:.0f} GiB",
            f"give at most {int(memory / bytes_per_image)} images",
        )
    return max(int(memory / 2 / bytes_per_image) - count, 0)


def _largest_tensor(captured: Captured) -> int:
    """Return the size of one image's largest activation, in bytes."""
    return 4 * max(prod(op.shape) for op in captured.graph.ops) // captured.graph.input.shape[0]


def undivided_design(captured: Captured, design: BranchDesign | None = None) -> BranchDesign:
    """Return the original with the segments of `design`, so that the values at its meeting points can be read; its own stages if None."""
    graph = captured.graph
    segments = split_segments(graph) if design is None else design_segments(graph, design)
    parts = tuple(SegmentDesign(s.name, s.start, s.end, (BranchScale("cpu", s.depth, s.width),)) for s in segments)
    if design is None:
        return BranchDesign(graph.name, "", parts)
    return BranchDesign(design.model, design.device, parts, sides=tuple(SideDesign(side.name, "cpu") for side in design.sides))
