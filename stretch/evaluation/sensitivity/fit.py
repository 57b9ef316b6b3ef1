"""Fit a `Sensitivity` to measurements: losses by ridge regression, agreement by one curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.joins import JoinKind
from stretch.planning.cost.accuracy import SEEN_FEATURES, ChangedSegment, Measured, MeasuredOn, Sensitivity, Stage
from stretch.planning.cost.branch import Floats
from stretch.planning.network.segments import Segment

#: Features that can only reduce a loss, so that their weights are zero or below.
HELPS = ("log_macs", "log_mean_width", "log_widest", "log_mean_depth", "log_deepest", "log_largest")
#: Bounds of errors: above the first the loss would become infinite, below the second is rounding.
MOST_ERROR, LEAST_ERROR = 0.98, 1e-6

#: Candidates for the weight of the ridge penalty, on columns of unit spread.
PENALTIES = np.logspace(-2, 2, 9)
#: Size of the column of a segment's own part: below 1, so that it only explains the remainder after stages and features.
MIN_OWN_SHARE = 0.25
#: Exponential rate at which later stages reduce a loss, from the networks of `experiments/sensitivity`.
RECOVERY = 1.25
#: Number of whole designs from which the curve is fitted to them alone.
ENOUGH = 5
#: Maximum distance of predictions from measured losses, as a logarithm.
BEYOND = 1.0
#: Minimum slope of the curve: more loss means less agreement.
FLATTEST = 0.05


def loss(error: float) -> float:
    """Return a network's loss for a squared error: the negative logarithm of the preserved share of the original's scores."""
    return -float(np.log1p(-min(max(error, LEAST_ERROR), MOST_ERROR)))


def fit(
    model: str,
    join: JoinKind,
    stages: Sequence[Segment],
    alone: Sequence[Measured],
    designs: Sequence[Measured],
    on: MeasuredOn,
    blocks: Mapping[str, Measured] = MappingProxyType({}),
) -> Sensitivity:
    """Fit the predictor to the measurements.

    Args:
        stages: Stages of the network, in order.
        alone: Measured networks with one changed segment, at least one.
        blocks: Measured networks without one block, by the block's output tensor.
    """
    names = [stage.name for stage in stages]
    table = _Table(names, [item.segments[0] for item in alone])
    y = np.log([loss(item.error) for item in alone])
    penalty, held_out = _penalty(table.columns, y, table.nonpositive_columns)
    base, weights = _ridge(table.columns, y, penalty, table.nonpositive_columns)
    of_stages, length, of_segments, of_features = table.parts(weights)
    low, high = float(y.min()) - BEYOND, float(y.max()) + BEYOND
    sensitivity = Sensitivity(
        model=model,
        join=join,
        stages=tuple(Stage(name=s.name, start=s.start, end=s.end, loss=of_stages.get(s.name)) for s in stages),
        base=base,
        length=length,
        measured=of_segments,
        weights=of_features,
        range=(low, high),
        recovery=RECOVERY,
        curve=(0.0, 1.0),
        spread=0.0,
        rank_correlation=None,
        alone=tuple(alone),
        designs=tuple(designs),
        on=on,
    )
    without = {end: sensitivity.counts(item.segments[0].stages) * loss(item.error) for end, item in blocks.items()}
    if len(designs) >= ENOUGH:
        points, logs = list(designs), np.log([loss_of_design(sensitivity, design.segments) for design in designs])
    else:
        points, logs = list(alone), held_out
    points += blocks.values()
    logs = np.append(logs, [np.log(loss(item.error)) for item in blocks.values()])
    shares = np.array([point.agreement for point in points])
    curve = _curve(logs, shares, on.held_back)
    wrong = logit(shares, on.held_back) - (curve[0] - curve[1] * logs)
    spread = float(np.sqrt(np.square(wrong).sum() / max(1, len(wrong) - 2)))
    return msgspec.structs.replace(sensitivity, curve=curve, blocks=without, spread=spread, rank_correlation=spearman(shares, -logs))


def loss_of_design(predictor: Sensitivity, segments: Sequence[ChangedSegment]) -> float:
    """Return a predictor's loss for a design of these segments."""
    return sum(
        predictor.counts(segment.stages) * float(predictor.loss_of(segment.stages, np.array([segment.features]))[0]) for segment in segments
    )


