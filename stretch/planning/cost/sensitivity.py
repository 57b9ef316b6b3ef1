"""Measured sensitivity: how much of a network's answers is lost where one of its segments is replaced, as a predictor of whole designs.

Each way to run a segment has a *loss*. Losses add up over the segments of a design, and one
curve makes of their sum the agreement with the original. Agreement itself does not add up,
nor does the error of the scores where it is large. What multiplies nearly is the share of the
original's scores that is kept, one less the squared error; the loss is its negative logarithm.

A segment is measured alone, in the original. In a design all that is behind it is calibrated
too and makes up for some of its error, so its loss counts the less the more stages follow.

`stretch.sensitivity` measures, `stretch.planning.cost.sensitivity_fit` fits; this file needs neither.
"""

from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import UsageError
from predictors.graph import OpGraph
from predictors.joins import JoinKind, join_of
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.features import changed_segments, way_features
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import Segment
from stretch.planning.sentences import Mention, Sentence

Floats = NDArray[np.float64]

SCHEMA = 1
#: What a segment's loss depends on, beside which segment it is.
SEEN = ("log_macs", "log_mean_width", "log_widest", "log_mean_depth", "log_deepest", "log_largest", "log_branches")
#: Of these, what only helps: its weight is zero or below.
HELPS = ("log_macs", "log_mean_width", "log_widest", "log_mean_depth", "log_deepest", "log_largest")
#: Errors are taken to lie between these: beyond the first the loss would have no end, what is below the second is rounding.
MOST_ERROR, LEAST_ERROR = 0.98, 1e-6
#: 97.5 % quantile of the normal distribution.
Z = 1.959963984540054

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Row = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=len(SEEN), max_length=len(SEEN))]


class ChangedSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A segment that took the place of the original's."""

    stages: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1000)]  # Stages of the network that it consists of, in order.
    features: _Row  # What the predictor sees of it, one number for each of `SEEN`.


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network with some of its segments changed, beside the original on images held back."""

    segments: Annotated[tuple[ChangedSegment, ...], msgspec.Meta(min_length=1, max_length=1000)]  # Those that were changed.
    error: Annotated[float, msgspec.Meta(ge=0, le=1e30)]  # Squared error of the outputs over the original's square.
    agreement: _Share  # Share of the images with the same best class.


class MeasuredOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured, on what and by what."""

    weights: str  # SHA-256 of the network's weights.
    images: Annotated[int, msgspec.Meta(ge=1)]  # Images that segments were calibrated on.
    held_back: Annotated[int, msgspec.Meta(ge=1)]  # Images that networks were compared on.
    pictures: str  # SHA-256 of all images as the network reads them.
    device: str  # Profile whose ways were tried.
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
    loss: _Number | None  # What the logarithm of a segment's loss has of it; None for one that was part of nothing measured.


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
    own: dict[str, _Number]  # Of single segments, by the names of their stages joined by a space.
    weights: _Row  # For each of `SEEN`.
    range: tuple[_Number, _Number]  # Lowest and highest logarithm of a loss that was measured, widened; predictions stay within it.
    #: What is taken off the logarithm of a segment's loss in a design, times the share of stages behind it.
    recovery: Annotated[float, msgspec.Meta(ge=0, le=100)]
    curve: tuple[_Number, Annotated[float, msgspec.Meta(gt=0, le=1e6)]]  # From the logarithm of the loss to the logit of agreement.
    #: Standard deviation of the logit around the curve, of networks left out of the fit.
    spread: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    #: Spearman's, between measured agreement and that predicted for networks left out; None for too few.
    rank_correlation: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None
    alone: tuple[Measured, ...]  # Networks with one segment changed, and calibrated alone.
    designs: tuple[Measured, ...]  # Networks with a whole design, calibrated as designs are.
    on: MeasuredOn  # What was measured, on what.
    kind: Literal["sensitivity"] = "sensitivity"  # Of the file.
    schema: int = SCHEMA  # Of the file.

    def stages_of(self, start: str, end: str) -> tuple[str, ...] | None:
        """The stages between two tensors; None where these are not ends of stages."""
        first = next((i for i, stage in enumerate(self.stages) if stage.start == start), None)
        last = next((i for i, stage in enumerate(self.stages) if stage.end == end), None)
        if first is None or last is None or last < first:
            return None
        return tuple(stage.name for stage in self.stages[first : last + 1])

    def loss_of(self, stages: tuple[str, ...], rows: Floats) -> Floats:
        """Losses of ways to run the segment that some stages make, alone in the original."""
        known = {stage.name: stage.loss for stage in self.stages}
        parts = [part for name in stages if (part := known[name]) is not None]
        of_stages = float(np.mean(parts)) if parts else 0.0
        value = self.own.get(" ".join(stages), 0.0)
        logs = self.base + of_stages + self.length * np.log(len(stages)) + value + rows @ np.array(self.weights)
        exp: Floats = np.exp(np.clip(logs, *self.range))
        return exp

    def counts(self, stages: tuple[str, ...]) -> float:
        """What share of its loss alone the segment of some stages has in a design, where what is behind it makes up for the rest."""
        last = next(i for i, stage in enumerate(self.stages) if stage.name == stages[-1])
        return float(np.exp(-self.recovery * (len(self.stages) - 1 - last) / len(self.stages)))

    def losses(self, options: Ways) -> Floats:
        """What each option adds to the loss of a design; zero for a segment that stays whole or is divided exactly."""
        if not options.branched or options.exact:
            return np.zeros(len(options.macs))
        self._check_join(options.join)
        stages = self._stages(options.segment)
        return self.counts(stages) * self.loss_of(stages, way_features(options, SEEN))

    def loss(self, graph: OpGraph, design: BranchDesign) -> float:
        """The loss of a design."""
        for part in design.segments:
            if not part.whole and not join_of(part.join).exact:
                self._check_join(part.join)
        changed = [(self._stages(segment), row) for segment, row in changed_segments(graph, design, SEEN)]
        return sum(self.counts(stages) * float(self.loss_of(stages, row[None])[0]) for stages, row in changed)

    @property
    def option(self) -> str:
        """The planner's option that bounds what it predicts."""
        return "min_agreement"

    @property
    def merges(self) -> bool:
        """Whether it knows what merged stages lose."""
        return True

    def value(self, loss: float) -> float:
        """Agreement of a design of such a loss; 1 where nothing is lost."""
        return 1.0 if loss <= 0 else float(1 / (1 + np.exp(-self._logit(loss))))

    def most_loss(self, value: float) -> float:
        """The largest loss at which a design agrees so often; below zero where none does."""
        if value >= 1:
            return 0.0
        if value <= 0:
            return float("inf")
        return float(np.exp((self.curve[0] - np.log(value / (1 - value))) / self.curve[1]))

    def answer(self, graph: OpGraph, design: BranchDesign) -> PredictedAccuracy:
        """Agreement of a design as plain data, with its 95 % interval."""
        return self.prediction(self.loss(graph, design))

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Agreement of a design of such a loss as plain data; certain where nothing is lost."""
        half = 0.0 if loss <= 0 else Z * self.spread
        low, high = (float(1 / (1 + np.exp(-(self._logit(loss) + side)))) if loss > 0 else 1.0 for side in (-half, half))
        return PredictedAccuracy(
            agreement=self.value(loss),
            low=low,
            high=high,
            rank_correlation=self.rank_correlation,
            basis="sensitivity",
            images=self.on.held_back,
        )

    def _logit(self, loss: float) -> float:
        return float(np.clip(self.curve[0] - self.curve[1] * np.log(loss), -50, 50))

    def _check_join(self, join: JoinKind) -> None:
        if join != self.join:
            raise UsageError(
                f"the sensitivity of `{self.model}` was measured with `{self.join}` joins, which says nothing of `{join}`",
                Sentence("plan with {}", Mention("join", self.join)),
            )

    def _stages(self, segment: Segment) -> tuple[str, ...]:
        stages = self.stages_of(segment.start, segment.end)
        if stages is None:
            raise UsageError(
                f"the sensitivity of `{self.model}` was measured for segments that begin and end where its stages do, "
                f"and `{segment.name}` ends at `{segment.end}`",
                Sentence("leave out {}, or measure it with these meeting points", Mention("meet")),
            )
        return stages
