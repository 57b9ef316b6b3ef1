"""Predicted accuracy of a design, whatever it is predicted from.

A source gives every way to run a segment a loss. Losses add up over the segments of a design,
as latency does, so that the exact search can weigh the two; what they say of a whole design,
in top-1 or in agreement with the original, is the source's to tell. There are two:
`AccuracyPredictor`, fitted by `stretch.train.rank` to subnets of a trained supernet, and
`stretch.planning.cost.sensitivity.Sensitivity`, fitted to what the original itself loses on images.
"""

from typing import Annotated, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import UsageError
from predictors.graph import OpGraph
from predictors.joins import join_of
from stretch.planning.cost.features import changed_segments, way_features
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.sentences import Mention, Sentence

Floats = NDArray[np.float64]

SCHEMA = 1
#: What `AccuracyPredictor` sees of a branched segment, each zero for the original; depth enters through the multiply-accumulates.
FEATURES = ("log_macs", "log_mean_width", "log_widest")


class PredictedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted accuracy of a design, with what is known of the predictor."""

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


class AccuracySource(Protocol):
    """What tells how accurate a design is without building it."""

    @property
    def model(self) -> str:
        """Name of the network."""
        ...

    @property
    def option(self) -> str:
        """The planner's option that bounds what it predicts."""
        ...

    @property
    def merges(self) -> bool:
        """Whether it knows what merged stages lose."""
        ...

    def losses(self, options: Ways) -> Floats:
        """What each option of a segment adds to the loss of a design, (n,)."""
        ...

    def value(self, loss: float) -> float:
        """Accuracy of a design of such a loss."""
        ...

    def most_loss(self, value: float) -> float:
        """The largest loss at which a design is that accurate."""
        ...

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Accuracy of a design of such a loss as plain data."""
        ...

    def answer(self, graph: OpGraph, design: BranchDesign) -> PredictedAccuracy:
        """Accuracy of a design as plain data."""
        ...


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

    @property
    def option(self) -> str:
        """The planner's option that bounds what it predicts."""
        return "min_accuracy"

    @property
    def merges(self) -> bool:
        """Whether it knows what merged stages lose: designs of a supernet share its stages."""
        return False

    def value(self, loss: float) -> float:
        """Top-1 of a design of such a loss."""
        return self.base - loss

    def most_loss(self, value: float) -> float:
        """The largest loss at which a design has such a top-1."""
        return self.base - value

    def prediction(self, loss: float) -> PredictedAccuracy:
        """Top-1 of a design of such a loss as plain data."""
        return PredictedAccuracy(
            top1=self.value(loss), rank_correlation=self.rank_correlation, p_value=self.p_value, rmse=self.rmse, basis="supernet"
        )

    def answer(self, graph: OpGraph, design: BranchDesign) -> PredictedAccuracy:
        """Top-1 of a design as plain data."""
        return self.prediction(self.base - self.predict(graph, design))

    def predict(self, graph: OpGraph, design: BranchDesign) -> float:
        """Top-1 of a design."""
        rows = segment_features(graph, design)
        return self.base + sum(float(np.dot(self._of(name), row)) for name, row in rows.items())

    def losses(self, options: Ways) -> Floats:
        """What each option takes from the accuracy; zero for a segment that stays whole or is divided exactly."""
        if not options.branched or options.exact:
            return np.zeros(len(options.macs))
        result: Floats = -way_features(options, FEATURES) @ self._of(options.segment.name)
        return result

    def _of(self, segment: str) -> Floats:
        if segment not in self.weights:
            raise UsageError(
                f"the accuracy predictor of `{self.model}` does not know the segment `{segment}`, only {', '.join(self.weights)}",
                Sentence("plan with {} and the meeting points it was fitted with", Mention("merge", "never")),
            )
        return np.array(self.weights[segment])


def segment_features(graph: OpGraph, design: BranchDesign) -> dict[str, Floats]:
    """The features of every branched segment of a design, by name."""
    branched = {part.name for part in design.segments if not part.whole and not join_of(part.join).exact}
    return {segment.name: row for segment, row in changed_segments(graph, design, FEATURES) if segment.name in branched}
