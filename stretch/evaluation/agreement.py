"""Share of images for which two networks answer the same class, with intervals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from predictors.errors import StretchError
from predictors.joins import join_of
from scheduler.bundle.agreement import Agreement, SegmentAgreement
from stretch.evaluation.measure import LONG, AgreementSums, ranks, share_of
from stretch.network.capture import Captured
from stretch.planning.design.scale import design_segments, scaled_branches
from stretch.transform import BranchedModel, build
from stretch.transform.build import is_original
from stretch.transform.calibrate import undivided_design

Stage = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class _Counts:
    """Sums for the whole network and for each segment."""

    whole: AgreementSums = field(default_factory=AgreementSums)
    alone: dict[str, AgreementSums] = field(default_factory=dict)
    outputs: int | None = None


@torch.no_grad()
def compare(
    model: BranchedModel, captured: Captured, images: Sequence[torch.Tensor], *, each: bool = True
) -> tuple[Agreement, Mapping[int, int]]:
    """Compare a branched network with its original on images that no fit used.

    For networks with several results, only errors are compared, not classes.

    Args:
        images: Batches of the network's input, (n, channels, height, width), at least one image.
        each: Whether each changed segment is also compared alone, in the original's place.

    Returns:
        The agreement, and the number of images by the original's class, empty if outputs are not classes.
    """
    device = next(model.parameters()).device
    original = build(captured, undivided_design(captured, model.design)).to(device).eval()
    training = model.training
    model.eval()
    names = [part.name for part in model.design.segments]
    original_stages, stages = ([net.get_submodule(name) for name in names] for net in (original, model))
    changed = _changed_segments(model, captured)
    counts = _Counts(alone={name: AgreementSums() for name, fits in changed.items() if fits and each})
    if len(changed) == len(counts.alone) == 1:
        # all other segments are the original's, so this segment alone gives the same result
        counts.alone = dict.fromkeys(changed, counts.whole)
    try:
        for batch in images:
            if len(captured.graph.outputs) > 1 or model.sides:
                _count_results(counts, batch.to(device), original, model)
            else:
                _count(counts, batch.to(device), names, original_stages, stages)
    finally:
        model.train(training)
    return _compare(counts, changed)


def _changed_segments(model: BranchedModel, captured: Captured) -> dict[str, bool]:
    """Return the segments that differ from the original's, and whether each can replace the original's.

    It can if it reads and writes as many channels as the original's.
    """
    changed = {}
    graph, design = captured.graph, model.design
    for part, segment, branches in zip(design.segments, design_segments(graph, design), scaled_branches(graph, design), strict=True):
        if not is_original(part, segment):
            reads = branches[0].graph.input.shape[1]
            writes = sum(b.width for b in part.branches) if part.whole or join_of(part.join).widens else segment.width
            changed[part.name] = (reads, writes) == (segment.in_width, segment.width)
    return changed


def _count(counts: _Counts, batch: torch.Tensor, names: Sequence[str], original_stages: Sequence[Stage], stages: Sequence[Stage]) -> None:
    """Count a batch for the whole network, and for each changed segment in the original's place."""
    original_values = [batch]
    for stage in original_stages:
        original_values.append(stage(original_values[-1]))
    output = batch
    for stage in stages:
        output = stage(output)
    for source, values in (("the original", original_values[-1]), ("the branched network", output)):
        if not torch.isfinite(values).all():
            raise StretchError(f"the output of {source} contains NaN or infinity for some of the images", "check its weights")
    expected = original_values[-1].cpu().numpy()
    counts.whole.add(output.cpu().numpy(), expected)
    if ranks(expected):
        counts.outputs = expected.shape[1]
    for number, name in enumerate(names):
        if name not in counts.alone or counts.alone[name] is counts.whole:
            continue
        value = original_values[number]
        for stage in (stages[number], *original_stages[number + 1 :]):
            value = stage(value)
        counts.alone[name].add(value.cpu().numpy(), expected)


def _count_results(counts: _Counts, batch: torch.Tensor, original: BranchedModel, model: BranchedModel) -> None:
    """Add the errors of a batch for networks with several results, none of which is the class.

    Each result has the same weight, whatever its magnitude.
    """
    names = original.original_outputs
    originals = _results(original.values([batch]), names, "the original")
    counts.whole.images += len(batch)
    _add_errors(counts.whole, _results(model.values([batch]), names, "the branched network"), originals)
    for name, sums in counts.alone.items():
        if sums is not counts.whole:
            _add_errors(sums, _results(original.values([batch], {name: model.segment(name)}), names, "the branched network"), originals)


def _results(values: Mapping[str, torch.Tensor], names: Sequence[str], network: str) -> list[torch.Tensor]:
    results = [values[name] for name in names]
    if not all(torch.isfinite(tensor).all() for tensor in results):
        raise StretchError(f"an output of {network} contains NaN or infinity for some of the images", "check its weights")
    return results


def _add_errors(sums: AgreementSums, outputs: Sequence[torch.Tensor], originals: Sequence[torch.Tensor]) -> None:
    """Add squared errors, each relative to the square of the original's result."""
    for output, original in zip(outputs, originals, strict=True):
        square = float(original.double().square().sum())
        wrong = float((output.double() - original.double()).square().sum())
        images = len(output)
        sums.wrong += images * (wrong / square if square else float(wrong > 0))
        sums.total += images


def _compare(counts: _Counts, changed: Iterable[str]) -> tuple[Agreement, Mapping[int, int]]:
    n, classes = counts.whole.images, counts.outputs if counts.whole.diverse else None
    share = share_of(counts.whole.same, n) if classes else None
    segments = []
    for name in changed:
        sums = counts.alone.get(name)
        value = sums.same / n if sums is not None and classes else None
        segments.append(SegmentAgreement(segment=name, value=value, error=None if sums is None else sums.error))
    agreement = Agreement(
        value=share.value if share else None,
        low=share.low if share else None,
        high=share.high if share else None,
        top5_overlap=counts.whole.shared / n if classes and classes > LONG else None,
        error=counts.whole.error,
        images=n,
        classes=len(counts.whole.classes) or None,
        segments=tuple(segments),
    )
    return agreement, counts.whole.classes
