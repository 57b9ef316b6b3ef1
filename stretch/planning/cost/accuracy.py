"""Predicted accuracy of a design, whatever it is predicted from.

A source gives every way to run a segment a loss. Losses add up over the segments of a design, as latency does; what they say of a whole
design, in top-1 or in agreement with the original, is the source's task: `AccuracyPredictor`, fitted by `stretch.train.rank` to subnets of
a trained supernet, or `Sensitivity`, fitted by `stretch.evaluation.sensitivity` to what the original itself loses on images.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from predictors.errors import StretchError, UsageError
from predictors.files import read_bytes, write_whole
from predictors.graph import OpGraph
from predictors.joins import JoinKind, join_of
from stretch.planning.cost.branch import Floats, SegmentOptions
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import design_segments, scaled_branches
from stretch.planning.network.segments import Segment

# Features of accuracy predictors for a segment that was changed: numbers that are zero for the original.

#: Each from the branches' depth ratios and width ratios, (branches, n), and the segment's multiply-accumulates over the original's, (n,).
SEGMENT_FEATURES: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "log_macs": lambda depths, widths, macs: np.log(macs),
    "log_mean_width": lambda depths, widths, macs: np.log(widths).mean(0),
    "log_widest": lambda depths, widths, macs: np.log(widths).max(0),
    "log_mean_depth": lambda depths, widths, macs: np.log(depths).mean(0),
    "log_deepest": lambda depths, widths, macs: np.log(depths).max(0),
    # multiply-accumulates grow with the depth and with the square of the width
    "log_largest": lambda depths, widths, macs: (np.log(depths) + 2 * np.log(widths)).max(0),
    "log_branches": lambda depths, widths, macs: np.full(len(macs), np.log(len(depths))),
}


def features(depths: Floats, widths: Floats, macs: Floats, names: Sequence[str]) -> Floats:
    """Return the features of one segment: depth and width ratios, (branches, n), and multiply-accumulates over the original segment's, (n,)."""
    return np.stack([SEGMENT_FEATURES[name](depths, widths, macs) for name in names], axis=1)


def option_features(options: SegmentOptions, names: Sequence[str]) -> Floats:
    """Return the features of every option of a segment in scaled copies."""
    segment = options.segment
    grid = options.scales_of()

    def ratios(of: str, whole: int) -> Floats:
        return np.stack([np.array([getattr(b, of) for b in c])[g] for c, g in zip(options.candidates, grid, strict=True)]) / whole

    return features(ratios("depth", segment.depth), ratios("width", segment.width), options.macs / segment.graph.macs, names)


def changed_segments(graph: OpGraph, design: BranchDesign, names: Sequence[str]) -> list[tuple[Segment, Floats]]:
    """Return every segment of a design that is not the original's, neither whole at full size nor exact parts of it, with its features."""
    result = []
    for part, segment, scaled in zip(design.segments, design_segments(graph, design), scaled_branches(graph, design), strict=True):
        join = join_of(part.join)
        same = all((b.depth, b.width, b.entry) == (segment.depth, segment.width, "none") for b in part.branches)
        if join.exact or (part.whole and same and not join.convolves):
            continue
        depths = np.array([[b.depth / segment.depth] for b in part.branches])
        widths = np.array([[b.width / segment.width] for b in part.branches])
        macs = np.array([sum(b.graph.macs for b in scaled) / segment.graph.macs])
        result.append((segment, features(depths, widths, macs, names)[0]))
    return result


SCHEMA = 1
#: Features of `AccuracyPredictor` for a branched segment, each zero for the original; depth enters through the multiply-accumulates.
FEATURES = ("log_macs", "log_mean_width", "log_widest")


class PredictedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted accuracy of a design, with the facts of its predictor."""

    top1: float | None = None  # Top-1 accuracy; None where agreement is predicted.
    agreement: float | None = None  # Share of images with the same best class as the original; None where top-1 is predicted.
    low: float | None = None  # Lower end of the 95 % interval; None where that is not known.
    high: float | None = None  # Upper end.
    #: Of predicted with measured numbers of networks that the predictor was not fitted to; None for too few.
    rank_correlation: float | None = None
    p_value: float | None = None  # How likely so large a correlation is by chance; None where that is not known.
    rmse: float | None = None  # Error of the predictor; None where that is not known.
    basis: Literal["supernet", "sensitivity"]  # ``supernet`` for subnets of one, ``sensitivity`` for segments replaced one by one.
    images: int | None = None  # Images that the predictor's numbers were measured on; None where that is not known.
    source: str = "predicted"  # Always ``predicted``.


class AccuracyPredictor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fitted predictor."""

    model: str  # Name of the network.
    base: float  # Accuracy of a design whose features are all zero.
    #: Per segment, one weight for each of `FEATURES`.
    weights: dict[str, Annotated[tuple[float, ...], msgspec.Meta(min_length=len(FEATURES), max_length=len(FEATURES))]]
    designs: int  # How many designs it was fitted to.
    rank_correlation: float  # Spearman's, between measured accuracies and those predicted for each design from all others.
    p_value: float  # Of that correlation.
    rmse: float  # Of the same predictions.
    schema: int = SCHEMA  # Of the file.

    option: ClassVar[str] = "min_accuracy"  # The planner's option that bounds its prediction.
    merges: ClassVar[bool] = False  # Whether it knows what merged stages lose: designs of a supernet share its stages.

    def value(self, loss: float) -> float:
        """Top-1 of a design of such a loss."""
        return self.base - loss

    def max_loss(self, value: float) -> float:
        """Return the largest loss at which a design has such a top-1."""
        return self.base - value

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Top-1 of a design of such a loss as plain data."""
        return PredictedAccuracy(
            top1=self.value(loss), rank_correlation=self.rank_correlation, p_value=self.p_value, rmse=self.rmse, basis="supernet"
        )

    def loss(self, graph: OpGraph, design: BranchDesign) -> float:
        """Return the loss of a design."""
        return -sum(float(np.dot(self._model_of(name), row)) for name, row in segment_features(graph, design).items())

    def losses(self, options: SegmentOptions) -> Floats:
        """Return the accuracy that each option costs; zero for a segment that stays whole or is split exactly."""
        if not options.branched or options.exact:
            return np.zeros(len(options.macs))
        result: Floats = -option_features(options, FEATURES) @ self._model_of(options.segment.name)
        return result

    def _model_of(self, segment: str) -> Floats:
        if segment not in self.weights:
            problem = f"the accuracy predictor of `{self.model}` does not know the segment `{segment}`, only {', '.join(self.weights)}"
            raise UsageError(problem, "plan with `merge=never` and the meeting points it was fitted with")
        return np.array(self.weights[segment])


def segment_features(graph: OpGraph, design: BranchDesign) -> dict[str, Floats]:
    """Return the features of every branched segment of a design, by name."""
    branched = {part.name for part in design.segments if not part.whole and not join_of(part.join).exact}
    return {segment.name: row for segment, row in changed_segments(graph, design, FEATURES) if segment.name in branched}


# Measured sensitivity: how much of a network's answers is lost where one of its segments is replaced, as a predictor of whole designs.
#
# Each way to run a segment has a *loss*. Losses add up over the segments of a design, and one curve makes of their sum the agreement with
# the original. Agreement itself does not add up, nor does the error of the scores where it is large. The quantity that multiplies nearly
# is the share of the original's scores that is kept, one less the squared error; the loss is its negative logarithm.
#
# A segment is measured alone, in the original. In a design all that is behind it is calibrated too and makes up for some of its error, so
# its loss counts the less the more stages follow.

#: Features that a segment's loss depends on, in addition to the segment's identity.
SEEN_FEATURES = ("log_macs", "log_mean_width", "log_widest", "log_mean_depth", "log_deepest", "log_largest", "log_branches")
#: 97.5 % quantile of the normal distribution.
NORMAL_QUANTILE_95 = 1.959963984540054

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Row = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=len(SEEN_FEATURES), max_length=len(SEEN_FEATURES))]


class ChangedSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A segment that took the place of the original's."""

    stages: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1000)]  # Stages of the network that it consists of, in order.
    features: _Row  # Features for the predictor, one number for each of `SEEN_FEATURES`.


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network with some of its segments changed, compared with the original on images held back."""

    segments: Annotated[tuple[ChangedSegment, ...], msgspec.Meta(min_length=1, max_length=1000)]  # Those that were changed.
    error: Annotated[float, msgspec.Meta(ge=0, le=1e30)]  # Squared error of the outputs over the original's square.
    agreement: _Share  # Share of the images with the same best class.


class MeasuredOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Subject, images and program of a measurement."""

    weights: str  # SHA-256 of the network's weights.
    images: Annotated[int, msgspec.Meta(ge=1)]  # Images that segments were calibrated on.
    held_back: Annotated[int, msgspec.Meta(ge=1)]  # Images that networks were compared on.
    pictures: str  # SHA-256 of all images as the network reads them.
    device: str  # Profile whose options were tried.
    processors: tuple[str, ...]  # Its processors that branches used.
    version: str  # Of nn-stretch.
    date: str  # When, ISO 8601.
    seconds: Annotated[float, msgspec.Meta(ge=0)]  # How long measuring took.
    complete: bool  # Whether the time was enough for all that was to be measured.


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage of the network."""

    name: str  # Its name.
    start: str  # Tensor that it reads.
    end: str  # Tensor that it writes.
    loss: _Number | None  # Contribution to the logarithm of a segment's loss; None for one that was part of no measurement.


class Sensitivity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A predictor of agreement, fitted to what was measured of one network.

    The logarithm of a segment's loss is `base`, the mean of its stages' parts, `length` times the
    logarithm of their number, its own part where it was measured, and `weights` times its features.
    The logit of agreement is `curve[0]` less `curve[1]` times the logarithm of all losses together.
    """

    model: str  # Name of the network.
    join: JoinKind  # How the branches met.
    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1, max_length=1000)]  # The network's stages, in order.
    base: _Number  # Of the logarithm of every loss.
    length: _Number  # For the logarithm of the number of stages.
    measured: dict[str, _Number] = msgspec.field(name="own")  # Of single segments, by the names of their stages joined by a space.
    weights: _Row  # For each of `SEEN_FEATURES`.
    range: tuple[_Number, _Number]  # Lowest and highest logarithm of a loss that was measured, widened; predictions stay within it.
    #: Reduction of the logarithm of a segment's loss in a design, times the share of stages behind it.
    recovery: Annotated[float, msgspec.Meta(ge=0, le=100)]
    curve: tuple[_Number, Annotated[float, msgspec.Meta(gt=0, le=1e6)]]  # From the logarithm of the loss to the logit of agreement.
    #: Standard deviation of the logit around the curve, of networks left out of the fit.
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    #: Spearman's, between measured agreement and that predicted for networks left out; None for too few.
    rank_correlation: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None
    blocks: dict[str, _Number] = {}  # Loss that a design gains without single blocks, by the tensors that they write.
    alone: tuple[Measured, ...]  # Networks with one segment changed, and calibrated alone.
    designs: tuple[Measured, ...]  # Networks with a whole design, calibrated as designs are.
    on: MeasuredOn  # Subject and images of the measurement.
    kind: Literal["sensitivity"] = "sensitivity"  # Of the file.
    schema: int = SCHEMA  # Of the file.
    option: ClassVar[str] = "min_agreement"
    merges: ClassVar[bool] = True

    def stages_of(self, start: str, end: str) -> tuple[str, ...] | None:
        """Return the stages between two tensors; None where these are not ends of stages."""
        first = next((i for i, stage in enumerate(self.stages) if stage.start == start), None)
        last = next((i for i, stage in enumerate(self.stages) if stage.end == end), None)
        if first is None or last is None or last < first:
            return None
        return tuple(stage.name for stage in self.stages[first : last + 1])

    def loss_of(self, stages: tuple[str, ...], rows: Floats) -> Floats:
        """Return the losses of options of the segment that some stages make, each alone in the original."""
        known = {stage.name: stage.loss for stage in self.stages}
        parts = [part for name in stages if (part := known[name]) is not None]
        of_stages = float(np.mean(parts)) if parts else 0.0
        value = self.measured.get(" ".join(stages), 0.0)
        logs = self.base + of_stages + self.length * np.log(len(stages)) + value + rows @ np.array(self.weights)
        losses: Floats = np.exp(np.clip(logs, *self.range))
        return losses

    def counts(self, stages: tuple[str, ...]) -> float:
        """Return the share of its single loss that a segment has in a design, where later segments make up for the rest."""
        last = next(i for i, stage in enumerate(self.stages) if stage.name == stages[-1])
        return float(np.exp(-self.recovery * (len(self.stages) - 1 - last) / len(self.stages)))

    def losses(self, options: SegmentOptions) -> Floats:
        """Return the loss that each option adds to a design; zero for a segment that stays whole or is split exactly."""
        if options.exact or not options.branched:
            dropped = () if options.exact else options.candidates[0][0].dropped
            return np.full(len(options.macs), self._loss_without(options.segment, dropped))
        self._check_join(options.join)
        stages = self._stages(options.segment)
        return self.counts(stages) * self.loss_of(stages, option_features(options, SEEN_FEATURES))

    def loss(self, graph: OpGraph, design: BranchDesign) -> float:
        """Return the loss of a design."""
        for part in design.segments:
            if not part.whole and not join_of(part.join).exact:
                self._check_join(part.join)
        without = {
            part.name: self._loss_without(s, part.missing)
            for part, s in zip(design.segments, design_segments(graph, design), strict=True)
            if part.missing and (self.blocks or self.stages_of(s.start, s.end) is None)
        }
        changed = [(self._stages(s), row) for s, row in changed_segments(graph, design, SEEN_FEATURES) if s.name not in without]
        return sum(self.counts(stages) * float(self.loss_of(stages, row[None])[0]) for stages, row in changed) + sum(without.values())

    def _loss_without(self, segment: Segment, blocks: Sequence[int]) -> float:
        """Return the loss that a design gains without some blocks of a segment; for one that was not measured, the largest of all."""
        return sum(self.blocks.get(segment.blocks[n].end, float(np.exp(self.range[1]))) for n in blocks)

    def value(self, loss: float) -> float:
        """Return the agreement of a design of such a loss; 1 where nothing is lost."""
        return 1.0 if loss <= 0 else float(1 / (1 + np.exp(-self._logit(loss))))

    def max_loss(self, value: float) -> float:
        """Return the largest loss at which a design agrees so often; below zero where none does."""
        if value >= 1:
            return 0.0
        if value <= 0:
            return float("inf")
        return float(np.exp((self.curve[0] - np.log(value / (1 - value))) / self.curve[1]))

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Return the agreement of a design of such a loss as plain data, with its 95 % interval; certain where nothing is lost."""
        half = 0.0 if loss <= 0 else NORMAL_QUANTILE_95 * self.spread
        low, high = (float(1 / (1 + np.exp(-(self._logit(loss) + side)))) if loss > 0 else 1.0 for side in (-half, half))
        rank, images = self.rank_correlation, self.on.held_back
        return PredictedAccuracy(agreement=self.value(loss), low=low, high=high, rank_correlation=rank, basis="sensitivity", images=images)

    def _logit(self, loss: float) -> float:
        return float(np.clip(self.curve[0] - self.curve[1] * np.log(loss), -50, 50))

    def _check_join(self, join: JoinKind) -> None:
        if join != self.join:
            problem = f"the sensitivity of `{self.model}` was measured with `{self.join}` joins, which says nothing of `{join}`"
            raise UsageError(problem, f"plan with `join={self.join}`")

    def _stages(self, segment: Segment) -> tuple[str, ...]:
        stages = self.stages_of(segment.start, segment.end)
        if stages is None:
            raise UsageError(
                f"the sensitivity of `{self.model}` was measured for segments that begin and end where its stages do, "
                f"and `{segment.name}` ends at `{segment.end}`",
                "leave out `meet`, or measure it with these meeting points",
            )
        return stages


#: Source of a design's accuracy without building it.
AccuracySource = AccuracyPredictor | Sensitivity

# Files of accuracy predictors, of either kind.

#: Larger files are not ours.
MAX_BYTES = 1 << 22

_HINT = "give the accuracy.json that `stretch export --rank` or the sensitivity.json that `stretch search --images` wrote"


class _Kind(msgspec.Struct):
    """Statements of every file about itself."""

    kind: str = "supernet"
    schema: int = 1


def save_accuracy(path: Path, predictor: AccuracySource) -> None:
    """Write a predictor as JSON, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StretchError(f"cannot write {path}: {error.strerror}") from error
    write_whole(path, msgspec.json.format(msgspec.json.encode(predictor), indent=1) + b"\n", "accuracy predictor")


def load_accuracy(path: Path, model: str) -> AccuracySource:
    """Read a predictor."""
    content = read_bytes(path, "accuracy predictor", MAX_BYTES, _HINT)
    try:
        kind = msgspec.json.decode(content, type=_Kind)
        known = {"supernet": AccuracyPredictor, "sensitivity": Sensitivity}
        if kind.kind not in known:
            raise StretchError(f"{path} is no accuracy predictor: it says that it is a `{kind.kind}`", _HINT)
        if kind.schema != SCHEMA:
            raise StretchError(f"{path} has schema {kind.schema}, this nn-stretch reads {SCHEMA}", "make it again")
        decoded: AccuracySource = msgspec.json.decode(content, type=known[kind.kind])
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is no accuracy predictor: {error}", _HINT) from error
    if decoded.model != model:
        raise StretchError(f"{path} is about `{decoded.model}`, not `{model}`", "make one for this network")
    weights = [decoded.base, *(w for row in decoded.weights.values() for w in row)] if isinstance(decoded, AccuracyPredictor) else []
    if not np.isfinite(weights).all():
        raise StretchError(f"{path} has weights that are no numbers", "fit it again with `stretch export --rank`")
    return decoded
