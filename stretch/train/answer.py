"""What training and extraction tell, as plain data: JSON and the terminal both read these structs, whose fields are the JSON's keys."""

from pathlib import Path
from typing import Any

import msgspec

from scheduler.bundle.agreement import Agreement
from stretch.planning.cost.accuracy import AccuracyPredictor


class TrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run: Path | None  # Its folder; None after a dry run.
    checkpoint: Path | None  # Its final weights; None after a dry run.
    metrics: dict[str, Any]  # As the run's folder has them: accuracy, loss, epochs, seconds, images a second, memory and more.
    warnings: list[str]  # What a person should know.


class ExtractedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Top-1 of what was taken out of a run."""

    supernet: float  # Of the same weights within the run.
    extracted: float  # Of the network by itself.
    source: str = "measured"  # Where the figures come from.


class RankingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How well a predictor of accuracy ranks designs."""

    file: Path  # The predictor.
    designs: int  # How many designs it was fitted to.
    rank_correlation: float  # Spearman's, on designs that were left out.
    p_value: float  # Of that correlation.
    rmse: float  # Of the same predictions.
    source: str = "measured"  # Where the figures come from.


class ExtractAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design taken out of a run."""

    checkpoint: Path  # Its weights.
    accuracy: ExtractedAccuracy | None  # Of those, on the run's test images; None of a run without labels.
    agreement: Agreement | None  # With the original, on some of the run's test images, or without labels on those held back.
    bundle: Path | None  # Folder of the bundle, where one was written.
    checks: dict[str, Any]  # What was compared as the bundle was written; empty without one.
    ranking: RankingAnswer | None  # Of the designs of the supernet, where that was asked for.
    warnings: list[str]  # What a person should know.


def ranking_answer(file: Path, predictor: AccuracyPredictor) -> RankingAnswer:
    """How well the predictor that the file `file` holds ranks designs."""
    return RankingAnswer(
        file=file,
        designs=predictor.designs,
        rank_correlation=predictor.rank_correlation,
        p_value=predictor.p_value,
        rmse=predictor.rmse,
    )
