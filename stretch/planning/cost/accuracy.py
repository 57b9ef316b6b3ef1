"""Predicted accuracy of a design, as a sum over its segments.

The predictor is linear in a few features of each branched segment, so that it adds up as
latency does and the exact search can weigh the two. `stretch.train.rank` fits it to subnets
of a trained supernet, which is what its rank correlation is about: how well it orders subnets
it has not seen, not networks trained alone.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError, UsageError
from predictors.files import read_bytes
from predictors.graph import OpGraph
from predictors.joins import join_of
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import design_segments, scaled_branches
from stretch.planning.sentences import Mention, Sentence

Floats = NDArray[np.float64]

SCHEMA = 1
#: Larger files are not ours.
MAX_BYTES = 1 << 20
#: Of a branched segment, each zero for the original: see `features`.
FEATURES = ("log_macs", "log_mean_width", "log_widest")


class PredictedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted accuracy of a design, with what is known of the predictor.

    Args:
        top1: The accuracy.
        rank_correlation: Of predicted with measured accuracies of networks that the predictor was not fitted to.
        p_value: How likely so large a correlation is by chance.
        rmse: Error of the predictor.
        source: Always ``predicted``.
    """

    top1: float
    rank_correlation: float
    p_value: float
    rmse: float
    source: str = "predicted"


class AccuracyPredictor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fitted predictor.

    Args:
        model: Name of the network.
        base: Accuracy of a design whose features are all zero.
        weights: Per segment, one weight for each of `FEATURES`.
        designs: How many designs it was fitted to.
        rank_correlation: Spearman's, between measured accuracies and those predicted for each design from all others.
        p_value: Of that correlation.
        rmse: Of the same predictions.
        schema: Of the file.
    """

    model: str
    base: float
    weights: dict[str, Annotated[tuple[float, ...], msgspec.Meta(min_length=len(FEATURES), max_length=len(FEATURES))]]
    designs: int
    rank_correlation: float
    p_value: float
    rmse: float
    schema: int = SCHEMA

    def answer(self, graph: OpGraph, design: BranchDesign) -> PredictedAccuracy:
        """Accuracy of a design as plain data."""
        return PredictedAccuracy(
            top1=self.predict(graph, design), rank_correlation=self.rank_correlation, p_value=self.p_value, rmse=self.rmse
        )

    def predict(self, graph: OpGraph, design: BranchDesign) -> float:
        """Top-1 of a design.

        Args:
            graph: The original network.
            design: The design.

        Raises:
            UsageError: If it branches a segment that the predictor does not know.
        """
        rows = segment_features(graph, design)
        return self.base + sum(float(np.dot(self._of(name), row)) for name, row in rows.items())

    def gains(self, options: Ways) -> Floats:
        """What each option adds to the accuracy; zero for a segment that stays whole or is divided exactly.

        Args:
            options: Ways to run one segment, n of them.

        Raises:
            UsageError: If the predictor does not know the segment.
        """
        if not options.branched or options.exact:
            return np.zeros(len(options.macs))
        segment = options.segment
        grid = np.indices([len(c) for c in options.candidates]).reshape(len(options.candidates), -1)
        widths = np.stack([np.array([b.width for b in c])[g] for c, g in zip(options.candidates, grid, strict=True)]) / segment.width
        found: Floats = features(widths, options.macs / segment.graph.macs) @ self._of(segment.name)
        return found

    def _of(self, segment: str) -> Floats:
        if segment not in self.weights:
            raise UsageError(
                f"the accuracy predictor of `{self.model}` does not know the segment `{segment}`, only {', '.join(self.weights)}",
                Sentence("plan with {} and the meeting points it was fitted with", Mention("merge", "never")),
            )
        return np.array(self.weights[segment])


def features(widths: Floats, macs: Floats) -> Floats:
    """What the predictor sees of one segment; depth enters through the multiply-accumulates.

    Args:
        widths: Width ratios, (branches, n).
        macs: Multiply-accumulates over the original segment's, (n,).

    Returns:
        (n, len(FEATURES)): logarithms of the multiply-accumulates, of the geometric mean of the
        branches' widths and of the largest; zeros for a copy of the original.
    """
    return np.stack([np.log(macs), np.log(widths).mean(0), np.log(widths).max(0)], axis=1)


def segment_features(graph: OpGraph, design: BranchDesign) -> dict[str, Floats]:
    """The features of every branched segment of a design, by name."""
    found: dict[str, Floats] = {}
    for part, segment, scaled in zip(design.segments, design_segments(graph, design), scaled_branches(graph, design), strict=True):
        if len(part.branches) > 1 and not join_of(part.join).exact:
            widths = np.array([[b.width / segment.width] for b in part.branches])
            found[part.name] = features(widths, np.array([sum(b.graph.macs for b in scaled) / segment.graph.macs]))[0]
    return found


def save_accuracy(path: Path, predictor: AccuracyPredictor) -> None:
    """Write a predictor as JSON, whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(predictor), indent=1) + b"\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StretchError(f"cannot write {path}: {error.strerror}") from error


def load_accuracy(path: Path, model: str) -> AccuracyPredictor:
    """Read a predictor.

    Args:
        path: The file.
        model: Name of the network it must be about.

    Raises:
        StretchError: If it cannot be read, is none, or is about another network.
    """
    try:
        content = read_bytes(path, "accuracy predictor", MAX_BYTES, "give the accuracy.json that `stretch extract` wrote")
        found = msgspec.json.decode(content, type=AccuracyPredictor)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is no accuracy predictor: {error}", "give the accuracy.json that `stretch extract` wrote") from error
    if found.schema != SCHEMA:
        raise StretchError(f"{path} has schema {found.schema}, this nn-stretch reads {SCHEMA}", "fit it anew with `stretch extract --rank`")
    if found.model != model:
        raise StretchError(f"{path} is about `{found.model}`, not `{model}`", "fit one with a supernet of this network")
    if not np.isfinite([found.base, *(w for row in found.weights.values() for w in row)]).all():
        raise StretchError(f"{path} has weights that are no numbers", "fit it anew with `stretch extract --rank`")
    return found
