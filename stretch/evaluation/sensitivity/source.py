"""Measure the losses that planning for agreement needs, for a network, a request and images."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import prod

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, StretchError, UsageError
from predictors.graph import OpGraph
from scheduler.bundle.agreement import Agreement
from scheduler.progress import Progress, silent
from stretch import __version__
from stretch.evaluation.agreement import compare
from stretch.evaluation.measure import MAX_CLASS_SHARE, AgreementSums, most_frequent, one_sided_reason, ranks
from stretch.evaluation.sensitivity.blocks import BlockLosses
from stretch.evaluation.sensitivity.fit import fit, logit
from stretch.network.capture import Captured
from stretch.planning.blocks import Losses
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import (
    NORMAL_QUANTILE_95,
    SEEN_FEATURES,
    SEGMENT_FEATURES,
    ChangedSegment,
    Measured,
    MeasuredOn,
    Sensitivity,
    changed_segments,
    option_features,
)
from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.plan import PlanningProblem
from stretch.planning.search.space import DesignSpace
from stretch.transform import BranchedModel, build
from stretch.transform.build import fold_norms
from stretch.transform.calibrate import MIN_IMAGES, ChoiceSettings, calibrate, undivided_design
from stretch.transform.calibrate.segment import ALL_CHOICES
from stretch.transform.calibrate.split import Images
from stretch.transform.refine import fingerprint
from stretch.transform.tensors import evenly_spread

# Measured options and designs: some options of each segment, and random whole designs.

Floats = NDArray[np.float64]

#: Range of an option's multiply-accumulates relative to the segment's, because whole designs must be near the original's.
NEAR = (0.85, 1.15)
#: Maximum time of a measured option relative to the fastest option of its segment, because slower ones are seldom chosen.
FAST = 1.5
#: Number of attempts per requested random design.
ATTEMPTS = 200


@dataclass(frozen=True)
class Trial:
    """One option of one segment, to be measured."""

    options: SegmentOptions  # All options of the segment.
    index: int  # Index of the option among these.
    first: int  # Index of the first stage in the segment.

    def stages(self, space: DesignSpace) -> tuple[str, ...]:
        """Return the names of the stages in the segment."""
        return tuple(stage.name for stage in space.segments[self.first : self.first + self.options.span])


def trials(space: DesignSpace, number: int) -> list[Trial]:
    """Return options of every segment that may be stretched, including merged stages: first the fastest, then the most different ones."""
    rounds: list[list[Trial]] = [[] for _ in range(number)]
    for first, groups in sorted(_stretched_options(space), key=lambda entry: entry[1][0].span):
        for place, trial in enumerate(_select_different(space, first, groups, number)):
            rounds[place].append(trial)
    return [trial for round_trials in rounds for trial in round_trials]


def _stretched_options(space: DesignSpace) -> Iterator[tuple[int, list[SegmentOptions]]]:
    """Yield the options of every run of stages that may be stretched, with the index of its first stage."""
    for first, options in enumerate(space.options):
        scaled = [group for group in options if group.branched and not group.exact]
        for span in sorted({group.span for group in scaled}):
            yield first, [group for group in scaled if group.span == span]


def _select_different(space: DesignSpace, first: int, groups: Sequence[SegmentOptions], count: int) -> list[Trial]:
    """Return options that are fast and differ from each other."""
    options = [(group, index) for group in groups for index in _allowed_indices(group)]
    if not options:
        return []
    # for each combination the time with its input on the most favourable processor
    fastest = {id(group): np.where(group.allowed, group.ms, np.inf).min(axis=0) for group in groups}
    ms = np.array([fastest[id(group)][index] for group, index in options])
    fast = ms <= FAST * ms.min()
    rows = np.concatenate([option_features(group, tuple(SEGMENT_FEATURES))[_allowed_indices(group)] for group in groups])
    spread = rows.std(0)
    rows = rows / np.where(spread > 0, spread, 1.0)
    chosen = [int(np.argmin(ms))]
    while len(chosen) < min(count, int(fast.sum())):
        away = np.min([np.square(rows - rows[i]).sum(1) for i in chosen], axis=0)
        away[~fast] = -1.0
        best = int(np.argmax(away))
        if away[best] <= 0:
            break
        chosen.append(best)
    return [Trial(*options[i], first) for i in chosen]


def _allowed_indices(group: SegmentOptions) -> NDArray[np.int64]:
    """Return the indices of the combinations that are allowed and compute about as much as the segment."""
    ratio = group.macs / group.segment.graph.macs
    indices: NDArray[np.int64] = np.flatnonzero(group.allowed.any(axis=0) & (ratio >= NEAR[0]) & (ratio <= NEAR[1]))
    return indices


def random_designs(space: DesignSpace, model: str, device: str, count: int, macs: tuple[float, float], seed: int) -> list[BranchDesign]:
    """Draw random designs: every stage stays whole or begins a segment in scaled copies, which may include following stages."""
    rng = np.random.default_rng(seed)
    whole = sum(stage.graph.macs for stage in space.segments)
    designs: dict[tuple[SegmentDesign, ...], None] = {}
    for _ in range(ATTEMPTS * count):
        if len(designs) == count:
            break
        parts, total = _random(space, rng)
        if any(not part.whole for part in parts) and macs[0] * whole <= total <= macs[1] * whole:
            designs[parts] = None
    return [BranchDesign(model, device, parts) for parts in designs]


def _random(space: DesignSpace, rng: np.random.Generator) -> tuple[tuple[SegmentDesign, ...], int]:
    """Return the segments of a random design and its multiply-accumulates."""
    parts: list[SegmentDesign] = []
    at, macs = 0, 0
    runs: dict[int, list[list[SegmentOptions]]] = {}
    for first, groups in _stretched_options(space):
        usable = [group for group in groups if len(_allowed_indices(group))]
        if usable:
            runs.setdefault(first, []).append(usable)
    while at < len(space.segments):
        if at in runs and rng.random() < 0.5:
            groups = runs[at][rng.integers(len(runs[at]))]
            group = groups[rng.integers(len(groups))]
            index = int(rng.choice(_allowed_indices(group)))
        else:
            group, index = next(options for options in space.options[at] if not options.branched), 0
        parts += group.designs(index, space.costs)
        macs += int(group.macs[index])
        at += group.span
    return tuple(parts), macs


Batches = Sequence[torch.Tensor]

#: Maximum number of measured options of each segment.
EACH = 4
#: Maximum number of measured whole designs, and the range of their multiply-accumulates relative to the original's.
DESIGNS, MACS = 8, (0.9, 1.1)
#: Number of measured blocks per replaced segment and per whole design; a segment takes as long as six to ten blocks, a design 10 to 40.
BLOCKS_PER_SEGMENT, BLOCKS_PER_DESIGN = 4, 24
#: Minimum number of measurements for a prediction.
FEWEST = 4
#: Default number of measured blocks times the network's multiply-accumulates, and its bounds: one or two minutes on two cores.
#: The number depends on work, not on time, so that fast and slow machines find the same plan.
BLOCK_MACS, LEAST_BLOCKS, MOST_BLOCKS = 8e9, 6, 24
#: Choices on activations double the time of fits and change little: without them more segments can be measured.
QUICK = ChoiceSettings(channels=False, blocks=False, extent=False)


@dataclass(frozen=True)
class SensitivityMeasurements:
    """Measured losses."""

    alone: tuple[Measured, ...]  # The original with one segment replaced and calibrated.
    designs: tuple[Measured, ...]  # Whole designs.
    seconds: float  # Time of the measurements in seconds.
    complete: bool  # Whether all blocks and all options of segments were measured.
    #: The original without one block, with the remainder of its stage calibrated, by the block's output tensor.
    blocks: dict[str, Measured] = field(default_factory=dict)


@torch.no_grad()
def measure(
    captured: Captured,
    space: DesignSpace,
    fitted: Batches,
    held_back: Batches,
    count: int,
    progress: Progress = silent,
    losses: Losses | None = None,
) -> SensitivityMeasurements:
    """Measure single removed blocks, the least important first, then single segments, then whole designs.

    Args:
        fitted: Batches of unlabelled images for calibration, (n, channels, height, width), on the device of the computation.
        held_back: Batches of other images for comparison, at least one image.
        count: Maximum number of blocks; it sets the numbers of segments and designs (`BLOCKS_PER_SEGMENT`, `BLOCKS_PER_DESIGN`).
        losses: Losses without single blocks, before any calibration; measured on the images if None.
    """
    losses = losses or BlockLosses(captured, fitted, progress)
    whole_design = undivided_design(captured)
    removable = sorted((lost, n, at) for at, stage in enumerate(space.segments) for n, lost in losses(whole_design, stage).items())
    start = time.monotonic()
    planned = trials(space, EACH)
    if not planned:
        raise InfeasibleError(f"no segment of `{captured.graph.name}` may be stretched under these rules, so there is nothing to measure")
    original = _Original(captured, space, fitted, held_back)
    blocks: dict[str, Measured] = {}
    for _, n, at in removable[:count]:
        progress(f"block {len(blocks) + 1} of {min(count, len(removable))}")
        stage = space.segments[at]
        without = space.undivided(stage, space.processors[0], stage.in_width, (n,))
        blocks[stage.blocks[n].end] = original.replace_segment(Trial(without, 0, at))
    alone: list[Measured] = []
    chosen = planned[: max(count // BLOCKS_PER_SEGMENT, FEWEST - len(blocks), 1)]
    for number, trial in enumerate(chosen, 1):
        progress(f"segment {number} of {len(chosen)}")
        alone.append(original.replace_segment(trial))
    whole = random_designs(space, captured.graph.name, space.costs.predictor.device.id, min(count // BLOCKS_PER_DESIGN, DESIGNS), MACS, 0)
    together: list[Measured] = []
    for number, design in enumerate(whole, 1):
        progress(f"design {number} of {len(whole)}")
        together.append(measure_design(captured, design, fitted, held_back, space, QUICK))
    complete = (len(blocks), len(alone)) == (len(removable), len(planned))
    return SensitivityMeasurements(tuple(alone), tuple(together), time.monotonic() - start, complete, blocks)


def default_count(graph: OpGraph) -> int:
    """Return the default number of measured blocks, which decreases with the network's work."""
    return int(min(max(BLOCK_MACS / graph.macs, LEAST_BLOCKS), MOST_BLOCKS))


