"""Results of training and extraction as plain data, for the JSON and the terminal; the fields are the JSON's keys."""

from pathlib import Path
from typing import Any

import msgspec

from scheduler.bundle.agreement import Agreement


class TrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run: Path | None  # Its folder; None after a dry run.
    checkpoint: Path | None  # Its final weights; None after a dry run.
    #: ``accuracy`` and ``best_accuracy``, or without labels ``agreement`` and ``best_agreement``, ``loss``, ``epochs``, ``seconds``,
    #: ``images_per_second``, ``memory_mib`` and more.
    metrics: dict[str, Any]
    warnings: list[str]  # What a person should know.


class ExtractedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Top-1 accuracy of an extracted design."""

    supernet: float  # Within the run.
    extracted: float  # Of the extracted network.
    source: str = "measured"  # Where the figures come from.


class RankingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of an accuracy predictor's ranking of designs."""

    file: Path  # Of the predictor.
    designs: int  # Number of designs it was fitted to.
    rank_correlation: float  # Spearman's, on held-out designs.
    p_value: float  # Of that correlation.
    rmse: float  # Of the same predictions.
    source: str = "measured"  # Where the figures come from.


class ExtractAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design extracted from a run."""

    checkpoint: Path  # Its weights.
    accuracy: ExtractedAccuracy | None  # Of those, on the run's test images; None of a run without labels.
    agreement: Agreement | None  # With the original, on some of the run's test images, or without labels on those held back.
    bundle: Path | None  # Folder of the bundle, where one was written.
    checks: dict[str, Any]  # Numeric checks of the bundle; empty without one.
    ranking: RankingAnswer | None  # Of the supernet's designs, if requested.
    warnings: list[str]  # What a person should know.
