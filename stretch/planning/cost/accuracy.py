"""Predicted accuracy of a design, from any source.

A source assigns a loss to every option of a segment. Losses add up over the segments of a design, as latency does. The source converts
their sum to top-1 or to agreement with the original: `AccuracyPredictor`, fitted by `stretch.train.rank` to subnets of
a trained supernet, or `Sensitivity`, fitted by `stretch.evaluation.sensitivity` to measured losses of the original on images.
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

# Features of changed segments for accuracy predictors; all are zero for the original segment.

#: Each is a function of the branches' depth and width ratios, (branches, n), and the segment's multiply-accumulates over the original's, (n,).
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
    """Return the features of a segment, (n, names), from depth and width ratios, (branches, n), and multiply-accumulates over the original's, (n,)."""
    return np.stack([SEGMENT_FEATURES[name](depths, widths, macs) for name in names], axis=1)


def option_features(options: SegmentOptions, names: Sequence[str]) -> Floats:
    """Return the features of every option of a segment in scaled copies."""
    segment = options.segment
    grid = options.scales_of()

    def ratios(of: str, whole: int) -> Floats:
        return np.stack([np.array([getattr(b, of) for b in c])[g] for c, g in zip(options.candidates, grid, strict=True)]) / whole

    return features(ratios("depth", segment.depth), ratios("width", segment.width), options.macs / segment.graph.macs, names)


def changed_segments(graph: OpGraph, design: BranchDesign, names: Sequence[str]) -> list[tuple[Segment, Floats]]:
    """Return every segment of a design that does not compute the original's output (neither unchanged nor exactly divided), with its features."""
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
#: Features of `AccuracyPredictor` for a branched segment, zero for the original; depth only counts through the multiply-accumulates.
FEATURES = ("log_macs", "log_mean_width", "log_widest")


class PredictedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted accuracy of a design, with the facts of its predictor."""

    top1: float | None = None  # Top-1 accuracy; None if agreement is predicted.
    agreement: float | None = None  # Share of images with the same best class as the original; None if top-1 is predicted.
    low: float | None = None  # Lower end of the 95 % interval; None if unknown.
    high: float | None = None  # Upper end.
    #: Rank correlation of predicted with measured values for networks outside the fit; None for too few.
    rank_correlation: float | None = None
    p_value: float | None = None  # Probability of at least this correlation by chance; None if unknown.
    rmse: float | None = None  # Root mean square error of the predictor; None if unknown.
    basis: Literal["supernet", "sensitivity"]  # Fitted to subnets of a ``supernet``, or to segments replaced one by one (``sensitivity``).
    images: int | None = None  # Number of images behind the predictor; None if unknown.
    source: str = "predicted"  # Always ``predicted``.


class AccuracyPredictor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fitted predictor of top-1 accuracy."""

    model: str  # Name of the network.
    base: float  # Accuracy of a design whose features are all zero.
    #: One weight for each of `FEATURES`, by segment.
    weights: dict[str, Annotated[tuple[float, ...], msgspec.Meta(min_length=len(FEATURES), max_length=len(FEATURES))]]
    designs: int  # Number of designs in the fit.
    rank_correlation: float  # Spearman's, between measured accuracies and leave-one-out predictions.
    p_value: float  # P-value of this correlation.
    rmse: float  # Root mean square error of these predictions.
    schema: int = SCHEMA  # Of the file.

    option: ClassVar[str] = "min_accuracy"  # The planner's option that bounds its prediction.
    merges: ClassVar[bool] = False  # Whether it predicts the loss of merged stages, which designs of a supernet do not have.

    def value(self, loss: float) -> float:
        """Return the top-1 accuracy of a design with this loss."""
        return self.base - loss

    def max_loss(self, value: float) -> float:
        """Return the maximum loss at which a design reaches this top-1 accuracy."""
        return self.base - value

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Return the prediction for a design with this loss as a record."""
        return PredictedAccuracy(
            top1=self.value(loss), rank_correlation=self.rank_correlation, p_value=self.p_value, rmse=self.rmse, basis="supernet"
        )

    def loss(self, graph: OpGraph, design: BranchDesign) -> float:
        """Return the loss of a design."""
        return -sum(float(np.dot(self._model_of(name), row)) for name, row in segment_features(graph, design).items())

    def losses(self, options: SegmentOptions) -> Floats:
        """Return the loss of each option; zero for a segment that stays whole or is divided exactly."""
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
    """Return the features of every stretched segment of a design, by name."""
    branched = {part.name for part in design.segments if not part.whole and not join_of(part.join).exact}
    return {segment.name: row for segment, row in changed_segments(graph, design, FEATURES) if segment.name in branched}


# Measured sensitivity: the loss of agreement if one segment of a network is replaced, as a predictor for whole designs.
#
# Each option of a segment has a *loss*. Losses add up over the segments of a design, and a curve converts their sum to the agreement with
# the original. Agreement does not add up, nor does the error of the scores if it is large. But the share of the original's scores that
# is kept, one minus the squared error, nearly multiplies; the loss is its negative logarithm.
#
# A segment is measured alone, in the original. In a design, all later segments are calibrated too and compensate for some of its error, so
# its loss counts less if more stages follow.

#: Features that a segment's loss depends on, in addition to the segment's identity.
SEEN_FEATURES = ("log_macs", "log_mean_width", "log_widest", "log_mean_depth", "log_deepest", "log_largest", "log_branches")
#: 97.5 % quantile of the normal distribution.
NORMAL_QUANTILE_95 = 1.959963984540054

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Row = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=len(SEEN_FEATURES), max_length=len(SEEN_FEATURES))]


class ChangedSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A segment that replaced the original's."""

    stages: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1000)]  # Names of its stages, in order.
    features: _Row  # One number for each of `SEEN_FEATURES`.


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network with some of its segments changed, compared with the original on images held back."""

    segments: Annotated[tuple[ChangedSegment, ...], msgspec.Meta(min_length=1, max_length=1000)]  # Changed segments.
    error: Annotated[float, msgspec.Meta(ge=0, le=1e30)]  # Squared error of the outputs over the squared outputs of the original.
    agreement: _Share  # Share of the images with the same best class.


class MeasuredOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Subject, images and program of a measurement."""

    weights: str  # SHA-256 of the network's weights.
    images: Annotated[int, msgspec.Meta(ge=1)]  # Number of images for the calibration of segments.
    held_back: Annotated[int, msgspec.Meta(ge=1)]  # Number of images for the comparison of networks.
    pictures: str  # SHA-256 of all images after preprocessing.
    device: str  # Profile that the tried options were planned for.
    processors: tuple[str, ...]  # Processors of branches.
    version: str  # Version of nn-stretch.
    date: str  # Date of the measurement, ISO 8601.
    seconds: Annotated[float, msgspec.Meta(ge=0)]  # Duration of the measurement.
    complete: bool  # Whether the time budget sufficed for all planned measurements.


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage of the network."""

    name: str  # Name of the stage.
    start: str  # Name of the input tensor.
    end: str  # Name of the output tensor.
    loss: _Number | None  # Contribution to the logarithm of a segment's loss; None for a stage without measurements.


class Sensitivity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A predictor of agreement, fitted to measurements of one network.

    The logarithm of a segment's loss is the sum of `base`, the mean of its stages' contributions, `length` times the
    logarithm of their number, its own contribution if it was measured, and `weights` times its features.
    The logit of agreement is `curve[0]` minus `curve[1]` times the logarithm of the sum of all losses.
    """

    model: str  # Name of the network.
    join: JoinKind  # Join of the measured branches.
    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1, max_length=1000)]  # The network's stages, in order.
    base: _Number  # Constant in the logarithm of every loss.
    length: _Number  # Coefficient of the logarithm of the number of stages.
    measured: dict[str, _Number] = msgspec.field(name="own")  # Contribution of each measured segment, by its stages' names.
    weights: _Row  # Coefficient of each of `SEEN_FEATURES`.
    range: tuple[_Number, _Number]  # Lowest and highest logarithm of a measured loss, widened; predictions are clipped to it.
    #: Reduction of the logarithm of a segment's loss in a design, per share of stages after it.
    recovery: Annotated[float, msgspec.Meta(ge=0, le=100)]
    curve: tuple[_Number, Annotated[float, msgspec.Meta(gt=0, le=1e6)]]  # From the logarithm of the loss to the logit of agreement.
    #: Standard deviation of the logit around the curve, for networks left out of the fit.
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    #: Spearman's rank correlation of measured with predicted agreement for networks left out of the fit; None for too few.
    rank_correlation: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None
    blocks: dict[str, _Number] = {}  # Additional loss of a design without a single block, by the block's output tensor.
    alone: tuple[Measured, ...]  # Networks with one segment changed, and calibrated alone.
    designs: tuple[Measured, ...]  # Networks with a whole design, calibrated as designs are.
    on: MeasuredOn  # Subject and images of the measurement.
    kind: Literal["sensitivity"] = "sensitivity"  # Kind of the file.
    schema: int = SCHEMA  # Of the file.
    option: ClassVar[str] = "min_agreement"
    merges: ClassVar[bool] = True

    def stages_of(self, start: str, end: str) -> tuple[str, ...] | None:
        """Return the names of the stages between two tensors; None if these are not ends of stages."""
        first = next((i for i, stage in enumerate(self.stages) if stage.start == start), None)
        last = next((i for i, stage in enumerate(self.stages) if stage.end == end), None)
        if first is None or last is None or last < first:
            return None
        return tuple(stage.name for stage in self.stages[first : last + 1])

    def loss_of(self, stages: tuple[str, ...], rows: Floats) -> Floats:
        """Return the losses of options of the segment of some stages, each as the only change to the original; `rows` are features."""
        known = {stage.name: stage.loss for stage in self.stages}
        parts = [part for name in stages if (part := known[name]) is not None]
        of_stages = float(np.mean(parts)) if parts else 0.0
        value = self.measured.get(" ".join(stages), 0.0)
        logs = self.base + of_stages + self.length * np.log(len(stages)) + value + rows @ np.array(self.weights)
        losses: Floats = np.exp(np.clip(logs, *self.range))
        return losses

    def counts(self, stages: tuple[str, ...]) -> float:
        """Return the share of a segment's loss that counts in a design, where later segments compensate for the remainder."""
        last = next(i for i, stage in enumerate(self.stages) if stage.name == stages[-1])
        return float(np.exp(-self.recovery * (len(self.stages) - 1 - last) / len(self.stages)))

    def losses(self, options: SegmentOptions) -> Floats:
        """Return the loss that each option adds to a design; zero for a segment that stays whole or is divided exactly."""
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
        """Return the additional loss of a design without some blocks of a segment; unmeasured blocks count with the largest loss."""
        return sum(self.blocks.get(segment.blocks[n].end, float(np.exp(self.range[1]))) for n in blocks)

    def value(self, loss: float) -> float:
        """Return the agreement of a design with this loss; 1 without loss."""
        return 1.0 if loss <= 0 else float(1 / (1 + np.exp(-self._logit(loss))))

    def max_loss(self, value: float) -> float:
        """Return the maximum loss at which a design reaches this agreement."""
        if value >= 1:
            return 0.0
        if value <= 0:
            return float("inf")
        return float(np.exp((self.curve[0] - np.log(value / (1 - value))) / self.curve[1]))

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Return the prediction for a design with this loss as a record, with its 95 % interval; without loss both ends are 1."""
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


#: Predictor of a design's accuracy.
AccuracySource = AccuracyPredictor | Sensitivity

# Files of accuracy predictors, of either kind.

#: Maximum size of a predictor file, bytes.
MAX_BYTES = 1 << 22

_HINT = "give the accuracy.json that `stretch export --rank` or the sensitivity.json that `stretch search --images` wrote"


class _Kind(msgspec.Struct):
    """Header of every predictor file."""

    kind: str = "supernet"
    schema: int = 1


def save_accuracy(path: Path, predictor: AccuracySource) -> None:
    """Write a predictor as JSON, atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StretchError(f"cannot write {path}: {error.strerror}") from error
    write_whole(path, msgspec.json.format(msgspec.json.encode(predictor), indent=1) + b"\n", "accuracy predictor")


def load_accuracy(path: Path, model: str) -> AccuracySource:
    """Read the accuracy predictor of a model; refuse malformed files and predictors for other models."""
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