@torch.no_grad()
def measure_design(
    captured: Captured,
    design: BranchDesign,
    fitted: Batches,
    held_back: Batches,
    space: DesignSpace,
    choices: ChoiceSettings = ALL_CHOICES,
) -> Measured:
    """Build, calibrate and compare a whole design.

    Args:
        fitted: Batches for calibration, on the device of the computation.
        choices: As in `calibrate`.
    """
    model = build(captured, design).to(fitted[0].device)
    calibrate(model, captured, fitted, choices=choices)
    agreement, _ = compare(model, captured, held_back, each=False)
    if agreement.value is None:
        raise _no_classes(captured)
    stages = [(stage.name, stage.start, stage.end) for stage in space.segments]
    changed = []
    for segment, row in changed_segments(captured.graph, design, SEEN_FEATURES):
        first = next(i for i, (_, begins, _) in enumerate(stages) if begins == segment.start)
        last = next(i for i, (_, _, ends) in enumerate(stages) if ends == segment.end)
        changed.append(ChangedSegment(stages=tuple(name for name, _, _ in stages[first : last + 1]), features=tuple(map(float, row))))
    return Measured(segments=tuple(changed), error=agreement.error**2, agreement=agreement.value)


class _Original:
    """The original, divided at the ends of its stages, with the input tensors of each stage."""

    def __init__(self, captured: Captured, space: DesignSpace, fitted: Batches, held_back: Batches) -> None:
        self.captured, self.space = captured, space
        parts = tuple(SegmentDesign(s.name, s.start, s.end, (BranchScale("cpu", s.depth, s.width),)) for s in space.segments)
        model = build(captured, BranchDesign(captured.graph.name, "", parts)).to(fitted[0].device)
        fold_norms(model)
        self.stages = [model.get_submodule(stage.name) for stage in space.segments]
        self.fitted, self.held = [list(fitted)], [list(held_back)]
        for stage in self.stages:
            # the input of a stage that is never replaced is not needed, but it is small compared with the images
            self.fitted.append([stage(x) for x in self.fitted[-1]])
            self.held.append([stage(x) for x in self.held[-1]])
        if not ranks(self.held[-1][0]):
            raise _no_classes(captured)
        for scores in self.held[-1]:
            if not torch.isfinite(scores).all():
                raise StretchError("the output of the original contains NaN or infinity for some of the images", "check its weights")
        classes = Counter(torch.cat(self.held[-1]).argmax(1).tolist())
        if most_frequent(classes) >= MAX_CLASS_SHARE:
            raise UsageError(one_sided_reason(classes), "give images of several classes, or plan without images")

    def replace_segment(self, trial: Trial) -> Measured:
        """Measure the original with one segment replaced by a trial's option, calibrated on the segment's inputs."""
        segment, last = trial.options.segment, trial.first + trial.options.span
        weights = {op.name: self.captured.weights[op.name] for op in segment.graph.ops if op.name in self.captured.weights}
        piece = Captured(segment.graph, weights, self.captured.module)
        part = trial.options.design(trial.index, self.space.costs)
        model: BranchedModel = build(piece, BranchDesign(segment.graph.name, "", (part,))).to(self.fitted[0][0].device)
        calibrate(model, piece, self.fitted[trial.first], choices=QUICK)
        sums = AgreementSums()
        for x, scores in zip(self.held[trial.first], self.held[-1], strict=True):
            output = model(x)
            for stage in self.stages[last:]:
                output = stage(output)
            sums.add(output.cpu().numpy(), scores.cpu().numpy())
        row = option_features(trial.options, SEEN_FEATURES)[trial.index]
        changed = ChangedSegment(stages=trial.stages(self.space), features=tuple(map(float, row)))
        error = sums.error**2
        return Measured(segments=(changed,), error=error if np.isfinite(error) else 1e30, agreement=sums.same / sums.images)