@dataclass(frozen=True)
class _Table:
    """Features for the regression of losses."""

    names: Sequence[str]  # Names of all stages.
    segments: Sequence[ChangedSegment]  # Changed segment of each measurement.

    @property
    def _feature_names(self) -> list[str]:
        return [name for name in self.names if any(name in segment.stages for segment in self.segments)]

    @property
    def _runs(self) -> list[str]:
        return list(dict.fromkeys(" ".join(segment.stages) for segment in self.segments))

    @property
    def _scales(self) -> Floats:
        """Scale of each feature; infinity for a constant feature, which gets no weight."""
        spread = np.array([segment.features for segment in self.segments]).std(0)
        return np.where(spread > 1e-9, spread, np.inf)

    @property
    def columns(self) -> Floats:
        """Matrix of the regression, (measurements, length + stages + segments + features)."""
        length = np.log([[len(segment.stages)] for segment in self.segments])
        stages = np.array([[(name in segment.stages) / len(segment.stages) for name in self._feature_names] for segment in self.segments])
        values = MIN_OWN_SHARE * np.array([[" ".join(segment.stages) == run for run in self._runs] for segment in self.segments], float)
        return np.hstack([length, stages, values, np.array([segment.features for segment in self.segments]) / self._scales])

    @property
    def nonpositive_columns(self) -> NDArray[np.bool_]:
        """Mask of the columns whose weight must not be positive."""
        others = np.zeros(1 + len(self._feature_names) + len(self._runs), bool)
        return np.concatenate([others, np.array([name in HELPS for name in SEEN_FEATURES])])

    def parts(self, weights: Floats) -> tuple[dict[str, float], float, dict[str, float], tuple[float, ...]]:
        """Return the weights of stages, of the length, of segments and of features."""
        stages, runs = len(self._feature_names), len(self._runs)
        current = dict(zip(self._runs, (float(w) * MIN_OWN_SHARE for w in weights[1 + stages : 1 + stages + runs]), strict=True))
        of_stages = dict(zip(self._feature_names, map(float, weights[1 : 1 + stages]), strict=True))
        return of_stages, float(weights[0]), current, tuple(float(w) for w in weights[1 + stages + runs :] / self._scales)


def _ridge(x: Floats, y: Floats, penalty: float, bounded: NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return the intercept and the weights; bounded weights that would be positive are zero."""
    mean = x.mean(0)
    z, wrong = x - mean, y - y.mean()
    free = np.ones(x.shape[1], bool)
    while True:
        columns = z[:, free]
        weights = np.zeros(x.shape[1])
        weights[free] = np.linalg.solve(columns.T @ columns + penalty * np.eye(columns.shape[1]), columns.T @ wrong)
        positive = bounded & (weights > 0)
        if not positive.any():
            return float(y.mean() - mean @ weights), weights
        free &= ~positive


def _penalty(x: Floats, y: Floats, bounded: NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return the penalty with the best leave-one-out predictions, and these predictions."""
    if len(y) < 2:
        return float(PENALTIES[-1]), y.copy()
    best: tuple[float, float, Floats] | None = None
    for penalty in PENALTIES:
        values = np.zeros(len(y))
        for i in range(len(y)):
            rest = np.arange(len(y)) != i
            base, weights = _ridge(x[rest], y[rest], float(penalty), bounded)
            values[i] = base + x[i] @ weights
        error = float(np.square(values - y).mean())
        if best is None or error < best[0]:
            best = error, float(penalty), values
    assert best is not None
    return best[1], best[2]


def logit(shares: Floats, images: int) -> Floats:
    """Return the logarithm of the odds; half an image is added to both counts, so that it stays finite."""
    log: Floats = np.log((shares * images + 0.5) / ((1 - shares) * images + 0.5))
    return log


def _curve(logs: Floats, shares: Floats, images: int) -> tuple[float, float]:
    """Return intercept and slope of the logistic regression of agreement on the logarithm of the loss, with a weak prior slope of 1."""
    intercept, slope = float(logit(shares, images).mean() + logs.mean()), 1.0
    for _ in range(100):
        share = 1 / (1 + np.exp(-np.clip(intercept - slope * logs, -50, 50)))
        weight = share * (1 - share) + 1e-6
        # a prior worth one measurement at each end keeps the slope finite if there are few points
        gradient = np.array([(shares - share).sum(), (-(shares - share) * logs).sum() - 0.1 * (slope - 1)])
        hessian = np.array([[weight.sum(), -(weight * logs).sum()], [-(weight * logs).sum(), (weight * logs * logs).sum() + 0.1]])
        change = np.linalg.solve(hessian, gradient)
        change /= max(1.0, float(np.abs(change).max()) / 2)
        intercept, slope = intercept + float(change[0]), slope + float(change[1])
        if np.abs(change).max() < 1e-10:
            break
    if slope < FLATTEST:
        slope = FLATTEST
        intercept = float((logit(shares, images) + slope * logs).mean())
    return intercept, slope


def spearman(first: Floats, second: Floats) -> float | None:
    """Return the rank correlation, with mean ranks for equal numbers; None if one side is constant or there are fewer than three values."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    a, b = _ranks(np.asarray(first, float)), _ranks(np.asarray(second, float))
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))


def _ranks(values: Floats) -> Floats:
    smaller = (values[None, :] < values[:, None]).sum(1)
    same = (values[None, :] == values[:, None]).sum(1)
    result: Floats = smaller + (same + 1) / 2
    return result
