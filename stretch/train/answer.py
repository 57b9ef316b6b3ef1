"""What training and extraction tell, as plain data: JSON and the terminal both read these structs, whose fields are the JSON's keys."""

from pathlib import Path
from typing import Any

import msgspec

from scheduler.bundle.agreement import Agreement
from stretch.planning.cost.accuracy import AccuracyPredictor


class TrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Args:
        run: Its folder; None after a dry run.
        checkpoint: Its final weights; None after a dry run.
        metrics: As the run's folder has them: accuracy, loss, epochs, seconds, images a second, memory and more.
        warnings: What a person should know.
    """

    run: Path | None
    checkpoint: Path | None
    metrics: dict[str, Any]
    warnings: list[str]


class ExtractedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Top-1 of what was taken out of a run.

    Args:
        supernet: Of the same weights within the run.
        extracted: Of the network by itself.
        source: Where the figures come from.
    """

    supernet: float
    extracted: float
    source: str = "measured"


class RankingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How well a predictor of accuracy ranks designs.

    Args:
        file: The predictor.
        designs: How many designs it was fitted to.
        rank_correlation: Spearman's, on designs that were left out.
        p_value: Of that correlation.
        rmse: Of the same predictions.
        source: Where the figures come from.
    """

    file: Path
    designs: int
    rank_correlation: float
    p_value: float
    rmse: float
    source: str = "measured"


class ExtractAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design taken out of a run.

    Args:
        checkpoint: Its weights.
        accuracy: Of those, on the run's test images; None of a run without labels.
        agreement: With the original, on some of the run's test images, or without labels on those held back.
        bundle: Folder of the bundle, where one was written.
        checks: What was compared as the bundle was written; empty without one.
        ranking: Of the designs of the supernet, where that was asked for.
        warnings: What a person should know.
    """

    checkpoint: Path
    accuracy: ExtractedAccuracy | None
    agreement: Agreement | None
    bundle: Path | None
    checks: dict[str, Any]
    ranking: RankingAnswer | None
    warnings: list[str]


def ranking_answer(file: Path, predictor: AccuracyPredictor) -> RankingAnswer:
    """How well the predictor that the file `file` holds ranks designs."""
    return RankingAnswer(
        file=file,
        designs=predictor.designs,
        rank_correlation=predictor.rank_correlation,
        p_value=predictor.p_value,
        rmse=predictor.rmse,
    )