def _no_classes(captured: Captured) -> UsageError:
    return UsageError(
        f"the outputs of `{captured.graph.name}` are no list of class scores, so there is no agreement to predict", "plan without it"
    )


#: Maximum numbers of images for calibration and for comparison; every option of every segment uses all of them.
FITTED, HELD_BACK = 64, 128
#: Maximum size of all images at the ends of the stages, in bytes.
MOST_BYTES = 1 << 30


def plannable(config: PlanConfig) -> bool:
    """Return whether a request allows designs chosen by loss: exact search among scaled copies that keep the backbone's width."""
    return config.strategy == "exact" and not config.widens and "stretch" in config.planned_kinds


def sensitivity_of(
    captured: Captured,
    device: DeviceProfile,
    config: PlanConfig,
    images: Images,
    count: int | None = None,
    progress: Progress = silent,
    losses: Losses | None = None,
) -> Sensitivity:
    """Measure the loss of a network for single replaced segments, and fit a predictor to it.

    Only a share of the images is used (`FITTED`, `HELD_BACK`, fewer if they would need much memory), spread over all.

    Args:
        images: Images for calibration and for comparison; synthetic ones fill up the former to `FITTED`.
        count: As in `measure`; `default_count` if None.
        losses: As in `measure`.
    """
    if len(captured.graph.inputs) > 1 or len(captured.graph.outputs) > 1:
        raise UsageError(
            f"agreement is planned for networks of one input and one output, and `{captured.graph.name}` has several",
            "leave the images out to search, or calibrate a design without asking for an agreement",
        )
    request = PlanningProblem.of(
        captured.graph, device, replace(config, min_agreement=None, min_accuracy=None, accuracy="", objective="latency")
    )
    checked = request.config
    space = request.stage_space(merged=checked.merge != "never" and not checked.meet)
    image_bytes = 4 * sum(prod(captured.graph.by_name[stage.start].shape) for stage in request.stages)
    limit = max(MIN_IMAGES, MOST_BYTES // image_bytes // 2)
    fitted, held_back = _subset(images.fitted, min(FITTED, limit)), _subset(images.held_back, min(HELD_BACK, limit))
    missing = min(FITTED, limit) - sum(map(len, fitted))
    fitted += _subset(images.synthetic, missing) if images.synthetic and missing else []
    measurement = measure(captured, space, fitted, held_back, count or default_count(captured.graph), progress, losses)
    on = MeasuredOn(
        weights=fingerprint(captured.tensors),
        images=sum(map(len, fitted)),
        held_back=sum(map(len, held_back)),
        pictures=fingerprint({f"{number:06d}": batch for number, batch in enumerate([*fitted, *held_back])}),
        device=device.id,
        processors=checked.processors,
        version=__version__,
        date=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        seconds=round(measurement.seconds, 1),
        complete=measurement.complete,
    )
    return fit(captured.graph.name, checked.resolved_join, request.stages, measurement.alone, measurement.designs, on, measurement.blocks)


def lowest_prediction(least: float, predicted: float, measured: Agreement) -> float:
    """Return the lowest prediction for which a design may reach the requested agreement, given another design's prediction and measurement.

    Predictions for one network are wrong in the same direction, so the difference of the logits is assumed to be constant.
    """
    assert measured.value is not None
    requested, expected, observed = logit(np.array([least, predicted, measured.value]), measured.images)
    return float(1 / (1 + np.exp(observed - expected - requested)))


def lowest_plausible(sensitivity: Sensitivity, least: float) -> float:
    """Return the lowest prediction whose 95 % interval contains an agreement."""
    odds = least / max(1 - least, 1e-9) * np.exp(-NORMAL_QUANTILE_95 * sensitivity.spread)
    return float(odds / (1 + odds))


def _subset(batches: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
    """Return at most `count` images, spread evenly, in batches of the same size as before."""
    return list(evenly_spread(torch.cat(list(batches)), count).split(len(batches[0])))
